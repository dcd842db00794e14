"""What the model holds: jobs, sequences, queues and workers, and what follows when a job ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from tests.support.states import ENDED, LIVE

HOUR = timedelta(hours=1)
HALF = 1.5 * HOUR  # the clock moves by whole hours, so nothing falls due, or is over, at the very instant
PERIOD = timedelta(minutes=75)  # of the rate of queue r; no other time is a multiple of it
SOME = "some text"  # an error that the queue words itself
TTL = timedelta(minutes=30)
MOMENT = timedelta(minutes=10)  # more than an example takes, less than two times of the model are apart
RETENTION = {"completed": 24 * HOUR, "cancelled": 24 * HOUR, "discarded": 168 * HOUR}


class Refused(Exception):
    """The model's word for a SQLSTATE."""


def meets(condition: str, state: str | None) -> bool:
    """Whether a job that has ended in this state is what another one waits for."""
    failed = state in ("cancelled", "discarded")
    return {"success": state == "completed", "failure": failed, "end": failed or state == "completed"}[
        condition
    ]


@dataclass(eq=False)
class Edge:
    """One job that a job depends on."""

    parent: Job
    ref: str | None
    condition: str
    cancels: bool
    met: str | None = None  # the state that met the condition: from then on it stays met
    result: Any = None
    forgotten: bool = False  # the parent was pruned when the child had ended


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
    result: Any = None
    held: str | None = None  # pending for other jobs: unmet, or for a signal: signal
    edges: list[Edge] = field(default_factory=list)
    steps: dict[str, tuple[Any, int]] = field(default_factory=dict)  # saved, or answers: result and run
    waits: dict[str, datetime | None] = field(default_factory=dict)  # for signals: until when
    awaits: str | None = None  # the last of them
    signals: dict[str, list[Any]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)  # the signals whose first has answered the wait
    start_by: datetime | None = None  # expires_at, until its first run
    since: datetime = datetime.min  # it waits since then, as max_wait counts
    since_run: int = 0
    latest: datetime | None = None  # adds must not put it off for longer
    gone: str | None = None  # without a trace, what it counts as

    def rank(self) -> Any:
        return self.priority, self.run_at, self.id

    def plain(self) -> bool:
        """It waits for nothing but its time."""
        return not (self.queue or self.sequence or self.edges or self.waits)

    def lost(self) -> bool:
        return self.delivery == "at_most_once" and self.started

    def ended_as(self) -> str | None:
        return self.gone or (self.state if self.state in ENDED else None)

    def open(self) -> list[Job]:
        """The jobs that it waits for."""
        return [edge.parent for edge in self.edges if not edge.met]

    def hopeless(self) -> bool:
        """To be cancelled, as a job that it waits for has ended in another way."""
        return any(e.cancels and not e.met and e.parent.ended_as() for e in self.edges)

    def kept(self, name: str) -> list[Any]:
        """The signals of a name that have answered no wait yet."""
        return self.signals.get(name, [])[name in self.used :]

    def answered(self, now: datetime) -> bool:
        """Whether what it waits for was sent, or the time for that is over."""
        until = self.waits[self.awaits or ""]
        return bool(self.kept(self.awaits or "")) or (until is not None and until <= now)

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
    rates: dict[str, int] = field(default_factory=dict)  # starts in PERIOD
    starts: list[tuple[str, datetime]] = field(default_factory=list)  # of queues with a rate
    asides: dict[str | None, datetime] = field(
        default_factory=dict
    )  # queues: some of their kinds may stand aside
    paused: set[str] = field(default_factory=set)
    halts: dict[tuple[str, int], datetime] = field(default_factory=dict)
    workers: dict[int, datetime] = field(default_factory=dict)  # the living, and until when
    marks: set[str] = field(default_factory=set)

    # Who is where

    def known(self, job_id: int) -> Job:
        if job := self.get(job_id):
            return job
        raise Refused("PW004")

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

    def settings(self, queue: str) -> str:
        """The name whose settings count for a queue."""
        return queue if queue in self.limits else self.family(queue)

    def family(self, queue: str | None) -> str:
        return (queue or "")[:2] + "*"

    def limit(self, queue: str) -> int | None:
        return self.limits.get(self.settings(queue), 1)

    def waiting(self, sequence: str) -> list[Job]:
        """Next first, then by id."""
        jobs = [j for j in self.jobs if j.sequence == sequence and j.place in ("waiting", "next")]
        return sorted(jobs, key=lambda j: (j.place != "next", j.id))

    def head(self, sequence: str) -> Job | None:
        return next((j for j in self.jobs if j.sequence == sequence and j.place == "head"), None)

    def wait(self, job: Job, until: str = "scheduled") -> None:
        """The state of a job that may run from its run_at on."""
        if job.held or job.place in ("waiting", "next"):
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

    def late(self) -> list[Job]:
        """They should have begun by now."""
        return [j for j in self.live() if j.start_by and j.start_by <= self.now]

    def ready(self) -> list[Job]:
        late = self.late()
        return [j for j in self.live("available") if j not in late]

    def promote(self) -> int:
        """To the end: also what follows from it. Returns how many jobs it has cancelled."""
        late = self.late()
        self.close(late, "cancelled", "expired", SOME)
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
        cancelled = self.decide()
        for sequence in {j.sequence for j in self.jobs if j.place in ("waiting", "next")}:
            if not self.head(sequence):
                self.advance(sequence)
        return len(late) + cancelled

    def decide(self) -> int:
        raise NotImplementedError

    def make_way(self, left: list[tuple[str | None, str | None]]) -> None:
        """Jobs have left their sequences, in which they had these places: the sequences go on."""
        for sequence in sorted({sequence for sequence, place in left if place == "head" and sequence}):
            self.advance(sequence)

    def room(self, queue: str | None) -> float:
        """How many jobs more may start in it."""
        limit = self.limit(queue) if queue else None
        if queue in self.paused:
            return 0
        slots = float("inf") if limit is None else limit - sum(j.queue == queue for j in self.live("running"))
        rate = self.rates.get(self.settings(queue)) if queue else None
        if rate is None:
            return slots
        started = sum(name == queue and at > self.now - PERIOD for name, at in self.starts)
        return min(slots, rate - started)

    # Ends

    def close(self, jobs: list[Job], state: str, reason: str | None = None, error: str | None = None) -> None:
        left = []
        for job in jobs:
            left.append((job.sequence, job.place))
            if state == "cancelled" and not (job.superseded or reason == "replaced"):
                self.halt(job, 0)
            job.state, job.place, job.reason, job.error = state, None, reason, error or job.error
            job.held, job.start_by = None, None  # but it keeps how long adds may put it off: for a retry
            retention = self.tasks.get(job.task, {}).get("retention", RETENTION[state])
            job.expires = self.now + retention
            self.tell(job, state)
            if not retention:
                self.vanish(job, state)
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
        left = [(job.sequence, job.place)]
        job.state, job.place, job.worker, job.reason = "discarded", None, None, reason
        job.held, job.start_by = None, None
        job.error, job.expires = error or job.error, self.now + RETENTION["discarded"]
        self.tell(job, "discarded")
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
        """Delete it: then it counts as cancelled, even if it was completed."""
        self.tell(job, "cancelled")
        self.vanish(job, "cancelled")
        self.unhalt(job)
        self.make_way([(job.sequence, job.place)])

    def vanish(self, job: Job, state: str) -> None:
        self.jobs.remove(job)
        job.gone = "completed" if state == "completed" else "cancelled"

    # Jobs that wait for jobs

    def tell(self, parent: Job, state: str) -> None:
        """It has ended in this state: the edges that this meets stay met."""
        for edge in (e for job in self.jobs for e in job.edges if e.parent is parent and not e.met):
            if meets(edge.condition, state):
                edge.met, edge.result = state, parent.result if state == "completed" else None
