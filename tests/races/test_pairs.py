"""Every two operations on the same job, key, sequence and queue, in two sessions, stepped.

One session has done the first and has not committed; the other one begins the second, and either
waits or goes on. Then the first commits, rolls back or is killed. Or a third session holds a row
that makes both stop in their midst. In each case the outcome is one that one after the other could
have given, no session deadlocks, and no call answers what is not documented.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future, wait
from itertools import product
from typing import Any

import psycopg
import pytest

from tests.support.queues import FORGET_FLOORS, answered

LEVELS = RC, _, _ = ["read committed", "repeatable read", "serializable"]
T, U = 1, 2  # the jobs that are there, see START
S = {"key": "s"}


def unique(conflict: str) -> dict[str, Any]:
    return {
        "keys": ["args"],
        "states": ["available", "running", "scheduled", "retryable", "pending", "completed"],
        "on_conflict": conflict,
    }


def spec(by: str, **more: Any) -> dict[str, Any]:
    return {"identifier": "t", "meta": {"by": by}, **more}


BULK = [
    {"payload": [3], "job_key": "k", "queue_name": "q", "sequence_policy": S},
    {"payload": {"n": 1}, "unique_policy": unique("replace")},
    {"sequence_policy": S},
    {"payload": [4], "job_key": "j"},
    {"queue_name": "q"},
]
# What a session does; `by` marks the jobs that come of it.
OPERATIONS: dict[str, Callable[[Any, str], Any]] = {
    "add keyed": lambda api, by: api.add_job(
        **spec(by, payload="[1]", job_key="k", queue_name="q", sequence_policy=S)
    ),
    "add unique": lambda api, by: api.add_job(**spec(by, payload={"n": 1}, unique_policy=unique("ignore"))),
    "replace unique": lambda api, by: api.add_job(
        **spec(by, payload={"n": 1}, unique_policy=unique("replace"))
    ),
    "add sequenced": lambda api, by: api.add_job(**spec(by, queue_name="q", sequence_policy=S)),
    "add many": lambda api, by: api.add_jobs([spec(by, **more) for more in BULK]),
    "claim": lambda api, by: api.claim_jobs(2, 10),
    "finish": lambda api, by: api.finish_jobs([U, T], [1, 1]),
    "fail": lambda api, by: api.fail_jobs(
        [{"id": i, "run": 1, "error": by, "delay": "1 hour"} for i in (U, T)]
    ),
    "discard": lambda api, by: api.fail_jobs(
        [{"id": i, "run": 1, "error": by, "discard": True} for i in (U, T)]
    ),
    "cancel": lambda api, by: api.cancel_job(T, True),
    "retry": lambda api, by: api.retry_jobs([U, T]),
    "remove": lambda api, by: api.remove_job("k"),
    "delete": lambda api, by: api.delete_job(U),
    "sweep": lambda api, by: api.sweep_workers(),
    "maintain": lambda api, by: api.maintain(),
}
# Two workers; T, with a key, heads the sequence s and the queue q; U has a unique key; then a job
# that waits in the sequence, and one in the queue.
BEGIN = """
    select pyworker.register_worker(), pyworker.register_worker();
    select from pyworker.add_job('t', '[0]', queue_name => 'q', job_key => 'k',
        sequence_policy => '{"key": "s"}');
    select from pyworker.add_job('t', '{"n": 1}', unique_policy => '{"keys": ["args"]}');
    select from pyworker.add_job('t', sequence_policy => '{"key": "s"}');
    select pyworker.promote_jobs();
    update pyworker.live_jobs set ready_at = run_at where ready_at is not null; -- 1 comes before 2
    select from pyworker.add_job('t', queue_name => 'q');
"""
# Run 1, so that both can speak of it; the next run is the time of its claim, and shown as 2.
CLAIMED = (
    BEGIN
    + """
    select from pyworker.claim_jobs(1, 2);
    update pyworker.live_jobs set run = 1 where state = 'running';
"""
)
START = {
    "waiting": BEGIN,
    "running": CLAIMED,
    "of the dead": CLAIMED,
    "ended": CLAIMED
    + """
        select pyworker.fail_jobs('[{"id": 1, "run": 1, "error": "e", "discard": true}]'),
            pyworker.finish_job(2, 1);""",
}
# Made once, and put back by copying.
TABLES = [
    "live_jobs",
    "finished_jobs",
    "unique_keys",
    "errors",
    "promotion_requests",
    "workers",
    "claims",
    "sequence_halts",
]
KEEP = [f'create table "{{0}}".{table} as table pyworker.{table}' for table in TABLES]
RESTORE = [
    f'insert into pyworker.{table} overriding system value table "{{0}}".{table}' for table in TABLES
] + [
    """update pyworker.workers set expires_at = pyworker.clock()
           + case when id = 1 and '{0}' = 'of the dead' then interval '-1 s' else '20 s' end""",
    "update pyworker.gate set floor = '0'",
    "select setval('pyworker.job_ids', 4), setval('pyworker.promotion_requests_id_seq', 100)",
    "select setval('pyworker.swept_at', (extract(epoch from clock_timestamp()) * 1000)::bigint)",
]
GATES = {
    "T": "select from pyworker.live_jobs where id = 1 for update",
    "U": "select from pyworker.live_jobs where id = 2 for update",
    "the key of U": "select from pyworker.unique_keys for update",
    "a halt": "select from pyworker.sequence_halts for update",
    "another key": "select pyworker.add_job('t', '[2]', job_key => 'j')",
}
SHOWN = """
    select coalesce(j.meta ->> 'by', j.id::text), j.state, j.key, (pyworker.get_job(j.id)).payload::text,
        j.attempts,
           least(j.run, 2), j.revision, j.queue_name, j.sequence_key, j.unique_key is not null, j.last_error,
               j.reason, j.locked_by
    from (select * from pyworker.jobs union all select * from pyworker.history) j
