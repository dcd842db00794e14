"""The machine for jobs that wait for signals, of which the other examples have few."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from tests.model.machine import Machine, Workflows
from tests.model.state import HALF, Job
from tests.model.strategies import numbers, specs

OTHER = {"x": "y", "y": "x"}
with_a_wait = precondition(lambda self: self.model.waiting_for_signals())
verbs = st.sampled_from(["answer", "cancel", "delete", "complete", "fail"])
timeouts = st.sampled_from([None, HALF, HALF, HALF, timedelta(0)])
Ask = tuple[int, bool, timedelta | None, int]  # hours, by the same name, a timeout, hours
asks = st.tuples(
    st.sampled_from([0, 1, 1, 1]),
    st.sampled_from([True, True, False]),
    st.sampled_from([None, HALF, HALF, timedelta(0)]),
    st.sampled_from([0, 1, 1, 1]),
)
# What becomes of jobs that wait. The examples must have met each.
FATES = {
    "goes on", "has ended", "timed out before a later call's timeout",
    "waited on after a later call's timeout",
}  # fmt: skip


class Signals(Workflows):
    """Each job that runs waits soon, and is sent its signal, or something else happens to it."""

    add_many = add_batch = extend_batch = let_a_job_go_on = end_what_others_wait_for = None  # type: ignore[assignment]
    add_schedule = change_a_schedule = schedules_tick = run_schedule = None  # type: ignore[assignment]
    fates: ClassVar[Counter[str]] = Counter()

    @initialize(
        many=st.lists(specs, min_size=3, max_size=6),
        theme=st.sampled_from(["signal", "signal", "sequence", "key"]),
        claims=st.integers(1, 4),
        waits=st.lists(st.tuples(timeouts, asks), min_size=2, max_size=4),
        verb=verbs,
    )
    def begin(
        self,
        many: list[dict[str, Any]],
        theme: str | None,
        claims: int,
        waits: list[tuple[timedelta | None, Ask]],
        verb: str,
    ) -> None:
        self.waited: dict[int, Job] = {}
        Machine.begin(self, many, theme, claims)
        for number, (timeout, then) in enumerate(waits, 1):
            self.wait(number, timeout, then)
        self.fates_are_counted()
        if self.model.waiting_for_signals():
            self.end_a_wait(0, verb)

    def timed(self, spec: dict[str, Any], refs: list[str] | None = None) -> dict[str, Any]:
        return Machine.timed(self, {k: v for k, v in spec.items() if k not in ("flags", "run_at")}, refs)

    @rule(number=numbers, timeout=timeouts, then=asks | st.none())
    def wait(self, number: int, timeout: timedelta | None, then: Ask | None = None) -> None:
        if not self.model.live("running"):
            self.claim(number, 9)
        job_id, run = self.run(number)
        self.wait_for(job_id, run, "x" if number % 3 else "y", timeout)
        job = self.model.get(job_id)
        if then and job and job.held == "signal":
            self.ask(job, then)

    @with_a_wait
    @rule(number=numbers, value=st.sampled_from([None, 1, {"by": "ann"}]))
    def answer_a_wait(self, number: int, value: Any) -> None:
        jobs = self.model.waiting_for_signals()
        job = jobs[number % len(jobs)]
        names = [name for name in job.waits if name not in job.steps]  # of the last wait, and earlier ones
        self.send(job.id, names[number % len(names)], value)
        self.settle()

    @with_a_wait
    @rule(number=numbers, then=asks)
    def ask_again(self, number: int, then: Ask) -> None:
        jobs = self.model.waiting_for_signals()
        self.ask(jobs[number % len(jobs)], then)

    def ask(self, job: Job, then: Ask) -> None:
        """A person lets a job run that waits, and it asks again. Its timeout counts from the first call."""
        before, same, timeout, after = then
        name = OTHER[job.awaits] if job.awaits and not same else job.awaits or ""
        job_id, until = job.id, job.waits.get(name)
        self.same(lambda m: m.retry(job_id), lambda: self.api.retry_job(job_id).state)
        self.time_passes(before, None)
        self.claim(1, 9)
        again = self.model.get(job_id)
        if not again or again.state != "running":
            return
        self.wait_for(again.id, again.run, name, timeout)
        later = None if timeout is None else self.model.now + timeout
        self.time_passes(after, None)
        self.settle()
        now = self.model.now
        if until and until <= now and same and (later is None or later > now):
            self.fates["timed out before a later call's timeout"] += 1
        if later and later <= now and same and (until is None or until > now):
            self.fates["waited on after a later call's timeout"] += 1

    @with_a_wait
    @rule(number=numbers, verb=verbs)
    def end_a_wait(self, number: int, verb: str) -> None:
        jobs = self.model.waiting_for_signals()
        job_id, name = jobs[number % len(jobs)].id, jobs[number % len(jobs)].awaits or ""
        if verb == "answer":
            self.send(job_id, name, 1)
            self.settle()
        elif verb == "cancel":
            self.same(lambda m: m.cancel(job_id, False), lambda: self.api.cancel_job(job_id, False).state)
        elif verb == "delete":
            self.same(lambda m: m.delete(job_id), lambda: self.api.delete_job(job_id) and None)
        elif verb == "complete":
            self.same(
                lambda m: m.complete([job_id]), lambda: [j.id for j in self.api.complete_jobs([job_id])]
            )
        else:
            self.same(
                lambda m: m.fail_for_good([job_id], "e"),
                lambda: [j.id for j in self.api.permanently_fail_jobs([job_id], "e")],
            )

    @rule(by=st.sampled_from([1, 1, 2, 4]), silent=st.sampled_from([None, None, 0]))
    def time_passes(self, by: int, silent: int | None) -> None:
        Machine.time_passes(self, by, silent)

    @invariant()
    def fates_are_counted(self) -> None:
        there = {job.id: job for job in self.model.jobs}
        for job_id in getattr(self, "waited", {}):
            now = there.get(job_id)
            if now is None or now.held != "signal":
                state = now.state if now else "deleted"
                ended = state in ("cancelled", "completed", "discarded", "deleted")
                self.fates["has ended" if ended else "goes on"] += 1
        self.waited = {job.id: job for job in self.model.waiting_for_signals()}
