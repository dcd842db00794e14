"""Unique adds from many sessions at once: each key has one live job, and no session meets a deadlock."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.support.sessions import LEVELS
from tests.support.unique_races import IGNORE, OPEN, REJECT, REPLACE, spec


# Swarms
def swarm(
    dsn: str, sessions: int, work: Callable[[psycopg.Connection[Any], random.Random, int], None]
) -> None:
    """work(conn, rng, n) at once in that many sessions."""

    def run(n: int) -> None:
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("set lock_timeout = '15s'")
            work(conn, random.Random(n), n)

    with ThreadPoolExecutor(sessions) as pool:
        for future in [pool.submit(run, n) for n in range(sessions)]:
            future.result()


def race(dsn: str, api: Any, level: str, sessions: int, rounds: int) -> Counter[str]:
    """Each round, all sessions add the same key, and half of them roll back or are killed."""
    barrier = threading.Barrier(sessions, timeout=60)
    log: list[tuple[int, str, str, int | None]] = []  # round, policy, outcome, job

    def work(_: psycopg.Connection[Any], rng: random.Random, n: int) -> None:
        conn = psycopg.connect(dsn)
        watch = psycopg.connect(dsn, autocommit=True)
        for turn in range(rounds):
            policy = rng.choice([REJECT, IGNORE, REPLACE])
            fate = rng.choice(["commit", "commit", "commit", "rollback", "rollback", "kill"])
            conn.execute(
                f"begin isolation level {level}"
                if conn.autocommit
                else f"set transaction isolation level {level}"
            )
            conn.execute("select 1 from pg_class limit 1")  # the snapshot is older than the others' adds
            barrier.wait()
            job_id = None
            try:
                row = conn.execute(
                    "select id, deduplicated from pyworker.add_job('t', %s, unique_policy => %s)",
                    [Jsonb({"n": turn}), Jsonb(policy)],
                ).fetchone()
                assert row
                job_id, deduplicated = row
                what = "skipped" if deduplicated else "added"
                if fate == "kill":
                    watch.execute("select pg_terminate_backend(%s, 10000)", [conn.info.backend_pid])
                else:
                    conn.commit() if fate == "commit" else conn.rollback()
                what += "" if fate == "commit" else f", {fate}"
            except psycopg.Error as error:
                if error.sqlstate not in ("PW003", "40001"):
                    raise
                what = error.sqlstate
                conn.rollback()
            if conn.closed or fate == "kill":
                conn.close()
                conn = psycopg.connect(dsn)
            log.append((turn, policy["on_conflict"], what, job_id))
        conn.close()
        watch.close()

    swarm(dsn, sessions, work)
    rows = api.rows("select (payload ->> 'n')::int as n, id, state from pyworker.live_jobs union all "
                    "select (payload ->> 'n')::int, id, state from pyworker.finished_jobs")  # fmt: skip
    for turn in range(rounds):
        added = {job for t, _, what, job in log if (t, what) == (turn, "added")}
        assert {
            row.id for row in rows if row.n == turn
        } == added  # what committed is there, what did not is not
        assert [row.state for row in rows if row.n == turn].count("available") == bool(added), (turn, log)
        seen = {job for t, _, what, job in log if (t, what) == (turn, "skipped")}
        assert seen <= added
        if not added:  # no job gave way to one that never came
            whats = [what for t, _, what, _ in log if t == turn]
            assert all(what.startswith("added, ") for what in whats), whats
    return Counter(what for _, _, what, _ in log)


@pytest.mark.parametrize("level", LEVELS)
def test_however_many_add_at_once_and_however_they_end_one_live_job_comes_of_it(
    api: Any, dsn: str, level: str
) -> None:
    print(level, dict(race(dsn, api, level, sessions=7, rounds=40)))


@pytest.mark.torture
@pytest.mark.parametrize("level", LEVELS)
def test_one_live_job_comes_of_it_for_a_long_time(api: Any, dsn: str, level: str) -> None:
    print(level, dict(race(dsn, api, level, sessions=8, rounds=1500)))


def turmoil(dsn: str, api: Any, worker: int, sessions: int, steps: int) -> Counter[str]:
    """Everything at once on three keys: never two live jobs of a key, and no session deadlocks."""
    api.maintain()  # history's partitions: their making is not what is tried here
    counts: Counter[str] = Counter()
    doubled = (
        f"select unique_key from pyworker.live_jobs where state in {OPEN} "
        f"group by unique_key having count(*) > 1"
    )

    def work(conn: psycopg.Connection[Any], rng: random.Random, n: int) -> None:
        for _ in range(steps):
            ids = [
                row[0]
                for row in conn.execute(
                    "select id from pyworker.jobs union all select id from pyworker.history limit 40"
                )
            ]
            some = rng.sample(ids, min(len(ids), 3))
            verb = rng.choice(
                [
                    "add",
                    "add",
                    "bulk",
                    "bulk",
                    "work",
                    "work",
                    "cancel_job",
                    "retry_jobs",
                    "retry_job",
                    "delete_job",
                    "prune",
                    "worker dies",
                ]
            )
            try:
                if verb == "add":
                    conn.execute("begin isolation level " + rng.choice(LEVELS))
                    for _ in range(rng.choice([1, 1, 2])):
                        conn.execute("savepoint s")
                        try:
                            args = [Jsonb({"n": n % 3}), Jsonb(rng.choice([REJECT, IGNORE, REPLACE]))]
                            conn.execute("select pyworker.add_job('t', %s, unique_policy => %s)", args)
                        except psycopg.errors.RaiseException:
                            conn.execute("rollback to s")
                    conn.execute(rng.choice(["commit", "commit", "rollback"]))
                elif verb == "bulk":
                    specs = [spec(rng.choice([IGNORE, REPLACE]), rng.randrange(3)) for _ in range(4)]
                    conn.execute("select pyworker.add_jobs(%s::jsonb)", [Jsonb(specs)])
                elif verb == "work":
                    with conn.transaction():
                        jobs = conn.execute(
                            "select id, run from pyworker.claim_jobs(%s, 3)", [worker]
                        ).fetchall()
                    if rng.random() < 0.7:
                        conn.execute(
                            "select pyworker.finish_jobs(%s, %s)",
                            [[j[0] for j in jobs], [j[1] for j in jobs]],
                        )
                    else:
                        failures = [
                            {"id": j[0], "run": j[1], "error": "e", "discard": rng.random() < 0.5}
                            for j in jobs
                        ]
                        conn.execute("select pyworker.fail_jobs(%s)", [Jsonb(failures)])
                elif verb == "retry_jobs":
                    conn.execute("select pyworker.retry_jobs(%s::bigint[])", [some])
                elif verb == "prune":
                    conn.execute("select pyworker.maintain()")
                elif verb == "worker dies":
                    conn.execute("select pyworker.force_unlock_workers(array[%s::text])", [worker])
                elif some:
                    conn.execute(f"select pyworker.{verb}(%s)", some[:1])
                counts[verb] += 1
            except psycopg.Error as error:
                conn.rollback()
                if error.sqlstate not in ("PW003", "PW004", "PW005", "40001"):
                    raise
                counts[str(error.sqlstate)] += 1
            assert conn.execute(doubled).fetchall() == []

    swarm(dsn, sessions, work)
    return counts


def test_in_all_turmoil_no_key_has_two_live_jobs_and_no_session_deadlocks(
    api: Any, dsn: str, worker: int
) -> None:
    print(dict(turmoil(dsn, api, worker, sessions=6, steps=60)))


@pytest.mark.torture
def test_in_long_turmoil_no_key_has_two_live_jobs_and_no_session_deadlocks(
    api: Any, dsn: str, worker: int
) -> None:
    print(dict(turmoil(dsn, api, worker, sessions=8, steps=3000)))
