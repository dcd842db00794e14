"""The whole SQL interface against a model in plain Python, written from what is promised, step by step.

CI runs the same examples every time. For a long run with new ones: PYWORKER_EXAMPLES=5000, or `-m torture`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

EXAMPLES = int(os.environ.get("PYWORKER_EXAMPLES", "0"))
STEPS = int(os.environ.get("PYWORKER_STEPS", "60"))

REQUIRED = ["scheduled", "pending", "available", "running"]
LIVE = [*REQUIRED, "retryable"]
HISTORY = ["completed", "cancelled"]
ENDED = [*HISTORY, "discarded"]
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
class Model:
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

    # Adds

    def request(self, spec: dict[str, Any]) -> dict[str, Any]:
        """The arguments, with the task's and the system's defaults."""
        task = self.tasks.get(spec["task"], {})
        r = {
            "priority": 0,
            "max_attempts": 25,
            "delivery": "at_least_once",
            "queue": None,
            "unique": None,
            "sequence": None,
        }
        r |= {"key": None, "mode": "replace", "payload": {}, "flags": None, "run_at": None}
        r |= {k: v for k, v in task.items() if k in r} | {k: v for k, v in spec.items() if v is not None}
        r["queue"] = None if r["queue"] == "default" else r["queue"]
        return r

    def sequence_of(self, r: dict[str, Any]) -> tuple[str | None, tuple[bool, bool]]:
        policy = r["sequence"]
        if policy is None:
            return None, (False, False)
        flags = policy.get("continue_on_cancelled", False), policy.get("continue_on_discarded", False)
        return policy.get("key") or json.dumps({"kind": r["task"]}, separators=(",", ":")), flags

    def new(self, r: dict[str, Any], new_id: int) -> Job:
        job = Job(
            new_id, r["task"], r["payload"], r["queue"], r["run_at"] or self.now, r["priority"], r["max_attempts"],
            r["key"], r["delivery"], r["flags"], self.now,
        )  # fmt: skip
        job.fresh = r["run_at"] is None
        job.sequence, job.goes_on = self.sequence_of(r)
        job.place = "waiting" if job.sequence else None
        self.wait(job)
        self.jobs.append(job)
        return job

    def add(self, spec: dict[str, Any], new_id: int) -> tuple[Job, bool]:
        """The job that comes of it, and whether it was there and is left as it was."""
        r = self.request(spec)
        if r["unique"] is not None:
            if r["key"]:
                raise Refused("PW001")
            return self.add_unique(r, new_id)
        old = self.named(r["key"]) if r["key"] else None
        if old and r["mode"] == "unsafe_dedupe":
            return old, True
        if old and old.state == "running":
            old.key, old.attempts, old.superseded = None, old.max_attempts, "superseded"
        elif old:
            left = [(deepcopy(old), old.place)]
            failed = old.attempts > 0 or old.state == "discarded"
            if old.state == "discarded":
                self.unhalt(old)
            if r["mode"] != "preserve_run_at" or failed:
                old.run_at, old.fresh = r["run_at"] or self.now, r["run_at"] is None
            merge = isinstance(old.payload, list) and isinstance(r["payload"], list)
            old.payload = old.payload + r["payload"] if merge else r["payload"]
            sequence, old.goes_on = self.sequence_of(r)
            if sequence != old.sequence or old.place is None:
                old.sequence, old.place = sequence, "waiting" if sequence else None
            else:
                left = []
            old.task, old.queue, old.priority, old.max_attempts = (
                r["task"],
                r["queue"],
                r["priority"],
                r["max_attempts"],
            )
            old.delivery, old.flags, old.attempts, old.error, old.reason = (
                r["delivery"],
                r["flags"],
                0,
                None,
                None,
            )
            old.started, old.revision = False, old.revision + 1
            self.wait(old)
            self.make_way(left)
            return old, False
        return self.new(r, new_id), False

    def add_unique(self, r: dict[str, Any], new_id: int) -> tuple[Job, bool]:
        policy = r["unique"]
        river = "by_args" in policy
        key = river, r["task"], json.dumps(r["payload"], sort_keys=True)
        states = policy.get("by_state" if river else "states")
        if states is None:
            states = [*LIVE, "completed"] if river else LIVE
        conflict = policy.get("on_conflict", "ignore" if river else "reject")
        found = [
            job for job in sorted(self.jobs, key=lambda j: j.id)
            if job.unique == key and job.state in states and ("period" not in policy or job.created + 2.5 * HOUR > self.now)
        ]  # fmt: skip
        if found and conflict == "reject":
            raise Refused("PW003")
        if found and conflict == "ignore":
            return ([job for job in found if job.state not in ENDED] or found)[-1], True
        for job in found:
            if job.state not in ENDED:
                if job.state == "scheduled" and conflict == "replace_except_schedule":
                    r["run_at"] = job.run_at
                self.close([job], "cancelled", "replaced")
        job = self.new(r, new_id)
        job.unique, job.recheck = key, states if river else None
        return job, False

    def add_many(self, specs: list[dict[str, Any]], new_ids: list[int]) -> list[tuple[Job, bool]]:
        if any(spec.get("key") and self.request(spec)["unique"] for spec in specs):
            raise Refused("PW001")
        return [self.add(spec, new_id) for spec, new_id in zip(specs, new_ids, strict=True)]

    def remove(self, key: str) -> int | None:
        job = self.named(key)
        if not job:
            return None
        if job.state == "running":
            job.key, job.attempts, job.superseded = None, job.max_attempts, "removed"
        else:
            self.forget(job)
        return job.id

    # What workers say

    def claim(self, worker: int, limit: int, tasks: Any, queues: Any, forbidden: Any) -> list[Any]:
        if worker not in self.workers:
            raise Refused("PW004")
        self.promote()
        ready = [
            j for j in self.live("available")
            if (tasks is None or j.task in tasks) and (queues is None or (j.queue or "default") in queues)
            and not set(forbidden or []) & set(j.flags or [])
        ]  # fmt: skip
        claimed = []
        for job in sorted(ready, key=Job.rank):
            if len(claimed) == limit or self.room(job.queue) <= 0:
                continue
            claimed.append(job)
            job.state, job.worker, job.attempts = "running", worker, job.attempts + 1
            job.cancelled_runs = False
        return [(j.id, j.attempts, j.payload, j.key, j.queue) for j in claimed]

    def start(self, job_id: int, run: int) -> bool:
        job = self.running(job_id, run)
        if not job or job.started or job.superseded or job.cancelled_runs or job.worker not in self.workers:
            return False
        job.started = True
        return True

    def finish(self, runs: list[tuple[int, int]]) -> list[int]:
        jobs = sorted({j for i, r in runs if (j := self.running(i, r))}, key=lambda j: j.id)
        self.close(jobs, "completed")
        return [job.id for job in jobs]

    def finish_one(self, job_id: int, run: int) -> None:
        if not self.finish([(job_id, run)]):
            raise Refused("PW002")

    def fail(self, failures: list[dict[str, Any]]) -> list[int]:
        accepted = []
        for f in sorted(failures, key=lambda f: f["id"]):
            job = self.running(f["id"], f["run"])
            if not job:
                continue
            accepted.append(job.id)
            if f.get("cancel"):
                self.close([job], "cancelled", job.superseded or "cancelled by its handler", f["error"])
                continue
            job.started = job.started and not f.get("not_started")
            if not (job.superseded or job.cancelled_runs):
                job.payload = f.get("payload", job.payload)
            if f.get("discard") or job.lost() or job.attempts >= job.max_attempts:
                self.discard(job, f["error"])
            else:
                self.put_back(job, job.attempts, "retryable", f["error"], HALF)
        return accepted

    def snooze(self, job_id: int, run: int, delay: timedelta) -> None:
        job = self.running(job_id, run)
        if not job:
            raise Refused("PW002")
        if job.lost() and not (job.superseded or job.cancelled_runs):
            raise Refused("PW005")
        self.put_back(job, max(job.attempts - 1, 0), delay=delay)

    def release(self, runs: list[tuple[int, int]]) -> list[int]:
        accepted = []
        for job_id, run in sorted(runs):
            if job := self.running(job_id, run):
                accepted.append(job_id)
                self.put_back(job, max(job.attempts - 1, 0))
        return accepted

    def unregister(self, worker: int) -> None:
        self.workers.pop(worker, None)
        for job in [j for j in self.live("running") if j.worker == worker]:
            self.put_back(job, max(job.attempts - 1, 0))

    def abandon(self, workers: Any) -> int:
        jobs = [j for j in self.live("running") if j.worker in workers]
        for job in jobs:
            if job.attempts >= job.max_attempts and not job.lost():
                self.discard(job, SOME)
            else:
                self.put_back(job, job.attempts, error=SOME)
        return len(jobs)

    def sweep(self) -> int:
        dead = [w for w, until in self.workers.items() if until < self.now]
        for worker in dead:
            del self.workers[worker]
        return self.abandon(dead)

    def heartbeat(self, worker: int) -> bool:
        if worker in self.workers:
            self.workers[worker] = self.now + TTL
        return worker in self.workers

    # What people do

    def known(self, job_id: int) -> Job:
        if job := self.get(job_id):
            return job
        raise Refused("PW004")

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
        if job.state == "available":
            return job.state
        if job.state == "pending":
            before = [(s, h) for s, h in self.halts if s == job.sequence and h < job.id]
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
            job.worker, job.cancelled_runs, job.superseded = None, False, None
        if job.state in ENDED and job.sequence:
            job.place = "waiting"
        if job.attempts >= job.max_attempts:
            job.max_attempts = job.attempts + 1
        job.reason, job.started, job.kept = None, False, False
        self.at(job)
        self.wait(job)
        self.unhalt(job)
        return job.state

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
            was = deepcopy(job)
            decided = not (run_at is attempts is max_attempts is None)
            after = job.attempts if attempts is None else attempts, max_attempts or job.max_attempts
            alive = after[0] < after[1] and (job.state != "discarded" or decided)
            if alive and job.unique and job.gave_key_back():
                again = deepcopy(job)
                again.run_at, again.attempts = run_at or job.run_at, after[0]
                again.place = "waiting" if job.sequence and job.place is None else job.place
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
                if was.state != "discarded":
                    self.discard(job, None)
                continue
            job.reason, job.started = None, False
            if job.sequence and job.place is None:
                job.place = "waiting"
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
        return (sequence, job_id) in self.halts and any(j.id > job_id for j in self.waiting(sequence))

    def prune(self) -> None:
        for job in [j for j in self.jobs if j.state in ENDED and j.expires and j.expires <= self.now]:
            if self.holds_up(job.sequence or "", job.id):
                job.kept = True
            else:
                self.jobs.remove(job)
                self.unhalt(job)
        for (sequence, job_id), at in list(self.halts.items()):
            if at < self.now - 720 * HOUR and not self.get(job_id) and not self.holds_up(sequence, job_id):
                del self.halts[sequence, job_id]

    def maintain(self) -> int:
        self.prune()
        rescued = self.sweep()
        self.promote()
        return rescued

    # What the views show

    def sequences(self) -> dict[str, Any]:
        shown = {}
        for s in {j.sequence for j in self.jobs if j.place} | {s for s, _ in self.halts}:
            waiting, head = self.waiting(s), self.head(s)
            halts = [
                h for h in sorted(h for t, h in self.halts if t == s) if not waiting or h < waiting[0].id
            ]
            halted = not head and (not waiting or waiting[0].place == "waiting")
            shown[s] = (head.id if head else None, len(waiting), halts[0] if halted and halts else None)
        return shown


# The machine that compares the two

conflicts = st.sampled_from([None, "reject", "ignore", "replace", "replace_except_schedule"])
ojs = st.fixed_dictionaries(
    {"keys": st.just(["args"])},
    optional={
        "on_conflict": conflicts.filter(bool),
        "states": st.sampled_from(
            [["available"], ["scheduled", "running"], [*LIVE, "completed"], [*LIVE, *ENDED], []]
        ),
        "period": st.just("PT150M"),
    },
)
river = st.fixed_dictionaries(
    {"by_args": st.just(True)},
    optional={
        "on_conflict": conflicts.filter(bool),
        "by_state": st.sampled_from([REQUIRED, LIVE, [*REQUIRED, "completed"], [*LIVE, *ENDED]]),
    },
)
sequences = st.fixed_dictionaries(
    {}, optional={
        "key": st.sampled_from(["s", "s", "r"]), "continue_on_cancelled": st.booleans(), "continue_on_discarded": st.booleans()
    }
)  # fmt: skip
keys = st.sampled_from(["a", "b"])
queues = st.sampled_from(["q", "q", "q", "p", "f:1", "default"])
hours = st.sampled_from([-1, 1.5, 1.5, 3.5])
plain = {
    "payload": st.sampled_from([{"n": 1}, {"n": 2}, [1], [2]]),
    "queue": queues,
    "run_at": hours,
    "max_attempts": st.sampled_from([1, 2]),
    "priority": st.sampled_from([-1, 1]),
    "flags": st.just(["f"]),
    "delivery": st.sampled_from(["at_most_once", "at_least_once"]),
}
tasks = {"task": st.sampled_from(["t", "t", "u", "v"])}
modes = st.sampled_from(["replace", "preserve_run_at", "unsafe_dedupe"])
specs = st.one_of(
    st.fixed_dictionaries(tasks, optional=plain),
    st.fixed_dictionaries({**tasks, "sequence": sequences}, optional=plain),
    st.fixed_dictionaries({**tasks, "key": keys, "mode": modes}, optional={**plain, "sequence": sequences}),
    st.fixed_dictionaries({**tasks, "unique": ojs | river}, optional={**plain, "sequence": sequences}),
    st.fixed_dictionaries({**tasks, "key": keys, "unique": ojs}, optional=plain),
)
definitions = st.fixed_dictionaries(
    {}, optional={
        **{k: plain[k] for k in ("max_attempts", "priority", "queue", "delivery")},
        "sequence": sequences, "unique": ojs | river, "retention": st.sampled_from([timedelta(0), 48 * HOUR]),
    }
)  # fmt: skip
numbers = st.integers(0, 1000)
several = st.lists(numbers, min_size=1, max_size=4)
NAMES = {
    "task": "identifier", "queue": "queue_name", "key": "job_key", "mode": "job_key_mode", "unique": "unique_policy",
    "sequence": "sequence_policy",
}  # fmt: skip
SEEN = """
    select id, state, key, attempts, max_attempts, run, revision, priority, queue_name, delivery, task_identifier, sequence_key,
           unique_key is not null as is_unique, last_error, reason, locked_by, run_at
    from (select * from pyworker.jobs union all select * from pyworker.history) j order by id
