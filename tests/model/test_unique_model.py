"""Unique jobs against a model of fifty lines, step by step. For a long run:
PYWORKER_MODEL_EXAMPLES and PYWORKER_MODEL_STEPS."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import psycopg
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.support.states import ALL, ENDED, LIVE, REQUIRED

EXAMPLES = int(os.environ.get("PYWORKER_MODEL_EXAMPLES", "60"))
STEPS = int(os.environ.get("PYWORKER_MODEL_STEPS", "30"))

PERIOD = 2.5  # hours; the clock moves by whole ones, so that nothing is ever due or over at the very instant
DELAY = 1.5


@dataclass(eq=False)
class Job:
    key: Any
    state: str
    created: float
    run_at: float
    recheck: list[str] | None
    id: int = 0
    run: int = 0
    ended: float = 0
    replaced: bool = False


@dataclass
class Model:
    now: float = 0
    jobs: list[Job] = field(default_factory=list)  # in the order of their creation

    def add(self, n: int, policy: dict[str, Any], run_at: float | None) -> tuple[Job | None, bool]:
        """The job that comes of it and whether it was there before; none if it is rejected."""
        river = "by_args" in policy
        states = policy.get("by_state" if river else "states")
        if states is None:
            states = [*REQUIRED, "retryable", *(["completed"] if river else [])]
        conflict = policy.get("on_conflict", "ignore" if river else "reject")
        found = [
            job
            for job in self.jobs
            if job.key == (river, n)
            and job.state in states
            and ("period" not in policy or job.created + PERIOD > self.now)
        ]
        run_at = self.now if run_at is None else run_at
        if found and conflict == "reject":
            return None, True
        if found and conflict == "ignore":
            return ([job for job in found if job.state not in ENDED] or found)[-1], True
        for job in found:
            if job.state not in ENDED:
                if job.state == "scheduled" and conflict == "replace_except_schedule":
                    run_at = job.run_at
                job.state, job.ended, job.replaced = "cancelled", self.now, True
        recheck = states if river and "retryable" not in states else None
        job = Job((river, n), "scheduled" if run_at > self.now else "available", self.now, run_at, recheck)
        self.jobs.append(job)
        return job, False

    def promote(self) -> None:
        due = [job for job in self.jobs if job.state in ("scheduled", "retryable") and job.run_at <= self.now]
        for job in due:
            if job.state == "scheduled" or job.recheck is None:
                job.state = "available"
        for job in sorted((job for job in due if job.state == "retryable"), key=lambda job: job.run_at):
            taken = any(
                other.key == job.key and other is not job and other.state in (job.recheck or [])
                for other in self.jobs
            )
            job.state, job.ended = "discarded" if taken else "available", self.now

    def retry(self, job: Job) -> str | None:
        if job.state == "running":
            return "PW005"
        if job.state in ENDED or job.state == "retryable":
            for other in self.jobs:
                if other.key == job.key and other is not job and other.state not in ENDED:
                    if other.state != "retryable" or other.recheck is None:
                        return "PW003"
        job.state, job.run_at = "available", self.now
        return None

    def prune(self) -> None:
        self.jobs = [
            job
            for job in self.jobs
            if job.state not in ENDED or job.ended + (168 if job.state == "discarded" else 24) > self.now
        ]


conflicts = st.sampled_from(
    [{}, *[{"on_conflict": c} for c in ("reject", "ignore", "replace", "replace_except_schedule")]]
)
ojs_states = st.sampled_from(
    [
        {},
        *[
            {"states": s}
            for s in (ALL, ["available"], ["scheduled"], ["running"], [], [*LIVE, "completed"], ["discarded"])
        ],
    ]
)
river_states = st.sampled_from(
    [
        {},
        *[
            {"by_state": [*REQUIRED, *s]}
            for s in ([], ["retryable"], ["completed"], ["discarded", "cancelled"])
        ],
    ]
)
ojs = st.builds(lambda *parts: {k: v for p in parts for k, v in p.items()}, st.just({"keys": ["args"]}),
    conflicts, ojs_states,
                st.sampled_from([{}, {"period": "PT150M"}]))  # fmt: skip
river = st.builds(
    lambda *parts: {k: v for p in parts for k, v in p.items()},
    st.just({"by_args": True}),
    conflicts,
    river_states,
)
adds = st.tuples(st.integers(0, 1), river | ojs, st.booleans())
numbers = st.integers(0, 1000)


class Machine(RuleBasedStateMachine):
    steps = 0

    def __init__(self, api: Any, clock: Any, worker: int) -> None:
        super().__init__()
        self.api, self.clock, self.worker = api, clock, worker
        for table in ("live_jobs", "finished_jobs", "unique_keys", "errors"):
            api.rows(f"delete from pyworker.{table}")
        self.model = Model()
        self.runs: list[tuple[int, int]] = []  # every claim ever

    def pick(self, number: int, *states: str) -> Job | None:
        jobs = [job for job in self.model.jobs if not states or job.state in states]
        return jobs[number % len(jobs)] if jobs else None

    def sqlstate(self, call: Callable[[], Any]) -> str | None:
        try:
            call()
        except psycopg.Error as error:
            return error.sqlstate
        return None

    def spec(self, n: int, policy: Any, later: bool) -> dict[str, Any]:
        run_at = self.api.at(f"{DELAY} hours").isoformat() if later else None
        return {"identifier": "t", "payload": {"n": n}, "unique_policy": policy, "run_at": run_at}

    def added(self, rows: list[Any], results: list[tuple[Job | None, bool]]) -> None:
        for row, (job, deduplicated) in zip(rows, results, strict=True):
            assert job
            job.id = job.id or row.id
            assert (row.id, row.deduplicated, row.payload) == (job.id, deduplicated, {"n": job.key[1]})

    @rule(add=adds)
    def add_one(self, add: Any) -> None:
        result = self.model.add(add[0], add[1], self.model.now + DELAY if add[2] else None)
        try:
            row = self.api.add_job(**self.spec(*add))
        except psycopg.Error as error:
            if error.sqlstate != "PW003" or result != (None, True):
                raise
            detail = json.loads(str(error.diag.message_detail))
            assert detail["existing_job_state"] == next(
                job.state for job in self.model.jobs if job.id == detail["existing_job_id"]
            )
            return
        self.added([row], [result])

    @rule(specs=st.lists(adds, min_size=1, max_size=4))
    def add_many(self, specs: list[Any]) -> None:
        before, saved = self.model.jobs, [copy(job) for job in self.model.jobs]
        self.model.jobs = list(before)
        results = [
            self.model.add(n, policy, self.model.now + DELAY if later else None) for n, policy, later in specs
        ]
        try:
            rows = self.api.add_jobs([self.spec(*add) for add in specs])
        except psycopg.Error as error:
            if error.sqlstate != "PW003" or (None, True) not in results:
                raise
            for job, was in zip(before, saved, strict=True):
                job.__dict__.update(was.__dict__)
            self.model.jobs = before
            return
        self.added(rows, results)

    @rule(limit=st.integers(1, 3))
    def claim(self, limit: int) -> None:
        self.model.promote()
        ready = {job.id: job for job in self.model.jobs if job.state == "available"}
        rows = self.api.claim_jobs(self.worker, limit)
        assert len(rows) == min(limit, len(ready))
        for row in rows:
            job = ready[row.id]
            assert row.run > job.run
            job.state, job.run = "running", row.run
            self.runs.append((row.id, row.run))

    @rule(hours=st.sampled_from([1, 1, 2, 25, 170]))
    def time_passes(self, hours: int) -> None:
        self.clock.advance(hours=hours)
        self.model.now += hours

    @rule()
    def promote(self) -> None:
        self.api.promote_jobs()
        self.model.promote()

    @precondition(lambda self: self.pick(0, "running"))
    @rule(number=numbers, how=st.sampled_from(["finish", "fail", "fail", "discard", "snooze", "release"]))
    def end_of_a_run(self, number: int, how: str) -> None:
        job = self.pick(number, "running")
        assert job
        if how == "finish":
            assert self.api.finish_jobs([job.id], [job.run]) == [job.id]
            job.state, job.ended = "completed", self.model.now
        elif how in ("fail", "discard"):
            more = {"discard": True} if how == "discard" else {"delay": f"{DELAY} hours"}
            assert self.api.fail(job, **more) == [job.id]
            job.state, job.ended, job.run_at = (
                "discarded" if how == "discard" else "retryable",
                self.model.now,
                self.model.now + DELAY,
            )
        elif how == "snooze":
            self.api.snooze_job(job.id, job.run, f"{DELAY} hours")
            job.state, job.run_at = "scheduled", self.model.now + DELAY
        else:
            assert self.api.release_jobs([job.id], [job.run]) == [job.id]
            job.state = "available"

    @precondition(lambda self: self.model.jobs)
    @rule(number=numbers, verb=st.sampled_from(["cancel", "retry", "retry", "delete"]))
    def a_person_steps_in(self, number: int, verb: str) -> None:
        job = self.pick(number)
        assert job
        if verb == "cancel":
            self.api.cancel_job(job.id, True)
            if job.state not in ENDED:
                job.state, job.ended = "cancelled", self.model.now
        elif verb == "retry":
            assert self.sqlstate(lambda: self.api.retry_job(job.id)) == self.model.retry(job)
        else:
            assert self.sqlstate(lambda: self.api.delete_job(job.id)) == (
                "PW005" if job.state == "running" else None
            )
            if job.state != "running":
                self.model.jobs.remove(job)

    @rule()
    def prune(self) -> None:
        self.api.prune()
        self.model.prune()

    @precondition(lambda self: self.runs)
    @rule(number=numbers)
    def a_late_word(self, number: int) -> None:
        job_id, run = self.runs[number % len(self.runs)]
        if not any((job.id, job.run, job.state) == (job_id, run, "running") for job in self.model.jobs):
            assert self.api.finish_jobs([job_id], [run]) == []

    @invariant()
    def the_database_agrees(self) -> None:
        Machine.steps += 1
        rows = self.api.rows(
            """select j.id, j.state, j.run, j.reason = 'replaced' as replaced,
                     encode(k.unique_key, 'hex') = j.unique_key as ledger
               from (select * from pyworker.jobs union all select * from pyworker.history) j
               full join pyworker.unique_keys k on encode(k.unique_key, 'hex') = j.unique_key order by j.id"""
        )
        ours = [(row.id, row.state, row.run, bool(row.replaced)) for row in rows]
        assert ours == sorted(
            (j.id, j.state, j.run, j.replaced and j.state == "cancelled") for j in self.model.jobs
        )
        assert all(row.ledger for row in rows)  # a row for each key that some job has, and no other


def test_unique_jobs_behave_like_their_model(api: Any, clock: Any, worker: int) -> None:
    Machine.steps = 0
    run_state_machine_as_test(
        lambda: Machine(api, clock, worker),
        settings=settings(
            max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, database=None,
            derandomize=EXAMPLES == 60,
            suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip
    print(f"{Machine.steps} steps")
