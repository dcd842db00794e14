"""The machine's rules for jobs that wait for jobs and for signals, and for what they have done."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from psycopg.types.json import Jsonb

from tests.model.calls import Calls
from tests.model.model import Model
from tests.model.state import HALF, HOUR, Job
from tests.model.strategies import conditions, numbers, specs
from tests.support.api import ids

# What the public view and functions show of the jobs that are there, in one query.
SHOWN = """
    with j as materialized (select id from pyworker.jobs union all select id from pyworker.history)
    select 'dependencies' as what, jsonb_build_array(job_id, depends_on, ref, condition, state) as row
    from pyworker.dependencies
    union all
    select 'results', jsonb_build_array(j.id, r.id, r.ref, r.state, r.result)
    from j cross join lateral pyworker.dependency_results(j.id) r
    union all
    select 'steps', jsonb_build_array(j.id, s.name, s.result, s.run)
    from j cross join lateral pyworker.get_steps(j.id) s
    union all
    select 'signals', jsonb_build_array(j.id, s.name, s.payload)
    from j cross join lateral pyworker.job_signals(j.id) s
"""
BATCH = "select * from pyworker.add_batch(%s, %s, %s)"
EXTEND = "select * from pyworker.extend_batch(%s, %s)"
WAIT = "select pyworker.wait_for_signal(%s, %s, %s, %s)::text"

with_a_job = precondition(lambda self: self.model.jobs)


class Together(Calls, RuleBasedStateMachine):
    claim: Callable[[int, int], None]
    time_passes: Callable[[int, int | None], None]

    @rule(many=st.lists(specs, max_size=3), callback=specs, on=conditions)
    def add_batch(self, many: list[dict[str, Any]], callback: dict[str, Any], on: str) -> None:
        many = self.call(many, False)
        callback = self.timed({k: v for k, v in callback.items() if k not in ("after", "on_unmet")})
        ids = list(range(10**9, 10**9 + len(many) + 1))
        sent = [Jsonb([self.arguments(spec) for spec in many]), Jsonb(self.arguments(callback)), on]
        placed = self.model.placed()
        self.added(
            *self.both(lambda m: m.add_batch(many, callback, on, ids), lambda: self.api.rows(BATCH, sent))
        )
        self.settle(placed=placed)

    @precondition(lambda self: any(job.held == "unmet" for job in self.model.jobs))
    @rule(number=numbers, many=st.lists(specs, max_size=3), forwards=st.booleans())
    def extend_batch(self, number: int, many: list[dict[str, Any]], forwards: bool) -> None:
        waiting = [job.id for job in self.model.live("pending") if job.held == "unmet"]
        callback = waiting[number % len(waiting)] if number % 7 else self.any_job(number)
        job = self.model.get(callback)
        if job and len({(e.condition, e.cancels) for e in job.edges}) > 1:
            return  # no batch
        many = self.call(many, forwards)
        ids = list(range(10**9, 10**9 + len(many)))
        sent = [callback, Jsonb([self.arguments(spec) for spec in many])]
        placed = self.model.placed()
        self.added(
            *self.both(lambda m: m.extend_batch(callback, many, ids), lambda: self.api.rows(EXTEND, sent))
        )
        self.settle(placed=placed)

    def settle(self, ended: int = 0, placed: set[Any] | None = None) -> None:
        """Promote what may go on, and what follows from it. One promotion does that, unless it cancels
        jobs that others wait for, or has `ended` some. `placed`: in sequences, before the last call."""
        before = self.model.placed() if placed is None else placed
        cancelled, _ = self.both(Model.promote, self.api.promote_jobs)
        for _ in range(2 * (cancelled + ended)):
            self.api.promote_jobs()
        if cancelled or placed is not None:
            rows = self.api.rows("select sequence_key, running from pyworker.sequences where running > 0")
            self.model.follow({row[0]: row[1] for row in rows}, before)

    def prepare_claim(self) -> int:
        """A claim promotes, or does not; an expired job it hands out in no case. Promote first if that
        changes which jobs it takes, in more than one step. Returns how many expired jobs are left."""
        self.model.now = self.api.at()
        later = deepcopy(self.model)
        late = len(later.late())
        ended = later.promote()
        ready, then = ([job.id for job in m.ready()] for m in (self.model, later))
        if ended > late or (late and ready != then):
            self.settle()
            return 0
        return late

    @precondition(lambda self: self.model.awaited_jobs())
    @rule(
        number=numbers, how=st.sampled_from(["completed", "completed", "discarded", "cancelled", "deleted"])
    )
    def end_what_others_wait_for(self, number: int, how: str) -> None:
        jobs = self.model.awaited_jobs()
        self.end(jobs[number % len(jobs)], how)

    @precondition(lambda self: any(job.held == "unmet" for job in self.model.jobs))
    @rule(number=numbers)
    def let_a_job_go_on(self, number: int) -> None:
        """All that a job waits for ends as it must, and a worker claims what may run then."""
        waiting = [job for job in self.model.live("pending") if job.held == "unmet"]
        job_id = waiting[number % len(waiting)].id
        for edge in waiting[number % len(waiting)].edges:
            parent = self.model.get(edge.parent.id)
            if edge.met or not parent:
                continue
            if parent.ended_as():
                self.same(lambda m, j=parent.id: m.retry(j), lambda j=parent.id: self.api.retry_job(j).state)
                parent = self.model.known(parent.id)
            if not parent.ended_as():
                self.end(parent, "discarded" if edge.condition == "failure" else "completed")
        self.settle()
        job = self.model.get(job_id)
        if job and job.state == "scheduled" and job.run_at <= self.model.now + 4 * HOUR:
            self.time_passes(4, None)
        self.claim(1, 9)

    def end(self, job: Job, how: str) -> None:
        """By its worker, if it runs."""
        run, runs = (job.id, job.run), job.state == "running"
        failure = {"id": job.id, "run": job.run, "error": "e", "discard": True}
        if how == "cancelled" or (how == "deleted" and runs):
            self.same(lambda m: m.cancel(job.id, True), lambda: self.api.cancel_job(job.id, True).state)
        elif how == "deleted":
            self.same(lambda m: m.delete(job.id), lambda: self.api.delete_job(job.id) and None)
        elif runs and how == "completed":
            self.same(lambda m: m.finish([run]), lambda: self.api.finish_jobs([job.id], [job.run]))
        elif runs:
            self.same(lambda m: m.fail([failure]), lambda: self.api.fail_jobs([failure]))
        elif how == "completed":
            self.same(lambda m: m.complete([job.id]), lambda: ids(self.api.complete_jobs([job.id])))
        else:
            self.same(
                lambda m: m.fail_for_good([job.id], "e"),
                lambda: ids(self.api.permanently_fail_jobs([job.id], "e")),
            )

    @with_a_job
    @rule(
        what=st.sampled_from(["step", "wait", "wait", "signal"]),
        number=numbers,
        timeout=st.sampled_from([None, HALF, None, HALF, timedelta(0), -HALF]),
        value=st.sampled_from([None, 1, {"by": "ann"}]),
    )
    def step_or_signal(self, what: str, number: int, timeout: timedelta | None, value: Any) -> None:
        name = "x" if self.theme == "signal" or number % 3 else "y"
        if what == "signal":
            waiting = [job.id for job in self.model.waiting_for_signals()]
            job = waiting[number % len(waiting)] if waiting and number % 3 else self.any_job(number)
            self.send(job, name, value)
            return
        if not self.model.live("running"):
            self.claim(number, 9)
        run = self.run(number)
        if what == "step":
            self.same(
                lambda m: m.save_step(*run, name, value),
                lambda: self.api.save_step(*run, name, Jsonb(value)) or None,
            )
        else:
            self.wait_for(*run, name, timeout)

    def send(self, job_id: int, name: str, value: Any) -> None:
        self.same(
            lambda m: m.send(job_id, name, value),
            lambda: self.api.send_signal(job_id, name, Jsonb(value)),
        )

    def wait_for(self, job_id: int, run: int, name: str, timeout: timedelta | None) -> None:
        self.same(
            lambda m: m.wait_for(job_id, run, name, timeout),
            lambda: self.answer(job_id, run, name, timeout),
        )

    def answer(self, *wait: Any) -> Any:
        """In a list, to tell JSON null from none."""
        answer = self.api.value(WAIT, wait)
        return None if answer is None else [json.loads(answer)]

    def compare_coordination(self) -> None:
        rows: dict[str, list[Any]] = {"dependencies": [], "results": [], "steps": [], "signals": []}
        for what, row in self.api.rows(SHOWN):
            rows[what].append(tuple(row))
        expected = self.model.dependencies()
        shown = {row[:4]: row[4] for row in rows.pop("dependencies")}
        assert sorted(shown, key=repr) == sorted(expected, key=repr)
        assert {
            key: (state, expected[key]) for key, state in shown.items() if state not in expected[key]
        } == {}
        ours = {"results": self.model.results(), "steps": self.model.done(), "signals": self.model.sent()}
        forgotten = self.model.forgotten()
        rows["results"] = [row for row in rows["results"] if row[:2] not in forgotten]
        for what, theirs in rows.items():
            assert sorted(theirs, key=repr) == sorted(ours[what], key=repr)
