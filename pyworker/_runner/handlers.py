"""The handlers of a worker process, from the claimed job to its one outcome.

    begin → ready → _start → calls, running → places → attempt.run → _ended → outcomes, for the exchange
                       ▲                                                │
                       └──────────── the slot is free ──────────────────┘

A call of a handler has one job, or those of a batch, and takes one slot. Only `_ended` ends jobs. If it
cannot, the process exits (`_give_up`) and the parent hands its jobs back.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from .. import tasks
from .._escape import shown
from .claimed import Call, Claimed, gathered
from .config import EXIT_BROKEN, RunConfig
from .connections import Connections
from .outcomes import Ended, Outcome, release, tell
from .places import Places
from .shared import Slots, boottime
from .waiting import Waiting

log = logging.getLogger("pyworker.worker")

CANCEL_GRACE = 5.0  # seconds from a handler's cancellation until its process is killed
LAST_WORD = 2.0  # seconds that a broken process has to report outcomes
NEVER, IF_URGENT = -1, -2  # see wake_at


class Handlers:
    """At most `concurrency` calls at once. `outcomes`: takes the outcomes; the turn reports them."""

    def __init__(
        self,
        config: RunConfig,
        slots: Slots,
        connections: Connections,
        outcomes: deque[Outcome],
        wake: Callable[[], None],
    ) -> None:
        self.config, self.slots, self.outcomes = config, slots, outcomes
        self.tasks: dict[str, tasks.Task[..., Any]] = {}
        # `lock` guards `waiting`, `running`, `lost` and `calls`.
        self.lock = threading.Lock()
        self.waiting = Waiting(self.lock)
        self.ready = self.waiting.ready
        self.calls: dict[int, Call] = {}  # by slot
        self.running: dict[int, Claimed] = {}  # by id
        # By id and run: a job may run again before the handler of its lost run ends.
        self.lost: dict[tuple[int, int], Claimed] = {}
        self.places = Places(
            config.concurrency, config.uvloop, connections, self.waiting, self._ended, self._give_up
        )
        self.free_slots = list(range(config.concurrency))
        self.handed_back: list[Claimed] = []  # while their handlers run on
        self.broken = False  # a job's outcome could not be recorded
        self.isolated = False  # the running job may have crashed a process before, so it runs alone
        self.urgent = False  # an outcome is to be reported at once: see _ended
        self.wake_at = NEVER  # an outcome wakes the turn if at most so many jobs are ready
        self._wake, self._pid = wake, os.getpid()

    # -- for the turn ------------------------------------------------------------------------------

    @property
    def load(self) -> int:
        """Calls that run, and jobs that wait for one."""
        return len(self.ready) + self.config.concurrency - len(self.free_slots)

    @property
    def idle(self) -> bool:
        with self.lock:
            return not (self.ready or self.running or self.lost)

    def held(self) -> list[Claimed]:
        """The jobs that wait or run here."""
        with self.lock:
            return [*self.ready, *self.running.values(), *self.lost.values()]

    def closed_for(self) -> float:
        """Seconds in which nothing is to be claimed, as a job runs alone or is to."""
        with self.lock:
            if self.isolated or (self.ready and self.ready[0].crashes):
                return math.inf
            return max(self.waiting.shy_until - boottime(), 0.0) if self.load else 0.0

    def begin(self, claimed: Iterable[Sequence[Any]], until: float) -> None:
        """Take claimed jobs, which must begin until this boottime(). Start as many as there is room for."""
        with self.lock:
            self.waiting.take(claimed, until)
            begun = self._start()
        self.places.dispatch(begun)

    def hand_back_late(self) -> int:
        """Release the jobs that have waited too long. How many have, since the last call?"""
        with self.lock:
            self._release(self.waiting.go_back())
            for call in self.waiting.calls_back():  # its slot is free when it comes to its thread or the loop
                self.slots.clear(call.slot)
                held = [job for job in call.jobs if self.running.get(job.id) is job]
                self._release(self.running.pop(job.id) for job in held)
            late, self.waiting.late = self.waiting.late, 0
        return late

    def hand_back(self, everything: bool) -> None:
        """Release the ready jobs; with `everything` also the running ones, as this process ends."""
        with self.lock:
            self._release(self.waiting.go_back(lease=0.0))
            if everything:
                self.waiting.calls.clear()
                for jobs in (self.running, self.lost):
                    self._release(jobs.values(), begun=True)
                    self.handed_back.extend(jobs.values())
                    jobs.clear()

    def cancel(self, runs: set[tuple[int, int]]) -> None:
        """Release these jobs if they are ready, and tell the handlers of those that run."""
        with self.lock:
            for job in [job for job in self.ready if (job.id, job.run) in runs]:
                self.ready.remove(job)
                self._release([job])  # if it is still ours, the database ends it as cancelled
            for job_id, run in runs:
                job = self.running.get(job_id)
                if job is not None and job.run == run and not job.cancelled:
                    self._cancel(job)

    def leave(self) -> None:
        """Record that no handler is to blame for the end of this process."""
        self.lock.acquire(timeout=1)  # never released, so that no further job starts
        self.slots.blame([])

    # -- where a job begins -----------------------------------------------------------------------

    def _release(self, jobs: Iterable[Claimed], begun: bool = False) -> None:
        self.outcomes.extend(release(job, begun) for job in jobs)

    def _cancel(self, job: Claimed) -> None:
        job.cancelled = True
        if job.handed is not None:
            job.handed._cancelled = True  # pyright: ignore[reportPrivateUsage] - its reader is the handler
        call = self.calls[job.slot]
        if call.cancelled:  # else it goes on for the other jobs of its batch
            self.places.cancel(call)
            self.slots.set(call.slot, call.jobs, time.monotonic() + CANCEL_GRACE)

    def _start(self) -> list[Call]:
        """Assign free slots to ready jobs. Dispatch the returned calls after releasing the lock."""
        begun: list[Call] = []
        now, lease = (boottime(), self.slots.lease()) if self.ready else (0.0, 0.0)
        if now > lease or (self.ready and now > self.ready[0].until):
            self._release(self.waiting.go_back(lease))  # this process was suspended, or its jobs have waited
        while self.ready and self.free_slots and not (self.isolated or self.broken):
            if self.ready[0].crashes and len(self.free_slots) < self.config.concurrency:
                break  # another call runs
            job = self.ready.popleft()
            if job.crashes:
                self.isolated = True
                self.waiting.runs_alone()
            task, slot = self.tasks[job.task_identifier], self.free_slots.pop()
            jobs = [job] if task.batch is None else gathered(job, self.ready, task.batch)
            call = Call(task, jobs, slot)
            self.calls[slot] = call
            for one in call.jobs:
                one.slot = slot
                if one.id in self.running:
                    lost = self.running[one.id]  # an earlier run of the same job: its claim is lost
                    self.lost[lost.id, lost.run] = lost
                    self._cancel(lost)
                self.running[one.id] = one
            limit = call.timeout
            # An async handler is cancelled at its limit; the parent kills only CANCEL_GRACE later.
            patience = CANCEL_GRACE if limit and task.is_async else 0.0
            self.slots.set(slot, jobs, time.monotonic() + limit + patience if limit else 0.0)
            begun.append(call)
        return begun

    # -- where a job ends -------------------------------------------------------------------------

    def _ended(self, call: Call, ends: list[Ended]) -> list[Call]:
        """The one place where jobs end. Returns calls that may start now, for the caller to dispatch."""
        if os.getpid() != self._pid:
            os._exit(1)  # a copy that a handler made by os.fork() has come back
        told: Any = None
        together = [*zip(call.jobs, ends, strict=True)]
        for job, (outcome, said) in together:
            if outcome.error is not None:
                with contextlib.suppress(Exception):  # raised by the application's log handlers
                    tell(job, outcome, said, self.config.tracebacks and said is not told)
                told = said  # what all jobs of a batch have raised, the first one tells in full
        with self.lock:
            self.slots.clear(call.slot)
            self.free_slots.append(call.slot)
            self.calls.pop(call.slot, None)
            self.isolated = False
            for job, (outcome, _) in together:
                if self.running.get(job.id) is job:
                    del self.running[job.id]
                elif self.lost.pop((job.id, job.run), None) is None:
                    continue  # it was handed back in the meantime
                # Others wait for its end in its queue or sequence, or a crash now would make it `lost`.
                self.urgent |= bool(job.queue_name or job.sequence_key) or job.delivery == "at_most_once"
                self.outcomes.append(outcome)
                if job.completed:  # by its own transaction: the report will be refused as stale
                    self.slots.count(done=1)
            begun = self._start()
        if len(self.ready) <= self.wake_at or (self.urgent and self.wake_at == IF_URGENT):
            self.wake_at = NEVER  # wake the turn only once
            self._wake()
        return begun

    def _give_up(self, suspects: list[Call] | None, error: BaseException) -> NoReturn:
        """End this process, as the outcome of a job could not be recorded. Its parent blames the suspects."""
        if suspects is None:
            suspects = [call for call in list(self.calls.values()) if call.handler is not None]
        after = "".join(f" after job {call.jobs[0].id} ({call.task.name})" for call in suspects)
        text = f"this process ends, as it cannot go on{shown(after)}"
        try:
            log.critical("%s", text, exc_info=error)
        except BaseException:
            os.write(2, f"pyworker: {text}\n".encode(errors="replace"))
        with contextlib.suppress(BaseException):
            self.broken = True  # no further job starts
            self.slots.blame((call.slot, call.jobs) for call in suspects)
            self._wake()
            time.sleep(LAST_WORD)  # meanwhile the turn reports outcomes and ends the process
        os._exit(EXIT_BROKEN)
