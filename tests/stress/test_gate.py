"""Sessions add, claim, report, roll back and are killed, on queues and sequences of all kinds, while settings
change: no limit and no rate is passed, no order is broken, nothing runs twice and nothing is stranded.

PYWORKER_TORTURE_SECONDS says for how long the long run goes on, PYWORKER_SEED which choices it makes.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

from tests.support import DEADLINE, SECONDS
from tests.support.databases import check_invariants, copy_of
from tests.support.stories import RECORD, judge

SEED = int(os.environ.get("PYWORKER_SEED", "1"))
SESSIONS = 6

# Never set again: these hold at every moment.
SETTINGS = """
    select pyworker.set_queue('two', 2), pyworker.set_queue('five', 5), pyworker.set_queue('fam:*', 2),
        pyworker.set_queue('r20', null, 20, '0.5 s'), pyworker.set_queue('r3', null, 3, '0.3 s'),
        pyworker.set_queue('both', 2, 30, '1 s'), pyworker.set_queue('turns:*', 1, fair => true)
"""
SERIAL = [f"ser{i}" for i in range(4)]
STEADY = [*SERIAL, "two", "five", "both", "r20", "r3", "fam:a", "fam:b", "turns:a", "turns:b"]
CHANGING = ["x", "g:a", "g:b"]
SEQUENCES = [f"s{i}" for i in range(6)]
UNRULY = {"job_key", "depends_on", "expires_at"}
GOES_ON = {"continue_on_cancelled": True, "continue_on_discarded": True}

OVER = """
    select j.queue_name, count(*)::integer, q.slots
    from pyworker.live_jobs j cross join lateral pyworker._queues_of(array[j.queue_name]) q
    where j.state = 'running' and (j.queue_name = any (%s) or exists (
        select from pyworker.claims c where c.worker_id = j.worker_id and j.id = any (c.job_ids)
            and c.seen > q.changed))
    group by 1, 3 having count(*) > q.slots
"""
TWO_OF_A_SEQUENCE = """
    select sequence_key, count(*)::integer from pyworker.live_jobs
    where state = 'running' and sequence_key is not null group by 1 having count(*) > 1
"""
LEFT = "select id, state, queue_name, sequence_key from pyworker.jobs where state <> 'discarded'"
ANY = "select id from pyworker.live_jobs where state = any ('{available,pending}') order by random() limit 1"
TASKS = """
    select pyworker.define_task(t, backoff => '[0]', max_attempts => 32767) from unnest('{t,u}'::text[]) t
