"""What the model says to people, and to maintenance."""

from __future__ import annotations

from copy import copy
from typing import Any

from tests.model.coordination import Coordination
from tests.model.state import HOUR, Job, Refused
from tests.support.states import ENDED, HISTORY, LIVE


class People(Coordination):
    def cancel(self, job_id: int, force: bool) -> str:
        job = self.known(job_id)
        if job.state == "running" and not force:
            job.cancelled_runs = True
        elif job.state not in ENDED:
            self.close([job], "cancelled", "cancelled")
        return job.state

    def retry(self, job_id: int) -> str:
        job = self.known(job_id)
        if job.state == "running":
            raise Refused("PW005")
        job.start_by = None
        if job.state == "available":
            return job.state
        if job.state == "pending" and job.held != "signal":
            before = [(s, h) for s, h in self.halts if s == job.sequence and h < job.id and not job.held]
            if before and not self.head(str(job.sequence)):
                for halt in before:
                    del self.halts[halt]
                job.place = "next"
            if job.run_at > self.now:
                self.at(job)
            return job.state
        if job.unique and job.gave_key_back():
            if any(o.unique == job.unique and o is not job and not o.gave_key_back() for o in self.jobs):
                raise Refused("PW003")
        if job.state in HISTORY:
            if job.key and self.named(job.key):
                raise Refused("PW003")
            self.refuse_circle(job, "PW005")
            job.worker, job.cancelled_runs, job.superseded, job.result = None, False, None, None
        self.take_place(job)
        if job.attempts >= job.max_attempts:
            job.max_attempts = job.attempts + 1
        job.reason, job.started = None, False
        self.at(job)
        self.wait(job)
        self.unhalt(job)
        return job.state

    def take_place(self, job: Job) -> None:
        """A job that is to run again: its dependencies come before its turn, and end a wait."""
        job.held = "unmet" if any(not edge.met for edge in job.edges) else None
        if job.state in ENDED and job.sequence:
            job.place = None if job.held else "waiting"

    def retry_many(self, job_ids: list[int]) -> list[int]:
        retried = []
        for job_id in sorted(set(job_ids)):
            try:
                self.retry(job_id)
                retried.append(job_id)
            except Refused:
                pass
        return retried

    def delete(self, job_id: int) -> None:
        job = self.known(job_id)
        if job.state == "running":
            raise Refused("PW005")
        self.forget(job)

    def some(self, job_ids: list[int]) -> list[Job]:
        return [
            j
            for i in sorted(set(job_ids))
            if (j := self.get(i)) and j.state in (*LIVE, "discarded") and j.state != "running"
        ]

    def complete(self, job_ids: list[int]) -> list[int]:
        jobs = self.some(job_ids)
        for job in jobs:
            self.close([job], "completed")
            self.unhalt(job)
        return [job.id for job in jobs]

    def fail_for_good(self, job_ids: list[int], error: str) -> list[int]:
        jobs = self.some(job_ids)
        for job in jobs:
            job.attempts = job.max_attempts
            self.discard(job, error)
        return [job.id for job in jobs]

    def reschedule(
        self, job_ids: list[int], run_at: Any, priority: Any, attempts: Any, max_attempts: Any
    ) -> list[int]:
        changed = []
        for job in self.some(job_ids):
            was = job.state
            decided = not (run_at is attempts is max_attempts is None)
            after = job.attempts if attempts is None else attempts, max_attempts or job.max_attempts
            alive = after[0] < after[1] and (job.state != "discarded" or decided)
            if alive and job.held == "signal":  # it has begun: the wait decides when it goes on
                job.attempts, job.max_attempts = after
                job.priority = job.priority if priority is None else priority
                changed.append(job.id)
                continue
            if alive and job.unique and job.gave_key_back():
                again = copy(job)
                again.run_at, again.attempts = run_at or job.run_at, after[0]
                self.take_place(again)
                self.wait(again, "retryable" if again.attempts else "scheduled")
                holders = [
                    o for o in self.jobs if o.unique == job.unique and o is not job and not o.gave_key_back()
                ]
                if holders and not again.gave_key_back():
                    continue
            changed.append(job.id)
            job.attempts, job.max_attempts = after
            job.priority = job.priority if priority is None else priority
            job.run_at, job.fresh = (run_at, False) if run_at else (job.run_at, False)
            if not alive:
                if was != "discarded":
                    self.discard(job, None)
                continue
            job.reason, job.started = None, False
            if job.held is None:
                self.take_place(job)
            self.unhalt(job)
            self.wait(job, "retryable" if job.attempts else "scheduled")
        return changed

    def resume_sequence(self, sequence: str) -> bool:
        first = min((j.id for j in self.waiting(sequence)), default=None)
        gone = [(s, h) for s, h in self.halts if s == sequence and (first is None or h < first)]
        for halt in gone:
            del self.halts[halt]
        return bool(gone)

    def pause(self, queue: str) -> None:
        self.paused.add(queue)

    def once(self, key: str) -> bool:
        new = key not in self.marks
        self.marks.add(key)
        return new

    def holds_up(self, sequence: str, job_id: int) -> bool:
        behind = [j for j in self.jobs if j.sequence == sequence and j.id > job_id]
        return (sequence, job_id) in self.halts and any(
            j.held or j.place in ("waiting", "next") for j in behind
        )

    def prune(self) -> None:
        for job in [j for j in self.jobs if j.state in ENDED and j.expires and j.expires <= self.now]:
            if self.holds_up(job.sequence or "", job.id) or self.awaited(job):
                job.expires = self.now + 24 * HOUR
            else:
                for child in (j for j in self.jobs if j.state in HISTORY):
                    for edge in (e for e in child.edges if e.parent is job):
                        edge.forgotten = True
                self.vanish(job, job.state)
                self.unhalt(job)
        for (sequence, job_id), at in list(self.halts.items()):
            if at < self.now - 720 * HOUR and not self.get(job_id) and not self.holds_up(sequence, job_id):
                del self.halts[sequence, job_id]
