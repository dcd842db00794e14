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
from tests.model.state import HALF
from tests.model.strategies import conditions, numbers, specs

# What the public functions show of the jobs that are there.
SHOWN = {
    "results": "select j.id as job, r.* from {jobs} cross join lateral pyworker.dependency_results(j.id) r",
    "steps": "select j.id, s.name, s.result, s.run from {jobs} cross join lateral pyworker.get_steps(j.id) s",
    "signals": "select j.id, s.name, s.payload from {jobs} cross join lateral pyworker.job_signals(j.id) s",
}
JOBS = "(select id from pyworker.jobs union all select id from pyworker.history) j"
DEPENDENCIES = "select job_id, depends_on, ref, condition, state from pyworker.dependencies"
BATCH = "select * from pyworker.add_batch(%s, %s, %s)"
EXTEND = "select * from pyworker.extend_batch(%s, %s)"
WAIT = "select pyworker.wait_for_signal(%s, %s, %s, %s)::text"

with_a_running_job = precondition(lambda self: self.model.live("running"))
with_a_job = precondition(lambda self: self.model.jobs)


class Together(Calls, RuleBasedStateMachine):
    claim: Callable[[int, int], None]

    @rule(many=st.lists(specs, max_size=3), callback=specs, on=conditions)
    def add_batch(self, many: list[dict[str, Any]], callback: dict[str, Any], on: str) -> None:
        many = self.call(many, False)
        callback = self.timed({k: v for k, v in callback.items() if k not in ("after", "on_unmet")})
        ids = list(range(10**9, 10**9 + len(many) + 1))
        sent = [Jsonb([self.arguments(spec) for spec in many]), Jsonb(self.arguments(callback)), on]
        self.added(
            *self.both(lambda m: m.add_batch(many, callback, on, ids), lambda: self.api.rows(BATCH, sent))
        )
        self.settle()

    @with_a_job
    @rule(number=numbers, many=st.lists(specs, max_size=3), forwards=st.booleans())
    def extend_batch(self, number: int, many: list[dict[str, Any]], forwards: bool) -> None:
        waiting = [job.id for job in self.model.live("pending") if job.held == "unmet"]
        callback = waiting[number % len(waiting)] if waiting and number % 7 else self.any_job(number)
        job = self.model.get(callback)
        if job and len({(e.condition, e.cancels) for e in job.edges}) > 1:
            return  # no batch
        many = self.call(many, forwards)
        ids = list(range(10**9, 10**9 + len(many)))
        sent = [callback, Jsonb([self.arguments(spec) for spec in many])]
        self.added(
            *self.both(lambda m: m.extend_batch(callback, many, ids), lambda: self.api.rows(EXTEND, sent))
        )
        self.settle()

    def settle(self, ended: int = 0) -> None:
        """Promote what may go on, and what follows from it. One promotion does that, unless it cancels
        jobs that others wait for, or has `ended` some."""
        waited = [job.id for job in self.model.jobs if job.place]
        cancelled, _ = self.both(Model.promote, self.api.promote_jobs)
        for _ in range(2 * (cancelled + ended)):
            self.api.promote_jobs()
        if cancelled:
            rows = self.api.rows("select sequence_key, running from pyworker.sequences where running > 0")
            self.model.follow({row[0]: row[1] for row in rows}, waited)

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

    def named(self, number: int) -> str:
        return "x" if self.theme == "signal" or number % 3 else "y"

    def some_run(self, number: int) -> tuple[int, int]:
        if not self.model.live("running"):
            self.claim(number, 9)
        return self.run(number)

    @with_a_job
    @rule(number=numbers, result=st.sampled_from([None, {"n": 1}]))
    def save_step(self, number: int, result: Any) -> None:
        run, name = self.some_run(number), self.named(number)
        self.same(
            lambda m: m.save_step(*run, name, result),
            lambda: self.api.save_step(*run, name, Jsonb(result)) or None,
        )

    @with_a_job
    @rule(number=numbers, timeout=st.sampled_from([None, None, HALF, HALF, timedelta(0), -HALF]))
    def wait_for_signal(self, number: int, timeout: timedelta | None) -> None:
        run, name = self.some_run(number), self.named(number)

        def theirs() -> Any:
            answer = self.api.value(WAIT, [*run, name, timeout])
            return None if answer is None else [json.loads(answer)]

        self.same(lambda m: m.wait_for(*run, name, timeout), theirs)

    @with_a_job
    @rule(number=numbers, payload=st.sampled_from([None, 1, {"by": "ann"}]))
    def send_signal(self, number: int, payload: Any) -> None:
        waiting = [job.id for job in self.model.live("pending") if job.held == "signal"]
        job = waiting[number % len(waiting)] if waiting and number % 3 else self.any_job(number)
        name = self.named(number)
        self.same(
            lambda m: m.send(job, name, payload),
            lambda: self.api.send_signal(job, name, Jsonb(payload)) or None,
        )

    def compare_coordination(self) -> None:
        expected = self.model.dependencies()
        shown = {tuple(row[:4]): row.state for row in self.api.rows(DEPENDENCIES)}
        assert sorted(shown, key=repr) == sorted(expected, key=repr)
        assert {
            key: (state, expected[key]) for key, state in shown.items() if state not in expected[key]
        } == {}
        ours = {"results": self.model.results(), "steps": self.model.done(), "signals": self.model.sent()}
        for what, mine in ours.items():
            rows = self.api.rows(SHOWN[what].format(jobs=JOBS))
            assert sorted(map(tuple, rows), key=repr) == sorted(mine, key=repr)
