"""Limits and pauses that change while workers and producers run: no limit is passed, no job is forgotten."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

import psycopg
import pytest

from tests.support import SECONDS

pytestmark = pytest.mark.slow


class Scene(NamedTuple):
    settings: dict[str, int | None]
    fixed: list[str]  # never set again: their limit holds at every moment
    changing: dict[str, list[int | None]]
    added: int  # at once, at most
    most: int  # jobs in all
    claimed: list[int]


FEW_SLOTS = Scene(
    {"one": 1, "three": 3, "f:*": 2, "x": 1, "g:*": 2, "free": None},
    ["one", "three", "f:a", "f:b"],
    {"x": [1, 3, None], "g:a": [2, 4, None], "g:b": [2, 4, None]},
    added=4, most=300, claimed=[1, 3, 10],
)  # fmt: skip
MANY_SLOTS = Scene(  # more than are given ahead
    {"wide": 150, "x": 130, "g:*": 101},
    ["wide"],
    {"x": [30, 130, 1000], "g:a": [99, 101, 103, None]},
    added=150, most=2000, claimed=[1, 40, 250],
)  # fmt: skip

OVER = """
    select j.queue_name, count(*)::integer, q.concurrency, q.paused
    from pyworker.live_jobs j cross join lateral pyworker._queues_of(array[j.queue_name]) q
    where j.queue_name is not null and j.state = 'running' and j.ready_at is not null
        and (j.queue_name = any (%s) or exists (
        select from pyworker.claims c where c.worker_id = j.worker_id and j.id = any (c.job_ids)
            and c.seen > q.changed))
    group by 1, 3, 4
    having count(*) > case when q.paused and j.queue_name <> all (%s) then 0 else q.concurrency end
"""


@pytest.mark.parametrize("seconds", [2.5, pytest.param(SECONDS, marks=pytest.mark.torture, id="long")])
@pytest.mark.parametrize("scene", [FEW_SLOTS, MANY_SLOTS], ids=["few slots", "many slots"])
def test_limits_hold_and_no_job_is_forgotten_while_people_and_workers_change_everything(
    api: Any, dsn: str, scene: Scene, seconds: float, record_property: Any
) -> None:
    """Queues and families with limits and without are paused, resumed and set; jobs fail, snooze, are
    cancelled and unlocked."""
    for name, limit in scene.settings.items():
        api.set_queue(name, limit)
    names = [*scene.fixed, *scene.changing, "free", "default"]
    turmoil, calm = threading.Event(), threading.Event()
    turmoil.set()
    figures: Counter[str] = Counter()

    def adder(api: Any, rng: random.Random) -> None:
        while turmoil.is_set():
            with api.conn.transaction(force_rollback=rng.random() < 0.1):
                name = rng.choice(names)
                if rng.random() < 0.3:
                    api.add_job("t", queue_name=name, job_key=f"k{rng.randrange(4)}", max_attempts=3)
                else:
                    specs = [{"identifier": "t", "queue_name": name, "priority": rng.choice([0, 0, 0, 1])}]
                    figures["added"] += len(api.add_jobs(specs * rng.randint(1, scene.added)))
            while turmoil.is_set() and api.value("select count(*) from pyworker.jobs") > scene.most:
                pass

    def operator(api: Any, rng: random.Random) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            name = rng.choice(names[:-1])
            act = rng.random()
            with api.conn.transaction(force_rollback=rng.random() < 0.2):
                if act < 0.3:
                    api.pause_queue(name)
                elif act < 0.7:
                    api.resume_queue(name)
                elif act < 0.8:
                    name = rng.choice(list(scene.changing))
                    api.set_queue("g:*" if name[0] == "g" else name, rng.choice(scene.changing[name]))
                elif act < 0.95:
                    waiting = api.rows("select id from pyworker.jobs where state <> 'discarded' limit 20")
                    if waiting:
                        figures["cancelled"] += (
                            api.cancel_job(rng.choice(waiting).id, act < 0.9).state == "cancelled"
                        )
                else:
                    if workers := api.rows("select id from pyworker.live_workers"):
                        api.force_unlock_workers([str(rng.choice(workers).id)])
            figures["acts"] += 1
        turmoil.clear()
        for name in names[:-1]:
            api.resume_queue(name)
        calm.set()

    def worker(api: Any, rng: random.Random) -> None:
        me = api.register_worker()
        idle = 0
        left = "select count(*) from pyworker.jobs where state <> 'discarded'"
        while not calm.is_set() or api.value(left):
            jobs = api.claim_jobs(me, rng.choice(scene.claimed))
            idle = 0 if jobs or not calm.is_set() else idle + 1
            assert idle < 2000, "jobs are left that no worker can claim"
            for job in jobs:
                end = rng.random()
                if end < 0.1:
                    api.fail(job, delay=0)
                elif end < 0.15:
                    api.fail(job, discard=True)
                elif end < 0.25:
                    api.release_jobs([job.id], [job.run])
                elif end < 0.35:
                    with suppress(psycopg.ProgrammingError):  # PW002: the claim was lost
                        api.snooze_job(job.id, job.run, "0")
                else:
                    with api.conn.transaction(force_rollback=end < 0.5):
                        figures["finished"] += len(api.finish_jobs([job.id], [job.run]))
                    if end < 0.5:
                        api.finish_jobs([job.id], [job.run])

    def watcher(api: Any, rng: random.Random) -> None:
        while turmoil.is_set():
            assert api.rows(OVER, [scene.fixed, scene.fixed]) == []
            figures["looks"] += 1

    def one(work: Callable[[Any, random.Random], None], seed: int) -> None:
        try:
            with psycopg.connect(dsn, autocommit=True) as conn:
                work(type(api)(conn), random.Random(seed))
        finally:
            if work in (operator, watcher):
                turmoil.clear()
                calm.set()

    with ThreadPoolExecutor(7) as threads:
        at_work = [
            threads.submit(one, work, i) for i, work in enumerate([worker] * 4 + [adder, operator, watcher])
        ]
        for future in at_work:
            future.result()
    record_property("figures", str(dict(figures)))
    print(f"\n{dict(figures)}")
    assert api.rows("select from pyworker.jobs where state <> 'discarded'") == []
    assert figures["looks"] > 5
