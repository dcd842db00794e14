"""What the model says of jobs that wait for jobs or for signals, and of what they have done."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tests.model.state import SOME, Edge, Job, Refused, State, meets
from tests.support.states import HISTORY

NAMELESS = "nameless "  # refs of a batch's jobs that have none


class Coordination(State):
    # Jobs that wait for jobs

    def link(self, requests: list[dict[str, Any]], added: list[tuple[Job, bool, int]]) -> None:
        """The edges of the jobs of one call; a request that changed nothing has none."""
        named = self.refs(requests, [job for job, _, _ in added])
        for r, (_, there, _) in zip(requests, added, strict=True):
            if not there and any(isinstance(p, int) and not self.get(p) for p, _ in r["depends_on"]):
                raise Refused("PW004")
        changed = []
        for r, (job, there, revision) in zip(requests, added, strict=True):
            if there or job.revision != revision:  # a later request of the call has replaced it
                continue
            changed += [job] if r["depends_on"] else []
            for parent, condition in r["depends_on"]:
                by_ref = isinstance(parent, str)
                shown = parent if by_ref and not parent.startswith(NAMELESS) else None
                parent = named[parent] if by_ref else self.get(parent)
                self.depend(job, parent, shown, condition, r["on_unmet"])
        for job in changed:
            self.refuse_circle(job)

    def refs(self, requests: list[dict[str, Any]], jobs: list[Job]) -> dict[str | None, Job]:
        names = [r["ref"] for r in requests if r["ref"]]
        wants = {i: {p for p, _ in r["depends_on"] if isinstance(p, str)} for i, r in enumerate(requests)}
        if len(set(names)) < len(names) or not set().union(*wants.values()) <= set(names):
            raise Refused("PW001")
        while done := [i for i, wanted in wants.items() if not wanted & {requests[j]["ref"] for j in wants}]:
            for i in done:
                del wants[i]
        if wants:  # they wait for each other in a circle
            raise Refused("PW001")
        return {r["ref"]: job for r, job in zip(requests, jobs, strict=True) if r["ref"]}

    def depend(self, job: Job, parent: Any, ref: str | None, condition: str, on_unmet: str) -> None:
        if any((e.parent, e.ref, e.condition) == (parent, ref, condition) for e in job.edges):
            return
        edge = Edge(parent, ref, condition, on_unmet == "cancel")
        job.edges.append(edge)
        if meets(condition, parent.ended_as()):
            edge.met, edge.result = parent.ended_as(), parent.result

    def refuse_circle(self, job: Job, code: str = "PW001") -> None:
        above, seen = [job], set()
        while above:
            for parent in above.pop().open():
                if parent is job:
                    raise Refused(code)
                if parent not in seen and not parent.gone and parent.state not in HISTORY:
                    above.append(parent)
                seen.add(parent)

    def decide(self) -> int:
        """What the ends of other jobs, signals and timeouts decide, and what follows from it. Returns
        how many jobs that cancels."""
        for job in self.live("pending"):
            if job.held == "signal" and job.answered(self.now):
                job.held = None
                self.wait(job)
        cancelled, again = 0, True
        while again:
            again = False
            for job in [j for j in self.live("pending") if j.held == "unmet"]:
                if job.hopeless():
                    self.close([job], "cancelled", "dependency", SOME)
                    cancelled, again = cancelled + 1, True
                elif not job.open():
                    job.held, job.place = None, "waiting" if job.sequence else None
                    self.wait(job)
        return cancelled

    def add_batch(
        self, specs: list[dict[str, Any]], callback: dict[str, Any], on: str, new_ids: list[int]
    ) -> list[tuple[Job, bool]]:
        nameless = [{**spec, "ref": spec.get("ref") or f"{NAMELESS}{n}"} for n, spec in enumerate(specs)]
        callback = {**callback, "depends_on": [(spec["ref"], on) for spec in nameless]}
        return self.add_many([*nameless, callback], new_ids)

    def extend_batch(
        self, callback_id: int, specs: list[dict[str, Any]], new_ids: list[int]
    ) -> list[tuple[Job, bool]]:
        callback = self.known(callback_id)
        if callback.held != "unmet":
            raise Refused("PW005")
        like = callback.edges[0]
        added = self.add_many(specs, new_ids)
        for spec, (job, _) in zip(specs, added, strict=True):
            if job is callback or callback.held != "unmet":  # a job has replaced it
                raise Refused("PW001")
            self.depend(callback, job, spec.get("ref"), like.condition, "cancel" if like.cancels else "hold")
        self.refuse_circle(callback)
        return added

    def add_many(self, specs: list[dict[str, Any]], new_ids: list[int]) -> list[tuple[Job, bool]]:
        raise NotImplementedError

    def awaited_jobs(self) -> list[Job]:
        """Live jobs, by id."""
        return [job for job in self.live() if self.awaited(job)]

    def awaited(self, job: Job) -> bool:
        return any(job in j.open() for j in self.jobs if j.held == "unmet")

    # Steps and signals

    def waiting_for_signals(self) -> list[Job]:
        return [job for job in self.live("pending") if job.held == "signal"]

    def hold(self, job_id: int, run: int) -> Job:
        if job := self.running(job_id, run):
            return job
        raise Refused("PW002")

    def save_step(self, job_id: int, run: int, name: str, result: Any) -> None:
        job = self.hold(job_id, run)
        if name in job.steps or name in job.waits:
            raise Refused("PW003")
        job.steps[name] = (result, run)

    def wait_for(self, job_id: int, run: int, name: str, timeout: timedelta | None) -> Any:
        """The answer, in a list; none if the job waits from now on, or has ended."""
        if timeout is not None and timeout < timedelta(0):
            raise Refused("PW001")
        job = self.hold(job_id, run)
        if job.lost():
            raise Refused("PW005")
        if name in job.steps and name not in job.waits:
            raise Refused("PW003")
        job.awaits = name
        job.waits.setdefault(name, timeout if timeout is None else self.now + timeout)  # of the first call
        if name not in job.steps and job.answered(self.now):
            kept = job.kept(name)
            job.steps[name] = (kept[0] if kept else None, run)
            job.used |= {name} if kept else set()
        if name in job.steps:
            return [job.steps[name][0]]
        if job.superseded or job.cancelled_runs:
            self.close([job], "cancelled", job.superseded or "cancelled", SOME if job.superseded else None)
        else:
            job.held, job.state, job.started, job.worker = "signal", "pending", False, None
            job.attempts = max(job.attempts - 1, 0)
        return None

    def send(self, job_id: int, name: str, payload: Any) -> str:
        job = self.known(job_id)
        if job.state in HISTORY:
            raise Refused("PW005")
        if job.kept(name):
            return "ignored"
        job.signals.setdefault(name, []).append(payload)
        return "answered" if job.held == "signal" and job.awaits == name else "kept"

    # What the view and the functions show

    def dependencies(self) -> dict[Any, set[Any]]:
        """By job, parent, ref and condition: the parent's state. A deleted parent counts as cancelled;
        when it is forgotten, as it was when it met the condition."""
        return {
            (job.id, e.parent.id, e.ref, e.condition):
                {e.parent.gone, e.met} if e.parent.gone else {e.parent.state}
            for job in self.jobs for e in job.edges
        }  # fmt: skip

    def results(self) -> list[Any]:
        """How the parents have ended, and what they returned."""
        return [
            (job.id, e.parent.id, e.ref, e.met or e.parent.ended_as(), e.result)
            for job in self.jobs for e in job.edges if not e.forgotten
        ]  # fmt: skip

    def forgotten(self) -> set[tuple[int, int]]:
        """Parents that were pruned when the child had ended: their results may be gone."""
        return {(job.id, e.parent.id) for job in self.jobs for e in job.edges if e.forgotten}

    def done(self) -> list[Any]:
        return [(job.id, name, *done) for job in self.jobs for name, done in job.steps.items()]

    def sent(self) -> list[Any]:
        return [(job.id, name, one) for job in self.jobs for name, all in job.signals.items() for one in all]
