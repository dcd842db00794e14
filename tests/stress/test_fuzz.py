"""Every function with all that a role may send it: it does its work, or refuses with a code of its own.

Each call is made by a session of a role that may make it: the owner, or one of the four roles. It must end in
time, leave all invariants true, and the connection usable.

    PYWORKER_FUZZ=1000000 PYWORKER_SEED=7 pytest -m torture -s tests/stress/test_fuzz.py
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from typing import Any

import psycopg
import pytest

from tests.support.hostile_values import Values

pytestmark = pytest.mark.slow

CALLS = int(os.environ.get("PYWORKER_FUZZ", "100000"))
SEED = int(os.environ.get("PYWORKER_SEED", random.randrange(10**9)))
REFUSALS = {"PW001", "PW002", "PW003", "PW004", "PW005", "PW006"}
ROLES = [None, "pyworker_producer", "pyworker_worker", "pyworker_reader", "pyworker_admin"]  # None: the owner
BATCH = 40  # calls of one role in one transaction
# advance_clock is there in tests only.
LEFT_OUT = {"advance_clock"}
# What PostgreSQL itself says of a role or a query of the caller's own (docs/schedules.md).
OWN = {
    "add_schedule": {"42501", "42704", "22023", "0A000", "42P01", "42601", "42703", "22012", "42P11"},
    "_lend_query_schema": {"42704", "42939", "42601", "0LP01", "22004"},
    "_query_function": {"22004"},
}
SLOW = 8.0  # seconds; statement_timeout would end the call with a code that is none of ours


class Call:
    def __init__(self, name: str, arguments: list[tuple[str, str, bool]], roles: list[str]) -> None:
        self.name, self.arguments, self.roles = name, arguments, set(roles)


def functions(api: Any) -> list[Call]:
    """Public functions, and the private ones that a role may call."""
    rows = api.rows(
        "select p.proname, p.proargnames[:p.pronargs] as names, p.pronargs - p.pronargdefaults as needed,"
        " array(select format_type(t, null) from unnest(p.proargtypes) with ordinality a(t, n) "
        "order by n) as kinds,"
        " array(select r from unnest(%s::text[]) r "
        "where has_function_privilege(r, p.oid, 'execute')) as roles"
        " from pg_proc p where p.pronamespace = 'pyworker'::regnamespace"
        " and p.prorettype <> 'trigger'::regtype order by p.proname, p.oid",
        [ROLES[1:]],
    )
    return [
        Call(
            row.proname,
            [
                (n, k, at < row.needed)
                for at, (n, k) in enumerate(zip(row.names or [], row.kinds, strict=True))
            ],
            row.roles,
        )
        for row in rows
        if row.proname not in LEFT_OUT and (row.roles or not row.proname.startswith("_"))
    ]


def populate(conn: psycopg.Connection[Any], values: Values) -> None:
    """A few jobs in every state, of every kind; two workers, a queue, a family, a schedule."""
    conn.execute(
        "select pyworker.set_queue('q:*', 2, 3, '1 minute', true), pyworker.pause_queue('paused'),"
        " pyworker.add_schedule('s', '* * * * *', 't'), pyworker.register_worker('{\"name\": \"w\"}')"
    )
    worker = conn.execute("select pyworker.register_worker()").fetchone()[0]  # type: ignore[index]
    for named in (
        "", ", job_key => 'k'", ", queue_name => 'q'", ", queue_name => 'q:1'",
        """, sequence_policy => '{"key": "s"}'""",
        """, sequence_policy => '{"key": "s"}'""", """, unique_policy => '{"by_args": true}'""",
        ", run_at => now() + interval '1 hour'", ", delivery => 'at_most_once'", ", max_attempts => 1",
    ):  # fmt: skip
        conn.execute(f"select pyworker.add_job('t'{named})")
    jobs = conn.execute("select id, run from pyworker.claim_jobs(%s, 7)", [worker]).fetchall()
    conn.execute("select pyworker.finish_jobs(array[%s], array[%s])", jobs[0])
    conn.execute(
        "select pyworker.fail_jobs(jsonb_build_array(jsonb_build_object('id', %s, 'run', %s, 'error', 'e')))",
        jobs[1],
    )
    conn.execute("select pyworker.add_job('t', depends_on => jsonb_build_array(%s::bigint))", [jobs[2][0]])
    values.jobs = conn.execute(
        "select id, coalesce((pyworker.get_job(id)).run, 0) from pyworker.jobs"
    ).fetchall()
    values.workers = [worker - 1, worker]


def state_of(error: psycopg.Error) -> str:
    """The SQLSTATE, or 'cast' for what is refused before the function is called: no value of its type."""
    state = error.sqlstate or ""
    context = str(error.diag.context or "")
    if state[:2] in ("22", "54") and "function" not in context:
        return "cast"
    return state


class Fuzz:
    def __init__(self, conn: psycopg.Connection[Any], api: Any, seed: int, huge: float) -> None:
        self.conn, self.calls = conn, functions(api)
        self.rng = random.Random(seed)
        self.values = Values(self.rng, huge)
        self.outcomes: Counter[str] = Counter()
        self.broken: dict[tuple[str, str], Any] = {}  # the first of each function and SQLSTATE
        self.slowest: tuple[float, str, str] = (0.0, "", "")

    def run(self, calls: int) -> None:
        self.conn.execute(f"set lock_timeout = '10s'; set statement_timeout = '{SLOW:.0f}s'")
        for done in range(0, calls, BATCH):
            self._batch(min(BATCH, calls - done))

    def _batch(self, calls: int) -> None:
        role = self.rng.choice(ROLES)
        known = [call for call in self.calls if role is None or role in call.roles]
        self.conn.execute("begin")
        populate(self.conn, self.values)
        if role:
            self.conn.execute(f"set local session authorization {role}")
        self.done: list[Any] = []
        for _ in range(calls):
            self._call(self.rng.choice(known), role or "owner")
        self.conn.execute("reset session authorization; set local pyworker.clock_offset = ''")
        violations = self.conn.execute("select * from pyworker._invariants()").fetchall()
        if violations:
            self.broken.setdefault(("_invariants", role or "owner"), (violations, self.done))
        self.conn.execute("rollback")

    def _call(self, call: Call, role: str) -> None:
        given = [(n, k) for n, k, needed in call.arguments if needed or self.rng.random() < 0.3]
        given = [(n, k, self.values.of(n, k)) for n, k in given]
        arguments = ", ".join(f'"{n}" => %s::{k}' for n, k, _ in given)
        self.conn.execute("savepoint one")
        began = time.perf_counter()
        try:
            self.conn.execute(f"select * from pyworker.{call.name}({arguments})", [v for _, _, v in given])
            self.conn.execute("release one")
            self.outcomes["done"] += 1
            self.done.append((call.name, [(n, str(v)[:300]) for n, _, v in given]))
        except psycopg.Error as error:
            told = (role, [(n, str(v)[:300]) for n, _, v in given], str(error), str(error.diag.context)[:500])
            assert not self.conn.closed, (call.name, told)
            state = state_of(error)
            self.outcomes[state] += 1
            if state not in REFUSALS and state != "cast" and state not in OWN.get(call.name, ()):
                self.broken.setdefault((call.name, state), told)
            self.conn.execute("rollback to one")
        took = time.perf_counter() - began
        self.slowest = max(self.slowest, (took, call.name, str([(n, str(v)[:60]) for n, _, v in given])))


def fuzzed(actor: Any, api: Any, calls: int, seed: int, huge: float) -> None:
    conn = actor().conn
    fuzz = Fuzz(conn, api, seed, huge)
    try:
        fuzz.run(calls)
    finally:
        conn.execute("rollback")
        print(f"seed {seed}: {dict(fuzz.outcomes)}, slowest {fuzz.slowest}")
        print(*fuzz.broken.items(), sep="\n")  # also of a run that is interrupted
    assert fuzz.broken == {}
    # Registers are not rolled back: what was sent has not put off the work of others.
    worker = api.register_worker()
    job = api.add_job("after")
    assert api.claim(worker, "after").id == job.id
    api.finish(job.id)


def test_no_argument_breaks_a_function(api: Any, actor: Any) -> None:
    fuzzed(actor, api, 4000, 1, 0.0005)


@pytest.mark.torture
def test_no_argument_breaks_a_function_for_a_long_time(api: Any, actor: Any) -> None:
    fuzzed(actor, api, CALLS, SEED, 0.0002)
