"""Workers that die at random under sweeps: no job is done twice that must not be, none is forgotten."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg.rows import namedtuple_row

from tests.support import SECONDS

# Everything at once -------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [2.0, pytest.param(SECONDS, marks=pytest.mark.torture, id="long")])
def test_workers_that_die_at_random_do_nothing_twice_that_must_not_be_and_forget_nothing(
    api: Any, dsn: str, seconds: float, record_property: Any
) -> None:
    """Killed connections, leases that end, forced unlocks, dead processes, in the midst of
    everything that a worker says."""
    until = time.monotonic() + seconds
    guard = threading.Lock()
    effects: dict[int, list[int]] = defaultdict(list)  # by job: the runs that did what they are for
    accepted: Counter[int] = Counter()
    deaths: Counter[str] = Counter()
    victims: set[int] = set()
    workers: dict[int, int] = {}  # those that may be struck: the backend of each
    added: dict[int, str] = {}
    api.define_task("t", backoff="[0]", max_attempts=25)

    def connect() -> Any:
        return type(api)(psycopg.connect(dsn, autocommit=True, row_factory=namedtuple_row))

    def adder() -> None:
        a, rng = connect(), random.Random(1)
        while time.monotonic() < until:
            specs = [
                {
                    "identifier": "t",
                    "delivery": rng.choice(["at_most_once", "at_least_once"]),
                    "queue_name": rng.choice([None, None, "q1", "q2"]),
                }
                for _ in range(20)
            ]
            jobs = a.add_jobs(specs)
            with guard:
                added.update({job.id: job.delivery for job in jobs})
            if rng.random() < 0.2:
                a.cancel_job(rng.choice(jobs).id, force=True)
            while a.value("select count(*) from pyworker.jobs where state in ('available', 'pending')") > 200:
                a.rows("select pg_sleep(0.005)")
        a.conn.close()

    def over(a: Any) -> bool:
        return time.monotonic() > until and not a.rows(
            "select from pyworker.jobs where state <> 'discarded' limit 1"
        )

    def work(a: Any, me: int, rng: random.Random) -> None:
        """One life."""
        jobs = a.claim_jobs(me, rng.choice([1, 2, 5]))
        if not jobs:
            a.rows("select pg_sleep(0.002)")
        done = []
        for job in jobs:
            word = rng.random()
            if word < 0.05:
                a.release_jobs([job.id], [job.run])
                continue
            if (job.delivery == "at_most_once" or word < 0.3) and not a.start_job(job.id, job.run):
                a.release_jobs([job.id], [job.run])
                continue
            if word < 0.1:
                a.fail(job, not_started=True, delay="0")
                continue
            with guard:
                effects[job.id].append(job.run)
            if word < 0.2:
                a.fail(job, delay="0")
            elif word < 0.4:
                with suppress(psycopg.Error):
                    with a.conn.transaction():
                        a.finish_job(job.id, job.run)
                    with guard:
                        accepted[job.id] += 1
            elif word < 0.42:
                a.reconcile(me, [job.id], [job.run])  # the others of this batch go back
                done.append(job)
            elif word < 0.44:
                a.unregister_worker(me)
                raise EOFError
            elif word < 0.46:
                deaths["process"] += 1
                a.report_crash(me, [job.id for job in jobs], [job.run for job in jobs])
                raise EOFError
            else:
                done.append(job)
        ids = a.finish_jobs([job.id for job in done], [job.run for job in done])
        with guard:
            accepted.update(ids)

    def worker(seed: int) -> None:
        rng = random.Random(seed)
        watch = connect()
        while not over(watch):
            a = connect()
            me = -1
            try:
                with guard:
                    me = a.register_worker()
                    workers[me] = a.conn.info.backend_pid
                if seed % 3:  # every third one lives by its lease
                    assert a.hold_worker_lock(me) or me in victims
                while not over(watch):
                    work(a, me, rng)
                    if not a.heartbeat(me):
                        found = watch.rows("select * from pyworker.workers where id = %s", [me])
                        assert me in victims, f"a live worker was declared dead: {found}"
                        break
                else:
                    a.unregister_worker(me)
            except psycopg.OperationalError:
                assert me in victims or a.conn.closed
            except psycopg.ProgrammingError as error:
                if error.sqlstate != "PW004":  # claim_jobs, reconcile
                    raise
                assert me in victims, "a live worker was declared dead"
            except EOFError:
                pass
            finally:
                with guard:
                    workers.pop(me, None)
                a.conn.close()
        watch.conn.close()

    def reaper() -> None:
        a, rng = connect(), random.Random(2)
        while time.monotonic() < until:
            a.rows("select pg_sleep(0.01)")
            with guard:
                if not workers:
                    continue
                victim, backend = rng.choice(sorted(workers.items()))
                kind = rng.choice(["connection", "lease", "forced", "forced"])
                deaths[kind] += 1
                if kind != "forced":
                    victims.add(victim)
            if kind == "connection":
                a.rows("select pg_terminate_backend(%s)", [backend])
            elif kind == "lease":
                a.rows(
                    "update pyworker.workers set expires_at = pyworker.clock() - interval '1 s' "
                    "where id = %s",
                    [victim],
                )
                a.sweep_workers()  # before it beats again, or it was only late
            else:
                a.force_unlock_workers([str(victim)])
        a.conn.close()

    def sweeper(maintains: bool) -> int:
        a, swept = connect(), 0
        while not over(a):
            swept += ((a.maintain() or {"rescued": 0})["rescued"]) if maintains else a.sweep_workers()
            # Two seconds of suspicion, and the lease of those that never took a lock, pass faster here.
            with guard:
                a.rows(
                    "update pyworker.workers set suspect_since = suspect_since - interval '2.1 s'"
                    # A sweep that looked before a worker took its lock suspects it, until the next one.
                    " where suspect_since < pyworker.clock() - interval '0.3 s'"
                )
                a.rows(
                    "update pyworker.workers set expires_at = pyworker.clock() - interval '1 s'"
                    " where dead_at is null and not (id = any(%s)) and not locked",
                    [sorted(workers)],
                )
            a.rows("select pg_sleep(0.01)")
        a.conn.close()
        return swept

    with ThreadPoolExecutor(10) as threads:
        crew = [
            threads.submit(adder),
            threads.submit(reaper),
            *(threads.submit(sweeper, bool(i)) for i in range(2)),
        ]
        crew += [threads.submit(worker, seed) for seed in range(6)]
        results = [future.result() for future in crew]
    rows = {
        row.id: row
        for row in api.rows(
            "select id, state, reason, run from pyworker.jobs union all select id, state, reason, run "
            "from pyworker.history"
        )
    }
    assert set(rows) == set(added), "every job that was added is somewhere"
    assert max(accepted.values()) == 1
    for job_id, delivery in added.items():
        row, runs = rows[job_id], effects[job_id]
        assert row.state in ("completed", "discarded", "cancelled"), row
        if delivery == "at_most_once":
            assert len(runs) <= 1, (row, runs)
            assert row.state != "completed" or len(runs) == 1, (row, runs)
        assert row.state != "completed" or (runs and row.run == max(runs)), (row, runs)
        assert (row.state == "completed") >= accepted[job_id], row
    fates = Counter(f"{added[row.id]}: {row.reason or row.state}" for row in rows.values())
    figures = (
        f"{len(added)} jobs, {sum(row.run for row in rows.values())} runs, deaths {dict(deaths)}, swept "
        f"{results[2] + results[3]}, "
        f"ends {dict(sorted(fates.items()))}"
    )
    record_property("figures", figures)
    print(f"\n{figures}")