"""


def said(rows: Any) -> Any:
    """What a call has told its caller, as far as it can be compared."""
    if isinstance(rows, Exception):
        return getattr(rows, "sqlstate", None)
    rows = [rows] if hasattr(rows, "deduplicated") else rows
    if isinstance(rows, list) and rows and hasattr(rows[0], "deduplicated"):
        return [row.deduplicated for row in rows if row.id is not None]
    return "done"


def attempt(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except psycopg.Error as error:
        return error


class Stage:
    """One database, on which a pair meets again and again."""

    def __init__(self, api: Any, actor: Any, clean: Any, invariants: Any, a: str, b: str) -> None:
        self.api, self.actor, self.clean, self.invariants, self.a, self.b = (
            api,
            actor,
            clean,
            invariants,
            a,
            b,
        )
        self.sessions: list[Any] = []
        api.maintain()  # history's partitions: their making is not what is tried here

    def session(self, n: int) -> Any:
        while len(self.sessions) <= n or self.sessions[n].conn.closed:
            self.sessions[n : n + 1] = [self.actor()]
        return self.sessions[n]

    def reset(self, start: str) -> None:
        for session in [self.api, *self.sessions]:
            # The rows that are put back here come in by no function: no session may remember a walk
            # past them.
            if not session.conn.closed:
                session.rows(FORGET_FLOORS)
        if not self.api.value("select to_regnamespace(quote_ident(%s)) is not null", [start]):
            self.clean()
            for statement in filter(str.strip, START[start].split(";")):
                self.api.conn.execute(statement)  # each in a transaction of its own: only such let jobs in
            self.api.conn.execute(";".join(['create schema "{0}"', *KEEP]).format(start))
        self.api.conn.execute(
            ";".join([*(f"delete from pyworker.{table}" for table in TABLES), *RESTORE]).format(start)
        )

    def outcome(self, results: dict[str, Any]) -> Any:
        """Where it has come to, once promotions are done, and claimed if that was asked."""
        if {"sweep", "maintain"} & {self.a, self.b}:
            self.api.sweep_workers()
        answered(self.api)
        if "claim" in (self.a, self.b):
            self.api.claim_jobs(2, 10)
        answered(self.api)
        jobs = sorted(str(tuple(job)) for job in self.api.rows(SHOWN))
        halts = self.api.rows("select sequence_key, waiting, halted_by from pyworker.sequences")
        return json.dumps([results, jobs, [tuple(halt) for halt in halts]], default=str, sort_keys=True)

    def serially(self, start: str, *order: str) -> Any:
        """The outcome of A and B one after the other, or of one of them alone."""
        self.reset(start)
        results = {}
        for by in order:
            results[by] = said(
                attempt(lambda by=by: OPERATIONS[self.a if by == "A" else self.b](self.api, by))
            )
        return self.outcome(results)

    def told(self, future: Future[Any], operation: str) -> Any:
        """The rows that a call gave, none of them a null, or its error."""
        error = future.exception(20)
        if error:
            assert getattr(error, "sqlstate", None), error
            return error
        rows = future.result()
        if operation.startswith(("add", "replace")):
            assert rows
            assert all(row.id is not None for row in rows), "an add gave null"
        return rows

    def waits(self, actor: Any, future: Future[Any]) -> bool:
        """Has the call come to wait for another session, or has it ended?"""
        while not future.done():
            if self.api.value("select cardinality(pg_blocking_pids(%s)) > 0", [actor.session.pid]):
                return True
            wait([future], 0.001)
        return False

    def begin(self, n: int, level: str) -> Any:
        session = self.session(n)
        session.begin(level)
        return session

    def run(self, session: Any, operation: str, by: str) -> Future[Any]:
        return OPERATIONS[operation](session.later, by)

    def end(self, n: int, by: str, result: Any, how: str, level: str, lasting: dict[str, Any]) -> None:
        """Ends a transaction; what it did lasts if it says so and nothing is against it."""
        session = self.session(n)
        if how == "commit" and not isinstance(result, Exception):
            result = attempt(session.commit) or result
            session.rollback()  # in case that it failed
        elif how == "kill":
            session.kill()
            session.conn.close()
        else:
            session.rollback()
        if isinstance(result, Exception):
            state = getattr(result, "sqlstate", None)
            assert state == "40001" or str(state).startswith("PW"), result  # above all no 40P01
            assert state != "40001" or level != RC, result
        if how == "commit":
            lasting[by] = said(result)

    def again(self, lasting: dict[str, Any]) -> dict[str, Any]:
        """A session that failed because of its old snapshot tries again."""
        for by in [by for by, result in lasting.items() if result == "40001"]:
            lasting[by] = said(
                attempt(lambda by=by: OPERATIONS[self.a if by == "A" else self.b](self.api, by))
            )
        return lasting

    def step(self, start: str, level: tuple[str, str], how: str, early: bool) -> Any:
        """A has been done and is open, B begins; A ends, B commits. Early: B's snapshot is from before A."""
        self.reset(start)
        lasting: dict[str, Any] = {}
        if early:
            self.begin(1, level[1])
        a = self.begin(0, level[0])
        future = self.run(a, self.a, "A")
        done = self.told(future, self.a)
        b = self.session(1) if early else self.begin(1, level[1])
        later = self.run(b, self.b, "B")
        self.waits(b, later)
        self.end(0, "A", done, how, level[0], lasting)
        self.end(1, "B", self.told(later, self.b), "commit", level[1], lasting)
        return self.again(lasting)

    def gate(self, start: str, level: tuple[str, str], gate: str) -> Any:
        """Both begin while a third session holds a row; once it releases the row, they meet in any order."""
        self.reset(start)
        lasting: dict[str, Any] = {}
        holder = self.begin(2, "read committed")
        holder.rows(GATES[gate])
        sessions = [self.begin(n, level[n]) for n in (0, 1)]
        futures = [self.run(sessions[0], self.a, "A")]
        self.waits(sessions[0], futures[0])
        futures.append(self.run(sessions[1], self.b, "B"))
        self.waits(sessions[1], futures[1])
        holder.rollback()
        results: list[Any] = [None, None]
        order = []
        while len(order) < 2:
            for n in (0, 1):
                if n not in order and (futures[n].done() or order):
                    results[n] = self.told(futures[n], (self.a, self.b)[n])
                    self.end(n, "AB"[n], results[n], "commit", level[n], lasting)
                    order.append(n)
            wait(futures, 0.01, "FIRST_COMPLETED")
        return self.again(lasting)

    def judge(self, start: str, case: Any, lasting: dict[str, Any]) -> None:
        found = self.outcome(lasting)
        allowed = self.allowed[start, "".join(sorted(lasting))]
        assert found in allowed, "\n".join(map(str, [start, case, found, *allowed]))
        self.invariants(self.api.conn)

    def play(self, start: str, steps: Any, gates: Any) -> None:
        self.allowed = {
            (start, "AB"): {self.serially(start, *"AB"), self.serially(start, *"BA")},
            (start, "B"): {self.serially(start, "B")},
        }
        for case in steps:
            self.judge(start, case, self.step(start, *case))
        for case in gates:
            self.judge(start, case, self.gate(start, *case))


