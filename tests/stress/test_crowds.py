"""Many sessions at once: no keyed add is ever lost, and a queue never runs two jobs nor forgets one.

The long versions: pytest -m torture, with PYWORKER_TORTURE_SECONDS (30 by default) for each."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.support.crowd import LONG, Crowd


@pytest.mark.parametrize("failing", [False, True], ids=["all succeed", "some fail"])
@pytest.mark.parametrize("rounds", [150, LONG])
def test_no_keyed_add_is_lost_between_adders_and_workers(
    api: Any, dsn: str, rounds: int | None, failing: bool, record_property: Any
) -> None:
    """Graphile Worker loses 16.5 % of the adds here."""
    crowd = Crowd(api, dsn, rounds)
    keys = [f"k{i}" for i in range(5)]

    def adder(api: Any, rng: random.Random) -> list[str]:
        added = []
        me = threading.get_ident()
        for i in crowd.again():
            count = rng.choice([1, 1, 1, 3])
            specs = [
                {
                    "identifier": "t",
                    "payload": [f"{me}/{i}/{n}"],
                    "job_key": rng.choice(keys),
                    "job_key_mode": rng.choice(["replace", "preserve_run_at"]),
                }
                for n in range(count)
            ]
            level = rng.choice(["read committed", "read committed", "repeatable read", "serializable"])
            while True:
                try:
                    with api.conn.transaction():
                        api.rows(f"set transaction isolation level {level}")
                        if count > 1:
                            jobs = api.add_jobs(specs)
                        else:
                            jobs = [api.add_job(**{**specs[0], "payload": json.dumps(specs[0]["payload"])})]
                    break
                except psycopg.errors.SerializationFailure:
                    assert level != "read committed"
            assert [job.payload[-1] for job in jobs] == [spec["payload"][0] for spec in specs]
            added += [spec["payload"][0] for spec in specs]
        return added

    def worker(api: Any, rng: random.Random) -> None:
        me = api.register_worker()
        while crowd.adding.is_set():
            for job in api.claim_jobs(me, rng.choice([1, 2, 5])):
                end = rng.random() if failing else 1
                if end < 0.15:
                    api.fail(job, delay=0)
                elif end < 0.25:
                    api.release_jobs([job.id], [job.run])
                elif end < 0.3:
                    api.snooze_job(job.id, job.run, "0")
                else:
                    assert api.finish_jobs([job.id], [job.run]) == [job.id]
        api.unregister_worker(me)

    added = [element for elements in crowd.run([adder] * 4, [worker] * 3) for element in elements]
    rows = api.rows(
        "select state, reason, payload from pyworker.live_jobs union all"
        " select state, reason, payload from pyworker.finished_jobs".replace(
            "payload from", "payload::jsonb from"
        )
    )
    seen = Counter(element for row in rows for element in row.payload)
    fate = Counter(row.reason or row.state for row in rows)
    record_property(
        "figures", f"{len(added)} elements added, {len(set(added) - set(seen))} lost, jobs: {dict(fate)}"
    )
    print(
        f"\n4 adders x 3 workers: {len(added)} elements added, {len(set(added) - set(seen))} lost, jobs: "
        f"{dict(fate)}"
    )
    assert seen == Counter(added), "each element is in exactly one job"
    assert set(fate) <= ({"completed", "available", "superseded"} if failing else {"completed", "available"})


@pytest.mark.parametrize("rounds", [60, LONG])
def test_claims_reports_and_bulk_adds_onto_the_same_jobs_do_not_deadlock(
    api: Any, dsn: str, rounds: int | None, record_property: Any
) -> None:
    """A worker reports and claims in one transaction; SKIP LOCKED itself may wait, for a row that
    has just changed."""
    crowd = Crowd(api, dsn, rounds)
    specs = [{"identifier": "t", "job_key": f"k{n}"} for n in range(12)]

    def adder(api: Any, rng: random.Random) -> int:
        return sum(len(api.add_jobs(rng.sample(specs, 12))) for _ in crowd.again())

    def worker(api: Any, rng: random.Random) -> None:
        me = api.register_worker()
        jobs: list[Any] = []
        while crowd.adding.is_set():
            with api.conn.transaction():
                match rng.randrange(3):
                    case 0:
                        api.finish_jobs([job.id for job in jobs], [job.run for job in jobs])
                    case 1:
                        api.fail_jobs(Jsonb([{"id": job.id, "run": job.run, "delay": "0"} for job in jobs]))
                    case _:
                        api.release_jobs([job.id for job in jobs], [job.run for job in jobs])
                jobs = api.claim_jobs(me, 10)
        api.unregister_worker(me)

    added = sum(crowd.run([adder] * 5, [worker] * 2))
    record_property("figures", f"{added} keyed adds in bulk, no deadlock")


@pytest.mark.parametrize("rounds", [100, LONG])
def test_queues_stay_serial_and_forget_no_job(
    api: Any, dsn: str, rounds: int | None, invariants: Any, record_property: Any
) -> None:
    crowd = Crowd(api, dsn, rounds)
    running: dict[str, int] = {}
    guard = threading.Lock()
    api.define_task("t", backoff="[0]", max_attempts=32767)

    def adder(api: Any, rng: random.Random) -> int:
        for _ in crowd.again():
            queue = f"q{rng.randrange(10)}"
            with api.conn.transaction(force_rollback=rng.random() < 0.1):
                if rng.random() < 0.3:
                    api.add_job("t", queue_name=queue, job_key=f"k{rng.randrange(4)}")
                else:
                    api.add_jobs(
                        [{"identifier": "t", "queue_name": queue, "priority": rng.randrange(3)}]
                        * rng.randrange(1, 4)
                    )
        return 0

    def worker(api: Any, rng: random.Random) -> None:
        me = api.register_worker()
        idle = 0
        while crowd.adding.is_set() or api.rows("select from pyworker.jobs limit 1"):
            api.heartbeat(me)
            jobs = api.claim_jobs(me, rng.choice([1, 3, 10]))
            idle = 0 if jobs or crowd.adding.is_set() else idle + 1
            assert idle < 2000, "jobs are left that no worker can claim"
            for job in jobs:
                with guard:
                    assert job.queue_name not in running, "two jobs of one queue at once"
                    running[job.queue_name] = job.id
            for job in jobs:
                with guard:  # from here on the next one may start
                    del running[job.queue_name]
                end = rng.random()
                if end < 0.1:
                    api.fail(job)
                elif end < 0.15:
                    api.snooze_job(job.id, job.run, "0")
                elif end < 0.2:
                    api.release_jobs([job.id], [job.run])
                elif end < 0.5:
                    with api.conn.transaction(force_rollback=end < 0.25):
                        api.finish_job(job.id, job.run)
                    if end < 0.25:
                        api.finish_jobs([job.id], [job.run])
                else:
                    api.finish_jobs([job.id], [job.run])

    def watcher(api: Any, rng: random.Random) -> None:
        while crowd.adding.is_set():
            invariants(api.conn)

    crowd.run([adder] * 3, [worker] * 4 + [watcher])
    (ends,) = api.rows("select count(*) as jobs, sum(run) as runs from pyworker.history")
    record_property("figures", f"{ends.jobs} jobs in 10 queues, {ends.runs} runs")
    print(
        f"\n3 adders x 4 workers: {ends.jobs} jobs in 10 queues, {ends.runs} runs, none overlapping, none "
        f"stranded"
    )
    assert api.rows("select from pyworker.jobs") == []
