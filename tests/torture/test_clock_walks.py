"""Random walks of one session through all that depends on time, while its clock jumps forward and back:
rates, turns, schedules, delays, expiry, periods of uniqueness, waits with a timeout, leases.

    PYWORKER_WALKS=1000 PYWORKER_SEED=7 pytest -s tests/torture/test_clock_walks.py
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from datetime import datetime, timedelta
from itertools import accumulate, pairwise
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

pytestmark = pytest.mark.slow

WALKS = int(os.environ.get("PYWORKER_WALKS", "1"))
SEED = os.environ.get("PYWORKER_SEED", "3")
STEPS = 200
RATE, PERIOD = 3, timedelta(seconds=10)
REFUSED = ("PW001", "PW002", "PW003", "PW004", "PW005")
SETUP = f"""
    select pyworker.set_queue('rated', null, {RATE}, '{PERIOD.total_seconds()} s');
    select pyworker.set_queue('rated and fair:*', 2, {RATE}, '{PERIOD.total_seconds()} s', true);
    select pyworker.define_task('t', backoff => '["5 s"]', max_attempts => 30000);
    select pyworker.define_task('once', backoff => '["5 s"]', delivery => 'at_most_once');
    select pyworker.configure(completed_retention => '30 days', cancelled_retention => '30 days',
        discarded_retention => '30 days');
    select pyworker.add_schedule('ticks', '* * * * *', 't', '{{"tick": true}}', backfill => '10 days')"""


class Walk:
    def __init__(self, api: Any, seed: str) -> None:
        self.api, self.rng = api, random.Random(seed)
        self.offset = self.furthest = 0.0
        self.held: dict[int, list[Any]] = defaultdict(list)  # by worker
        self.workers: list[int] = []
        self.runs: dict[int, int] = {}
        self.starts: dict[str, list[datetime]] = defaultdict(list)
        self.jobs = [1]
        for sql in SETUP.split(";\n"):
            api.rows(sql)

    def step(self) -> None:
        deeds = [self.add] * 10 + [self.claim] * 5 + [self.report] * 4 + [self.jump] * 3
        deeds += [self.beat, self.die, self.tick, self.maintain, self.signal, self.cancel, self.retry]
        deed = self.rng.choice(deeds)
        try:
            deed()
        except psycopg.Error as error:
            if error.sqlstate not in REFUSED:
                raise
        self.api.sweep_workers()
        assert self.api.rows("select * from pyworker._invariants()") == [], deed

    def add(self) -> None:
        rng = self.rng
        named: dict[str, Any] = {"priority": rng.randrange(2)}
        match rng.randrange(10):
            case 0 | 1:
                named["queue_name"] = "rated"
            case 2:
                named["queue_name"] = f"rated and fair:{rng.randrange(3)}"
            case 3:
                named["queue_name"] = "serial"
            case 4:
                goes_on = {"continue_on_cancelled": True, "continue_on_discarded": True}
                named["sequence_policy"] = Jsonb({"key": f"s{rng.randrange(2)}", **goes_on})
            case 5:
                named |= {"job_key": f"k{rng.randrange(2)}", "max_wait": timedelta(seconds=rng.randrange(60))}
            case 6:
                named["unique_policy"] = Jsonb({"by_period": "1 minute", "by_args": True})
            case 7:
                named["depends_on"] = Jsonb([{"id": rng.choice(self.jobs), "on": "end"}])
        if rng.random() < 0.3:
            named["run_at"] = self.api.at(f"{rng.uniform(-60, 120)} s")
        if rng.random() < 0.2:
            named["expires_at"] = self.api.at(f"{rng.uniform(1, 300)} s")
        job = self.api.add_job(rng.choice(["t", "t", "t", "once"]), "{}", **named)
        self.jobs.append(job.id)

    def worker(self) -> int:
        if len(self.workers) < 2:
            self.workers.append(self.api.register_worker())
        return self.rng.choice(self.workers)

    def claim(self) -> None:
        me, now = self.worker(), self.api.at()
        try:
            jobs = self.api.claim_jobs(me, self.rng.choice([1, 2, 10]))
        except psycopg.errors.DatabaseError:  # it was declared dead
            self.forget(me)
            raise
        for job in jobs:
            assert job.run > self.runs.get(job.id, 0), "a run that is not larger than the one before"
            self.runs[job.id] = job.run
            self.held[me].append(job)
            row = self.api.rows("select * from pyworker.live_jobs where id = %s", [job.id])[0]
            assert row.start_by is None or row.start_by > now or job.attempts > 1, "it had expired"
            if (row.queue_name or "").startswith("rated"):
                self.starts[row.queue_name].append(row.claimed_at)
            if job.delivery == "at_most_once":
                self.api.start_job(job.id, job.run)

    def forget(self, me: int) -> None:
        self.workers.remove(me)
        self.held.pop(me, None)

    def report(self) -> None:
        if not any(self.held.values()):
            return
        me = self.rng.choice([worker for worker, jobs in self.held.items() if jobs])
        job = self.held[me].pop(self.rng.randrange(len(self.held[me])))
        match self.rng.randrange(7):
            case 0:
                self.api.fail(job)
            case 1:
                self.api.snooze_job(job.id, job.run, f"{self.rng.uniform(0, 30)} s")
            case 2:
                self.api.release_jobs([job.id], [job.run])
            case 3 if job.delivery != "at_most_once":
                timeout = self.rng.choice([None, "30 s"])
                self.api.rows(
                    "select pyworker.wait_for_signal(%s, %s, 'go', %s::interval)", [job.id, job.run, timeout]
                )
            case _:
                self.api.finish_jobs([job.id], [job.run])

    def jump(self) -> None:
        far = self.rng.choice([1, 10, 60, 600, 3600])
        self.set_clock(max(-7200.0, self.offset + self.rng.uniform(-far, far * 1.2)))

    def set_clock(self, offset: float) -> None:
        self.offset, self.furthest = offset, max(self.furthest, offset)
        self.api.rows(f"set pyworker.clock_offset = '{offset} seconds'")

    def beat(self) -> None:
        self.api.rows("select * from pyworker.beat(%s)", [self.worker()])

    def die(self) -> None:
        """It is not heard of again."""
        self.forget(self.worker())

    def tick(self) -> None:
        self.api.run_schedules()

    def maintain(self) -> None:
        self.api.maintain()

    def signal(self) -> None:
        self.api.send_signal(self.rng.choice(self.jobs), "go", "1")

    def cancel(self) -> None:
        self.api.cancel_job(self.rng.choice(self.jobs))

    def retry(self) -> None:
        self.api.retry_job(self.rng.choice(self.jobs))

    def end(self) -> None:
        """By the latest time that there was, and later, all jobs end."""
        self.set_clock(self.furthest)
        for me in list(self.workers):
            self.forget(me)
        live = "select id from pyworker.live_jobs where state <> 'discarded' and task_identifier <> 'tick'"
        for _ in range(2000):
            self.set_clock(self.offset + 15)
            self.api.sweep_workers()
            for row in self.api.rows("select id from pyworker.live_jobs where parked = 'signal'"):
                self.api.send_signal(row.id, "go", "1")
            if self.rng.random() < 0.05:
                self.api.maintain()
            self.claim_all()
            if not self.api.rows(live):
                break
        else:
            raise AssertionError(self.api.rows("select * from pyworker.live_jobs where state <> 'discarded'"))

    def claim_all(self) -> None:
        try:
            self.claim()
        except psycopg.errors.DatabaseError as error:
            if error.sqlstate != "PW004":  # it was declared dead
                raise
        for jobs in self.held.values():
            self.api.finish_jobs([job.id for job in jobs], [job.run for job in jobs])
            jobs.clear()

    def judge(self) -> None:
        for queue, times in self.starts.items():
            times = list(accumulate(times, max))  # one before an earlier one counts from the time of that one
            for first, after in zip(times, times[RATE:], strict=False):
                assert after - first >= PERIOD, f"{queue}: {RATE + 1} starts in {after - first}"
        self.api.run_schedules()
        ticks = self.api.rows(
            "select payload::jsonb #>> '{_cron,ts}' as ts from (select id, payload::text from "
            "pyworker.live_jobs union all select id, payload::text from pyworker.finished_jobs) j "
            "where payload::jsonb ? 'tick' order by 1"
        )
        dues = [datetime.fromisoformat(row.ts) for row in ticks]
        gaps = {later - sooner for sooner, later in pairwise(dues)}
        starts = sum(map(len, self.starts.values()))
        print(f"{len(self.jobs)} jobs, {len(self.runs)} ran, {starts} rated starts, {len(dues)} ticks")
        assert gaps <= {timedelta(minutes=1)}, f"ticks are lost or doubled: {gaps}"


@pytest.mark.parametrize("walk", range(WALKS))
def test_a_clock_that_jumps_breaks_no_rate_loses_no_tick_and_strands_no_job(api: Any, walk: int) -> None:
    print(f"PYWORKER_SEED={SEED}")
    one = Walk(api, f"{SEED} {walk}")
    try:
        for _ in range(STEPS):
            one.step()
        one.end()
        one.judge()
    finally:
        api.rows("reset pyworker.clock_offset")