PAIRS = list(product(OPERATIONS, OPERATIONS))
NAMED = pytest.mark.parametrize(("a", "b"), PAIRS, ids=[f"{a}, {b}" for a, b in PAIRS])
STEPS = [
    *product([(RC, RC)], ["commit", "rollback", "kill"], [False]),
    *product(
        [levels for levels in product(LEVELS, LEVELS) if levels != (RC, RC)], ["commit", "rollback"], [False]
    ),
    *product(
        product(LEVELS, LEVELS[1:]), ["commit"], [True]
    ),  # under READ COMMITTED no snapshot is from before
]
MEETINGS = list(product([(level, level) for level in LEVELS], GATES))


@pytest.fixture
def stage(api: Any, actor: Any, clean: Any, invariants: Any) -> Callable[[str, str], Stage]:
    return lambda a, b: Stage(api, actor, clean, invariants, a, b)


@NAMED
def test_of_two_calls_at_once_the_outcome_is_that_of_one_after_the_other(stage: Any, a: str, b: str) -> None:
    """A part of it, another one for each pair."""
    n = PAIRS.index((a, b))
    start = list(START)[n % len(START)]
    stage(a, b).play(
        start, [STEPS[0], STEPS[1 + n % 2], STEPS[3 + n % (len(STEPS) - 3)]], [MEETINGS[n % len(MEETINGS)]]
    )


@pytest.mark.torture
@NAMED
def test_of_two_calls_at_once_the_outcome_is_one_of_turns_from_every_start_at_every_level(
    stage: Any, a: str, b: str
) -> None:
    for start in START:
        stage(a, b).play(start, STEPS, MEETINGS)
