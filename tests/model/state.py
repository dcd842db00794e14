"""What the model holds: jobs, sequences, queues and workers, and what follows when a job ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from tests.support.states import ENDED, LIVE

HOUR = timedelta(hours=1)
HALF = 1.5 * HOUR  # the clock moves by whole hours, so nothing falls due, or is over, at the very instant
SOME = "some text"  # an error that the queue words itself
TTL = timedelta(minutes=30)
RETENTION = {"completed": 24 * HOUR, "cancelled": 24 * HOUR, "discarded": 168 * HOUR}


class Refused(Exception):
    """The model's word for a SQLSTATE."""


@dataclass(eq=False)
class Job:
    id: int
    task: str
    payload: Any
    queue: str | None
    run_at: datetime
    priority: int
    max_attempts: int
    key: str | None
    delivery: str
    flags: Any
    created: datetime
    sequence: str | None = None
    goes_on: tuple[bool, bool] = (False, False)  # when it is cancelled, discarded
    unique: Any = None
    recheck: list[str] | None = None
    state: str = "available"
    place: str | None = (
        None  # in its sequence: head, waiting, next (waiting, but first); none once it has ended
    )
    attempts: int = 0
    run: int = 0
    revision: int = 0
    error: str | None = None
    reason: str | None = None
    worker: int | None = None
    started: bool = False
    cancelled_runs: bool = False
    superseded: str | None = None
    fresh: bool = True  # its run_at is `now`, or so much after it, but for the instants that the call takes
    expires: datetime | None = None
    kept: bool = False  # beyond its time, as others wait behind it

    def rank(self) -> Any:
        return self.priority, self.run_at, self.id

    def lost(self) -> bool:
        return self.delivery == "at_most_once" and self.started

    def gave_key_back(self) -> bool:
        return self.state in ENDED or (
            self.state == "retryable" and "retryable" not in (self.recheck or LIVE)
        )


@dataclass
class State:
    now: datetime
    jobs: list[Job] = field(default_factory=list)
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    limits: dict[str, int | None] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    halts: dict[tuple[str, int], datetime] = field(default_factory=dict)
    workers: dict[int, datetime] = field(default_factory=dict)  # the living, and until when
    marks: set[str] = field(default_factory=set)

    # Who is where

    def get(self, job_id: int) -> Job | None:
        return next((job for job in self.jobs if job.id == job_id), None)

    def live(self, *states: str) -> list[Job]:
        return sorted(
            (j for j in self.jobs if j.state in (states or (*LIVE, "discarded"))), key=lambda j: j.id
        )

    def named(self, key: str) -> Job | None:
        return next((job for job in self.live() if job.key == key), None)

    def running(self, job_id: int, run: int) -> Job | None:
        job = self.get(job_id)
        return job if job and job.state == "running" and job.run == run else None

    def limit(self, queue: str) -> int | None:
        if queue in self.limits:
            return self.limits[queue]
        return self.limits.get(queue[:2] + "*", 1)

    def waiting(self, sequence: str) -> list[Job]:
        """Next first, then by id."""
        jobs = [j for j in self.jobs if j.sequence == sequence and j.place in ("waiting", "next")]
        return sorted(jobs, key=lambda j: (j.place != "next", j.id))

    def head(self, sequence: str) -> Job | None:
        return next((j for j in self.jobs if j.sequence == sequence and j.place == "head"), None)

    def wait(self, job: Job, until: str = "scheduled") -> None:
        """The state of a job that may run from its run_at on."""
        if job.place in ("waiting", "next"):
            job.state = "pending"
        elif job.run_at > self.now:
            job.state = until
        else:
            job.state = "available"

    def at(self, job: Job, delay: timedelta = timedelta(0)) -> None:
        job.run_at, job.fresh = self.now + delay, True

    # Turns

    def advance(self, sequence: str) -> None:
        for job in self.waiting(sequence)[:1]:
            if job.place == "next" or not any(s == sequence and h < job.id for s, h in self.halts):
                job.place = "head"
                self.wait(job)

    def promote(self) -> None:
        due = [j for j in self.live("scheduled", "retryable") if j.run_at <= self.now]
        asking = [j for j in due if j.state == "retryable" and j.recheck is not None]
        for job in due:
            if job not in asking:
                self.wait(job)
        for job in sorted(asking, key=lambda j: (j.run_at, j.id)):
            if any(o.unique == job.unique and o is not job and o.state in job.recheck for o in self.jobs):
                self.discard(job, None)
            else:
                self.put_back(job, job.attempts, "retryable")
        for sequence in {j.sequence for j in self.jobs if j.place in ("waiting", "next")}:
            if not self.head(sequence):
                self.advance(sequence)

    def make_way(self, jobs: list[tuple[Job, str | None]]) -> None:
        """These jobs, with the place that they had, have left: their sequences go on."""
        for sequence in sorted({job.sequence for job, place in jobs if place == "head"}):
            self.advance(sequence)

    def room(self, queue: str | None) -> float:
        """How many jobs more may start in it."""
        limit = self.limit(queue) if queue else None
        if queue in self.paused:
            return 0
        return float("inf") if limit is None else limit - sum(j.queue == queue for j in self.live("running"))

    # Ends

    def close(self, jobs: list[Job], state: str, reason: str | None = None, error: str | None = None) -> None:
        left = []
        for job in jobs:
            left.append((job, job.place))
            if state == "cancelled" and not (job.superseded or reason == "replaced"):
                self.halt(job, 0)
            job.state, job.place, job.reason, job.error = state, None, reason, error or job.error
            retention = self.tasks.get(job.task, {}).get("retention", RETENTION[state])
            job.expires = self.now + retention
            if not retention:
                self.jobs.remove(job)
        self.make_way(left)

    def halt(self, job: Job, flag: int) -> None:
        if job.sequence and job.state != "discarded" and not job.goes_on[flag]:
            self.halts.setdefault((job.sequence, job.id), self.now)

    def unhalt(self, job: Job) -> None:
        self.halts.pop((job.sequence or "", job.id), None)

    def discard(self, job: Job, error: str | None, reason: str | None = None) -> None:
        if job.superseded or job.cancelled_runs:
            return self.close([job], "cancelled", job.superseded or "cancelled", error)
        self.halt(job, 1)
        left = [(job, job.place)]
        job.state, job.place, job.worker, job.reason = "discarded", None, None, reason
        job.error, job.expires = error or job.error, self.now + RETENTION["discarded"]
        self.make_way(left)

    def put_back(
        self,
        job: Job,
        attempts: int,
        until: str = "scheduled",
        error: str | None = None,
        delay: timedelta | None = None,
    ) -> None:
        if job.superseded or job.cancelled_runs:
            return self.close(
                [job], "cancelled", job.superseded or "cancelled", error or (job.superseded and SOME)
            )
        if job.lost():
            return self.discard(job, error or SOME, "lost")
        job.attempts, job.worker, job.started, job.error = attempts, None, False, error or job.error
        if delay is not None:
            self.at(job, delay)
        self.wait(job, until)

    def forget(self, job: Job) -> None:
        self.jobs.remove(job)
        self.unhalt(job)
        self.make_way([(job, job.place)])