"""
AGAIN = (
    psycopg.errors.SerializationFailure,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.DeadlockDetected,
)


class Turmoil:
    def __init__(self, dsn: str, seed: int) -> None:
        self.dsn, self.seed = dsn, seed
        self.goes_on, self.over = threading.Event(), threading.Event()
        self.calm = threading.Barrier(SESSIONS + 3)
        self.faults: list[Any] = []
        self.counts: Counter[str] = Counter()
        self.known: dict[int, Any] = {}  # when every session could see a job of a sequence
        self.by_hand: set[int] = set()  # jobs whose report need not count, and whose place is not theirs
        self.ids: list[int] = []

    @contextmanager
    def connect(self, **options: Any) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(self.dsn, autocommit=True, row_factory=namedtuple_row, **options) as conn:
            conn.execute("set synchronous_commit = off")
            yield conn

    def go_on(self, until: float) -> None:
        """Turmoil and calm in turn."""
        while time.monotonic() < until and not self.faults:
            self.goes_on.set()
            self.calm.wait()
            threading.Timer(1.5, self.goes_on.clear).start()
            self.calm.wait()
            self.drain()
            self.counts["rounds"] += 1
        self.over.set()
        self.calm.wait()

    def take_part(self, act: Any) -> None:
        """Acts while the turmoil goes on, then waits until all is calm, and again."""
        try:
            while True:
                self.calm.wait()
                if self.over.is_set():
                    return
                act()
                self.calm.wait()
        except threading.BrokenBarrierError:
            pass  # another one has failed
        except Exception as error:
            self.faults.append((type(error).__name__, str(error)))
            self.calm.abort()

    def observe(self) -> None:
        with self.connect() as conn:
            while self.goes_on.is_set():
                self.faults += conn.execute(OVER, [STEADY]).fetchall()
                self.faults += conn.execute(TWO_OF_A_SEQUENCE).fetchall()
                self.counts["looks"] += 1

    def operate(self) -> None:
        """Changes what may change, sometimes in transactions that stay open."""
        rng = random.Random(self.counts["acts"] + self.seed)
        with self.connect() as conn:
            while self.goes_on.is_set():
                with conn.transaction(force_rollback=rng.random() < 0.2):
                    name, act = rng.choice([*CHANGING, "g:*"]), rng.random()
                    if act < 0.25:
                        conn.execute("select pyworker.pause_queue(%s)", [name])
                    elif act < 0.6:
                        conn.execute("select pyworker.resume_queue(%s)", [name])
                    elif act < 0.8:
                        limit = rng.choice([1, 3, None])
                        conn.execute("select pyworker.set_queue(%s, %s)", [name, limit])
                    else:
                        self.meddle(conn, rng)
                    if rng.random() < 0.3:
                        conn.execute("select pg_sleep(%s)", [rng.random() * 0.1])
                self.counts["acts"] += 1
                conn.execute("select pg_sleep(%s)", [rng.random() * 0.03])
            for name in [*CHANGING, "g:*"]:
                conn.execute("select pyworker.resume_queue(%s)", [name])

    def meddle(self, conn: psycopg.Connection[Any], rng: random.Random) -> None:
        for (id,) in conn.execute(ANY).fetchall():
            self.by_hand.add(id)
            call = rng.choice(
                [
                    "cancel_job(%s)",
                    "delete_job(%s)",
                    "reschedule_jobs(array[%s::bigint], priority => -1)",
                    "reschedule_jobs(array[%s::bigint], run_at => now() + interval '50 ms')",
                    "retry_job(%s)",
                    "complete_jobs(array[%s::bigint])",
                ]
            )
            try:
                with conn.transaction():
                    conn.execute(f"select pyworker.{call}", [id])
            except psycopg.errors.RaiseException:
                pass
            except psycopg.Error as error:
                if not (error.sqlstate or "").startswith("PW") and not isinstance(error, AGAIN):
                    raise

    def drain(self) -> None:
        """One worker runs all that is left, as a runner does: it claims again when it is told to."""
        with self.connect() as conn:
            conn.execute("listen pyworker")
            worker = conn.execute("select pyworker.register_worker()").fetchone()[0]  # type: ignore[index]
            check_invariants(conn)
            until, done = time.monotonic() + DEADLINE, [[], []]
            while True:
                rows = conn.execute(
                    "select * from pyworker.work(%s, %s, %s, null, null, 20)", [worker, *done]
                ).fetchall()
                jobs = [row for row in rows if row.kind == "job"]
                done = [[job.id for job in jobs], [job.run for job in jobs]]
                if jobs:
                    continue
                if not conn.execute(LEFT).fetchall():
                    break
                if time.monotonic() > until:
                    self.faults += [("stranded", row) for row in conn.execute(LEFT).fetchall()[:20]]
                    requests = conn.execute("select * from pyworker.promotion_requests limit 20").fetchall()
                    self.faults.append(("requests", requests))
                    return
                list(conn.notifies(timeout=rows[-1].again_in_s, stop_after=1))
            conn.execute("select pyworker.close_worker(%s)", [worker])
            check_invariants(conn)


class Session:
    """A worker and a producer in one."""

    def __init__(self, turmoil: Turmoil, n: int) -> None:
        self.it, self.random = turmoil, random.Random(turmoil.seed * 100 + n)
        self.conn: psycopg.Connection[Any] | None = None
        self.worker = 0
        self.held: list[Any] = []

    def act(self) -> None:
        while self.it.goes_on.is_set():
            if self.conn is None:
                self.conn = psycopg.connect(self.it.dsn, autocommit=True, row_factory=namedtuple_row)
                self.conn.execute("set synchronous_commit = off")
                self.worker = self.conn.execute("select pyworker.register_worker()").fetchone()[0]  # type: ignore[index]
            try:
                self.step(self.conn)
            except AGAIN:
                self.it.counts["again"] += 1
            except psycopg.OperationalError:
                self.bury()
        if self.conn is not None:
            self.turn(self.conn, 0, all_of_them=True)
            self.conn.close()
            self.conn, self.held = None, []

    def bury(self) -> None:
        """Its session was killed, and what its worker held is handed on."""
        assert self.conn is not None
        self.conn.close()
        self.conn = None
        self.held = []
        with self.it.connect() as conn:
            conn.execute("select pyworker.force_unlock_workers(array[%s::text])", [self.worker])

    def step(self, conn: psycopg.Connection[Any]) -> None:
        x = self.random.random()
        if x < 0.3:
            self.add(conn)
        elif x < 0.75:
            self.turn(conn, self.random.choice([0, 1, 1, 2, 5]))
        elif x < 0.85 and self.held:
            self.handle(conn)
        elif x < 0.9:
            conn.execute("select pyworker.promote_jobs()")
        elif x < 0.95:
            self.claim_at_a_higher_level(conn)
        else:
            self.die(conn)

    def soon(self, conn: psycopg.Connection[Any]) -> str:
        sql = "select pyworker.clock() + %s * interval '1 ms'"
        (at,) = conn.execute(sql, [self.random.randrange(400)]).fetchone()  # type: ignore[misc]
        return str(at)

    def add(self, conn: psycopg.Connection[Any]) -> None:
        rng, specs = self.random, []
        waits_open = rng.random() < 0.15
        if conn.execute("select count(*) > 150 from pyworker.live_jobs").fetchone()[0]:  # type: ignore[index]
            return
        for _ in range(rng.choice([1, 1, 1, 4])):
            kind, spec = rng.random(), dict[str, Any](identifier=rng.choice("tu"))
            if kind < 0.7:
                spec["queue_name"] = rng.choice(STEADY + CHANGING)
            if kind > 0.5:
                spec["sequence_policy"] = {"key": rng.choice(SEQUENCES), **GOES_ON}
            if rng.random() < 0.2:
                spec["run_at"] = self.soon(conn)
            if rng.random() < 0.2:
                spec["priority"] = rng.choice([-1, 1])
            if rng.random() < 0.15:
                spec["job_key"] = f"k{rng.randrange(6)}"
            if rng.random() < 0.1 and self.it.ids:
                spec["depends_on"] = [{"id": rng.choice(self.it.ids[-50:]), "on": "end"}]
            if rng.random() < 0.05:
                spec["expires_at"] = self.soon(conn)
            specs.append(spec)
        rolled_back = rng.random() < 0.1
        try:
            with conn.transaction(force_rollback=rolled_back):
                rows = conn.execute("select * from pyworker.add_jobs(%s)", [Jsonb(specs)]).fetchall()
                if waits_open:
                    conn.execute("select pg_sleep(%s)", [rng.random() * 0.2])
        except psycopg.ProgrammingError as error:
            if not any(text in str(error) for text in ("depends_on:", "a time ahead")):
                raise
            return
        if not rolled_back:
            self.it.counts["added"] += len(rows)
            (now,) = conn.execute("select clock_timestamp()").fetchone()  # type: ignore[misc]
            self.it.known |= {row.id: now for row in rows if row.sequence_key and not row.deduplicated}
            self.it.by_hand |= {row.id for row, spec in zip(rows, specs, strict=True) if UNRULY & {*spec}}
            self.it.ids += [row.id for row in rows]

    def reports(self, some: list[Any]) -> tuple[list[Any], list[Any], Any]:
        """How these jobs end."""
        done, others = [], []
        for job in some:
            act = self.random.choice(["done"] * 12 + ["fail", "snooze", "release", "discard"])
            if act == "done":
                done.append(job)
            else:
                others.append({"id": str(job.id), "run": str(job.run), "do": act, "error": "e", "delay_s": 0})
        return [job.id for job in done], [job.run for job in done], Jsonb(others) if others else None

    def turn(self, conn: psycopg.Connection[Any], most: int, all_of_them: bool = False) -> None:
        rng = self.random
        if len(self.held) > 6:
            most = 0
        rng.shuffle(self.held)
        some = self.held[: len(self.held) if all_of_them else rng.choice([0, 1, 2, 6])]
        rolled_back = not all_of_them and rng.random() < 0.07
        kinds = rng.choice([None, None, None, ["t"], ["u"]])
        with conn.transaction(force_rollback=rolled_back):
            rows = conn.execute(
                "select * from pyworker.work(%s, %s, %s, null, %s, %s, %s)",
                [self.worker, *self.reports(some), most, kinds],
            ).fetchall()
            if rolled_back:
                conn.execute("select pg_sleep(%s)", [rng.random() * 0.05])
        if not rolled_back:
            self.settled(some, rows)

    def settled(self, some: list[Any], rows: list[Any]) -> None:
        self.held = [job for job in self.held if job not in some]
        self.held += [row for row in rows if row.kind == "job"]
        self.it.counts["claimed"] += sum(row.kind == "job" for row in rows)
        self.it.faults += [
            ("refused", row.id, row.why)
            for row in rows
            if row.kind == "refused" and row.id not in self.it.by_hand
        ]

    def handle(self, conn: psycopg.Connection[Any]) -> None:
        """A handler's own transaction that ends its job, and stays open."""
        job = self.held[0]
        rolled_back = self.random.random() < 0.3
        try:
            with conn.transaction(force_rollback=rolled_back):
                conn.execute("select pyworker.finish_job(%s, %s)", [job.id, job.run])
                conn.execute("select pg_sleep(%s)", [self.random.random() * 0.2])
        except psycopg.Error as error:
            if error.sqlstate != "PW002":
                raise
            if job.id not in self.it.by_hand:
                self.it.faults.append(("refused", job.id, str(error)))
            rolled_back = False
        if not rolled_back:
            self.held = self.held[1:]

    def claim_at_a_higher_level(self, conn: psycopg.Connection[Any]) -> None:
        conn.isolation_level = self.random.choice(
            [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE]
        )
        some = self.held[:1]
        try:
            with conn.transaction():
                conn.execute("select 1")
                conn.execute("select pg_sleep(%s)", [self.random.random() * 0.05])
                rows = conn.execute(
                    "select * from pyworker.work(%s, %s, %s, null, %s, 2)", [self.worker, *self.reports(some)]
                ).fetchall()
            self.settled(some, rows)
        finally:
            conn.isolation_level = None

    def die(self, conn: psycopg.Connection[Any]) -> None:
        """Is killed in the middle of a turn."""
        with conn.transaction():
            some = self.held[:1]
            conn.execute(
                "select * from pyworker.work(%s, %s, %s, null, %s, 2)", [self.worker, *self.reports(some)]
            ).fetchall()
            with self.it.connect() as other:
                other.execute("select pg_terminate_backend(%s)", [conn.info.backend_pid])
            self.it.counts["killed"] += 1
            conn.execute("select 1")


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [12, pytest.param(SECONDS, marks=pytest.mark.torture, id="long")])
def test_the_gate_breaks_no_limit_rate_or_order_and_strands_nothing(
    pg_template: Any, seconds: float, record_property: Any
) -> None:
    with (
        copy_of(pg_template, "gate") as dsn,
        psycopg.connect(dsn, autocommit=True, row_factory=namedtuple_row) as conn,
    ):
        conn.execute(RECORD + SETTINGS)
        conn.execute(TASKS)
        it = Turmoil(dsn, SEED)
        sessions = [Session(it, n) for n in range(SESSIONS)]
        parts = [session.act for session in sessions] + [it.observe, it.operate]
        threads = [threading.Thread(target=it.take_part, args=(part,), daemon=True) for part in parts]
        for thread in threads:
            thread.start()
        with suppress(threading.BrokenBarrierError):
            it.go_on(time.monotonic() + seconds)
        for thread in threads:
            thread.join()
        it.faults += judge(conn, it.known, it.by_hand)
        record_property("figures", json.dumps(it.counts))
        print(f"\n{dict(it.counts)}")
        assert it.faults == []
    assert it.counts["looks"] > 5