"""


somebody_runs = precondition(lambda self: self.model.live("running"))
somebody_is_there = precondition(lambda self: self.model.jobs)


class Machine(RuleBasedStateMachine):
    steps = 0

    def __init__(self, api: Any, clock: Any, clean: Any, check: Any) -> None:
        super().__init__()
        self.api, self.clock, self.clean, self.check = api, clock, clean, check
        self.runs: list[tuple[int, int]] = []  # every claim ever
        self.workers: list[int] = []
        self.model = Model(datetime.min)

    @initialize(
        many=st.lists(specs, min_size=3, max_size=6),
        theme=st.sampled_from([None, "sequence", "queue", "key"]),
    )
    def begin(self, many: list[dict[str, Any]], theme: str | None) -> None:
        self.theme = theme  # all in one sequence, in one queue, or of one key: there they meet
        self.clean()
        self.clock.advance(seconds=-self.clock.offset.total_seconds())
        self.api.configure(worker_ttl=TTL)
        self.api.maintain()
        self.model = Model(self.api.at())
        self.slack = timedelta(0)
        self.register()
        self.register()
        for spec in many:
            self.add_one(spec)

    def both(self, ours: Callable[[Model], Any], theirs: Callable[[], Any]) -> tuple[Any, Any]:
        """What the model and the database say to the same call: a result, or an SQLSTATE."""
        before = deepcopy(self.model)
        self.model.now = self.api.at()
        try:
            got = theirs()
        except psycopg.Error as error:
            if not (error.sqlstate or "").startswith("PW"):
                raise
            got = error.sqlstate
        self.slack += self.api.at() - self.model.now
        try:
            expected = ours(self.model)
        except Refused as refused:
            self.model, expected = before, str(refused)
        return expected, got

    def same(self, ours: Callable[[Model], Any], theirs: Callable[[], Any]) -> Any:
        expected, got = self.both(ours, theirs)
        assert got == expected
        return got

    def anybody(self, number: int) -> int:
        """The id of a job; now and then of none."""
        jobs = self.model.jobs
        return jobs[number % len(jobs)].id if jobs and number % 23 else 10**6

    def run(self, number: int) -> tuple[int, int]:
        """A run to speak of: mostly one that goes on, else an earlier one of the same job, or any that there has been."""
        now = [(job.id, job.run) for job in self.model.live("running")]
        runs = now if number % 4 else [(job_id, run - 1) for job_id, run in now] if number % 8 else self.runs
        return runs[number // 8 % len(runs)] if runs else (10**6, 1)

    def arguments(self, spec: dict[str, Any]) -> dict[str, Any]:
        named = {NAMES.get(k, k): v for k, v in spec.items()}
        if "run_at" in spec:
            named["run_at"] = str(spec["run_at"])
        return named

    def timed(self, spec: dict[str, Any]) -> dict[str, Any]:
        """With its run_at as a time, and with the sequence, the queue or the key that this is about."""
        spec = dict(spec)
        if self.theme == "sequence":
            spec["sequence"] = {**spec.get("sequence", {}), "key": "s"}
        elif self.theme == "queue":
            spec["queue"] = "q"
        elif self.theme == "key" and "unique" not in spec:
            spec["key"] = "a"
        if "run_at" in spec:
            spec["run_at"] = self.api.at(f"{spec['run_at']} hours")
        return spec

    def added(self, expected: Any, got: Any) -> None:
        if isinstance(expected, str) or isinstance(got, str):
            assert got == expected
            return
        newest = max((job.id for job in self.model.jobs if job.id < 10**9), default=0)
        for row, (job, deduplicated) in zip(got, expected, strict=True):
            if job.id >= 10**9:
                assert row.id > newest
                job.id = newest = row.id
            assert (row.id, row.deduplicated) == (job.id, deduplicated)

    # Producers

    @rule(spec=specs)
    def add_one(self, spec: dict[str, Any]) -> None:
        spec = self.timed(spec)
        named = self.arguments(spec)
        if isinstance(named.get("payload"), list):
            named["payload"] = json.dumps(named["payload"])
        self.added(*self.both(lambda m: [m.add(spec, 10**9)], lambda: [self.api.add_job(**named)]))

    @rule(many=st.lists(specs, min_size=2, max_size=4))
    def add_many(self, many: list[dict[str, Any]]) -> None:
        many = [self.timed(spec) for spec in many]
        ids = list(range(10**9, 10**9 + len(many)))
        named = [self.arguments(spec) for spec in many]
        self.added(*self.both(lambda m: m.add_many(many, ids), lambda: self.api.add_jobs(named)))
        self.promote()  # in which order they are worked on inside is nobody's business

    @rule(key=keys)
    def remove_job(self, key: str) -> None:
        self.same(lambda m: m.remove(key), lambda: self.api.remove_job(key).id)

    @rule(task=tasks["task"], options=definitions)
    def define_task(self, task: str, options: dict[str, Any]) -> None:
        named = {NAMES.get(k, k): v for k, v in options.items()}
        self.api.define_task(task, backoff='["90 minutes"]', **named)
        self.model.tasks[task] = options

    @rule(key=keys)
    def once(self, key: str) -> None:
        self.same(lambda m: m.once(key), lambda: self.api.once(key))

    # Workers

    def register(self) -> None:
        self.workers.append(self.api.register_worker())
        self.model.workers[self.workers[-1]] = self.api.at() + TTL

    def claim(self, number: int, limit: int, only: tuple[Any, Any, Any] = (None, None, None)) -> None:
        if not self.model.workers:
            self.register()
        worker = self.workers[(number if number % 5 else -1) % len(self.workers)]
        worker = worker if number % 11 == 0 or worker in self.model.workers else max(self.model.workers)
        self.api.rows(
            "reset pyworker.claim_note"
        )  # how far the last claim came: it may pass over what came in before that, for a while
        runs: dict[int, int] = {}

        def theirs() -> Any:
            rows = self.api.claim_jobs(worker, limit, *only)
            runs.update({j.id: j.run for j in rows})
            return [(j.id, j.attempts, j.payload, j.key, j.queue_name) for j in rows]

        self.same(lambda m: m.claim(worker, limit, *only), theirs)
        for job in self.model.jobs:
            if job.id in runs:
                assert runs[job.id] > job.run
                job.run = runs[job.id]
        self.runs += runs.items()

    @rule(number=numbers, limit=st.sampled_from([1, 2, 9]))
    def claim_any(self, number: int, limit: int) -> None:
        self.claim(number, limit)

    @rule(number=numbers, tasks=st.sampled_from([None, ["t"], ["u", "v"], []]), queues=st.sampled_from([None, ["p", "default"], ["q"], []]),
          flags=st.sampled_from([None, ["f"], ["g"]]))  # fmt: skip
    def claim_some(self, number: int, tasks: Any, queues: Any, flags: Any) -> None:
        self.claim(number, 3, (tasks, queues, flags))

    @somebody_runs
    @rule(number=numbers)
    def start(self, number: int) -> None:
        run = self.run(number)
        self.same(lambda m: m.start(*run), lambda: self.api.start_job(*run))

    @somebody_runs
    @rule(some=several)
    def finish(self, some: list[int]) -> None:
        runs = [self.run(number) for number in some]
        ids, numbers = map(list, zip(*runs, strict=True))
        self.same(lambda m: m.finish(runs), lambda: sorted(self.api.finish_jobs(ids, numbers)))

    @somebody_runs
    @rule(number=numbers)
    def finish_one(self, number: int) -> None:
        run = self.run(number)
        self.same(lambda m: m.finish_one(*run), lambda: self.api.finish_job(*run) or None)

    @somebody_runs
    @rule(
        some=several,
        how=st.sampled_from(
            [{}, {}, {"discard": True}, {"cancel": True}, {"not_started": True}, {"payload": {"left": 1}}]
        ),
    )
    def fail(self, some: list[int], how: dict[str, Any]) -> None:
        runs = {run[0]: run for run in map(self.run, some)}.values()
        failures = [{"id": i, "run": r, "error": f"error of run {r}", **how} for i, r in runs]
        delay = {"delay": "90 minutes"}  # a task's own backoff says the same
        sent = [
            f | ({} if (j := self.model.get(f["id"])) and j.task in self.model.tasks else delay)
            for f in failures
        ]
        self.same(lambda m: m.fail(failures), lambda: self.api.fail_jobs(sent))

    @somebody_runs
    @rule(number=numbers, delay=st.sampled_from([timedelta(0), HALF]))
    def snooze(self, number: int, delay: timedelta) -> None:
        run = self.run(number)
        self.same(lambda m: m.snooze(*run, delay), lambda: self.api.snooze_job(*run, delay) or None)

    @somebody_runs
    @rule(some=several)
    def release(self, some: list[int]) -> None:
        runs = list({self.run(number) for number in some})
        ids, numbers = map(list, zip(*runs, strict=True))
        self.same(lambda m: m.release(runs), lambda: self.api.release_jobs(ids, numbers))

    # Time

    @rule(by=st.sampled_from([1, 1, 2, 4, 25, 170]), silent=st.sampled_from([None, 0, 1]))
    def time_passes(self, by: int, silent: int | None) -> None:
        self.clock.advance(hours=by)
        for n, worker in enumerate(self.workers):
            if silent is None or n % 2 != silent:
                self.same(lambda m, w=worker: m.heartbeat(w), lambda w=worker: self.api.heartbeat(w))

    def promote(self) -> None:
        self.both(Model.promote, self.api.promote_jobs)

    @rule(what=st.sampled_from(["promote", "promote", "sweep", "sweep", "maintain", "prune"]))
    def housework(self, what: str) -> None:
        if what == "promote":
            self.promote()
        elif what == "sweep":
            self.same(Model.sweep, self.api.sweep_workers)
        elif what == "prune":
            self.both(Model.prune, self.api.prune)
        else:
            self.same(Model.maintain, lambda: self.api.maintain()["rescued"])

    # People

    @somebody_is_there
    @rule(number=numbers, force=st.booleans())
    def cancel(self, number: int, force: bool) -> None:
        job = self.anybody(number)
        self.same(lambda m: m.cancel(job, force), lambda: self.api.cancel_job(job, force).state)

    @somebody_is_there
    @rule(number=numbers)
    def retry(self, number: int) -> None:
        job = self.anybody(number)
        self.same(lambda m: m.retry(job), lambda: self.api.retry_job(job).state)

    @somebody_is_there
    @rule(number=numbers)
    def delete(self, number: int) -> None:
        job = self.anybody(number)
        self.same(lambda m: m.delete(job), lambda: self.api.delete_job(job) and None)

    @somebody_is_there
    @rule(some=several, verb=st.sampled_from(["retry", "complete", "fail"]))
    def many(self, some: list[int], verb: str) -> None:
        ids = [self.anybody(number) for number in some]
        call = {
            "retry": self.api.retry_jobs,
            "complete": self.api.complete_jobs,
            "fail": self.api.permanently_fail_jobs,
        }[verb]
        more = ["by hand"] if verb == "fail" else []
        ours = {"retry": Model.retry_many, "complete": Model.complete, "fail": Model.fail_for_good}[verb]
        self.same(lambda m: ours(m, ids, *more), lambda: [job.id for job in call(ids, *more)])

    @somebody_is_there
    @rule(some=several, by=st.none() | hours, priority=st.sampled_from([None, None, -2]), attempts=st.sampled_from([None, None, 0, 1, 25]),
          limit=st.sampled_from([None, None, 1, 3]))  # fmt: skip
    def reschedule(self, some: list[int], by: Any, priority: Any, attempts: Any, limit: Any) -> None:
        ids = [self.anybody(number) for number in some]
        given = (None if by is None else self.api.at(f"{by} hours"), priority, attempts, limit)
        self.same(
            lambda m: m.reschedule(ids, *given), lambda: [j.id for j in self.api.reschedule_jobs(ids, *given)]
        )

    @rule(number=numbers, verb=st.sampled_from(["force_unlock", "unregister", "register"]))
    def somebody_sees_to_a_worker(self, number: int, verb: str) -> None:
        worker = self.workers[number % len(self.workers)]
        if verb == "force_unlock":
            self.both(lambda m: m.abandon([worker]), lambda: self.api.force_unlock_workers([str(worker)]))
        elif verb == "unregister":
            self.both(lambda m: m.unregister(worker), lambda: self.api.unregister_worker(worker))
        else:
            self.register()

    @rule(queue=st.sampled_from(["p", "q", "f:"]), verb=st.sampled_from(["set", "set", "pause", "resume"]),
          limit=st.sampled_from([None, 1, 2, 3]))  # fmt: skip
    def somebody_sees_to_a_queue(self, queue: str, verb: str, limit: int | None) -> None:
        if verb == "set":
            queue += "*" if queue == "f:" else ""
            self.api.set_queue(queue, limit)
            self.model.limits[queue] = limit
            return
        queue += "1" if queue == "f:" else ""
        if verb == "pause":
            self.both(lambda m: m.pause(queue), lambda: self.api.pause_queue(queue))
        else:
            self.both(lambda m: m.paused.discard(queue), lambda: self.api.resume_queue(queue))

    @rule(key=st.sampled_from(["s", "r", '{"kind":"t"}']))
    def resume_sequence(self, key: str) -> None:
        self.same(lambda m: m.resume_sequence(key), lambda: self.api.resume_sequence(key))

    @invariant()
    def the_views_show_what_the_model_holds(self) -> None:
        if self.model.now == datetime.min:
            return
        Machine.steps += 1
        rows = {row.id: row for row in self.api.rows(SEEN)}
        self.model.jobs = [job for job in self.model.jobs if job.id in rows or not job.kept]
        ours = []
        for job in sorted(self.model.jobs, key=lambda j: j.id):
            row = rows.get(job.id)
            if row and job.fresh:
                assert timedelta(0) <= row.run_at - job.run_at <= self.slack
                job.run_at, job.fresh = row.run_at, False
            error = row.last_error if row and job.error == SOME and row.last_error else job.error
            reason = (
                job.reason
                if job.reason in ("superseded", "removed", "replaced", "lost")
                else row and row.reason
            )
            locked = str(job.worker) if job.state == "running" else row and row.locked_by
            ours.append(
                (job.id, job.state, job.key, job.attempts, job.max_attempts, job.run, job.revision, job.priority, job.queue, job.delivery,
                 job.task, job.sequence, job.unique is not None, error, reason, locked, job.run_at)
            )  # fmt: skip
        assert [tuple(row) for row in rows.values()] == ours
        shown = self.api.rows("select sequence_key, running, waiting, halted_by from pyworker.sequences")
        assert {row[0]: tuple(row[1:]) for row in shown} == self.model.sequences()
        self.slack = timedelta(0)
        if Machine.steps % 3 == 0:  # the dearest part; what is wrong stays wrong
            self.check(self.api.conn)


def run(api: Any, clock: Any, clean: Any, check: Any, examples: int, steps: int, **more: Any) -> None:
    Machine.steps = 0
    run_state_machine_as_test(
        lambda: Machine(api, clock, clean, check),
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, database=None, report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck), **more,
        ),
    )  # fmt: skip
    print(f"{Machine.steps} steps")


def test_the_queue_behaves_like_its_model(api: Any, clock: Any, clean: Any, invariants: Any) -> None:
    run(api, clock, clean, invariants, EXAMPLES or 60, STEPS, derandomize=not EXAMPLES)


@pytest.mark.torture
def test_the_queue_behaves_like_its_model_for_a_long_time(
    api: Any, clock: Any, clean: Any, invariants: Any
) -> None:
    run(api, clock, clean, invariants, 2000, STEPS)
