"""Runs handlers in threads and on the event loop, from the claimed job to its one outcome.

    ready → _start → running → run_job | run_job_async → _ended → outcomes
                               run_batch | run_batch_async

A call of a handler has one job, or those of a batch, and takes one slot. Only `_ended` ends jobs. If it
cannot, the process exits (`_give_up`) and the parent hands its jobs back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from typing import Any, NoReturn, cast

from .. import tasks
from .._escape import shown
from .attempt import run_job, run_job_async
from .batches import gathered, run_batch, run_batch_async
from .claimed import Batch, Call, Claimed
from .config import EXIT_BROKEN, RunConfig
from .connections import Connections
from .copies import end_copy
from .loop import start_loop
from .outcomes import Ended, Outcome, failure_of, failures_of, release, tell
from .shared import Slots, boottime
from .threads import NO_THREAD, Threads
from .waiting import Waiting, handed_back

log = logging.getLogger("pyworker.worker")

CANCEL_GRACE = 5.0  # seconds from a handler's cancellation until its process is killed
LAST_WORD = 2.0  # seconds that a broken process has to report outcomes
NEVER, IF_URGENT = -1, -2  # see wake_at


class Handlers:
    """The handlers of a worker process, at most `concurrency` at once."""

    def __init__(
        self,
        config: RunConfig,
        slots: Slots,
        connections: Connections,
        ended: deque[Outcome],
        wake: Callable[[], None],
    ) -> None:
        """`ended`: takes the outcomes; the turn reports them."""
        self.config = config
        self.slots = slots
        self.connections = connections
        self.tasks: dict[str, tasks.Task[..., Any]] = {}
        self.context = copy_context()  # holds what task modules set; each handler runs in its own copy
        # `lock` guards `waiting`, `running`, `lost` and `batches`.
        self.lock = threading.Lock()
        self.waiting = Waiting(self.lock)
        self.ready = self.waiting.ready
        self.running: dict[int, Claimed] = {}  # by id
        # By id and run: a job may run again before the handler of its lost run ends.
        self.lost: dict[tuple[int, int], Claimed] = {}
        self.batches: dict[int, Batch] = {}  # that run, by slot
        self.handed_back: list[Claimed] = []  # referenced, so that no handler is garbage collected
        self.broken = False  # a job's outcome could not be recorded
        self.isolated = False  # the running job may have crashed a process before, so it runs alone
        self.free_slots = list(range(config.concurrency))
        self.threads = Threads(config.concurrency, self._handle)
        self._for_loop: list[Call] = []  # the thread of the loop could not be started
        self.loop: asyncio.AbstractEventLoop | None = None
        self._spawned: deque[Call] = deque()  # asyncio tasks that may not have started yet
        self._looking = False
        self.outcomes = ended
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
        with self.lock:  # `_ended` moves a job from `running` to `outcomes`
            return not (self.ready or self.running or self.lost)

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
        self._dispatch(begun)

    def queues(self) -> list[str | None]:
        """The queue of each job that waits or runs here."""
        with self.lock:
            return [job.queue_name for job in (*self.ready, *self.running.values(), *self.lost.values())]

    def known(self) -> list[tuple[int, int]]:
        """Id and run of every job that this process believes it holds."""
        with self.lock:
            jobs = (*self.ready, *self.running.values(), *self.lost.values())
            return [(job.id, job.run) for job in jobs]

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

    def start_again(self) -> None:
        """Start the threads that the system has not allowed before, when it is time."""
        if not self.threads.again_in():
            self.threads.start_again()
            waiting, self._for_loop = self._for_loop, []
            self._dispatch(waiting)

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
        call = self.batches.get(job.slot, job)
        if not call.cancelled:
            return  # a batch goes on for its other jobs
        if call.handler is not None:
            self._event_loop().call_soon_threadsafe(call.handler.cancel)
        self.slots.set_call(call.slot, call.runs, time.monotonic() + CANCEL_GRACE)

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
            if task.batch is None:
                call = job
                self._runs(job, slot)
            else:
                call = self.batches[slot] = gathered(job, self.ready, task.batch)
                call.slot = slot
                for one in call.jobs:
                    self._runs(one, slot)
            limit = call.timeout
            # An async handler is cancelled at its limit; the parent kills only CANCEL_GRACE later.
            patience = CANCEL_GRACE if limit and task.is_async else 0.0
            deadline = time.monotonic() + limit + patience if limit else 0.0
            if task.batch is None:
                self.slots.set(slot, job.id, job.run, deadline)
            else:
                self.slots.set_call(slot, call.runs, deadline)
            begun.append(call)
        return begun

    def _runs(self, job: Claimed, slot: int) -> None:
        job.slot = slot
        if job.id in self.running:
            lost = self.running[job.id]  # an earlier run of the same job: its claim is lost
            self.lost[lost.id, lost.run] = lost
            self._cancel(lost)
        self.running[job.id] = job

    def _dispatch(self, begun: list[Call], in_thread: bool = False) -> Call | None:
        """Send each call to where its handler runs. A thread gets one back to run next: that costs less."""
        mine: Call | None = None
        to_loop: list[Call] = []
        for call in begun:
            if self.tasks[call.task_identifier].is_async:
                to_loop.append(call)
            elif in_thread and mine is None:
                mine = call
            else:
                self.waiting.calls[call.slot] = call
                self.threads.put(call)
        if to_loop:
            self.waiting.calls.update({call.slot: call for call in to_loop})
            try:
                loop = self._event_loop()
            except NO_THREAD as error:
                self.threads.failed(error)
                self._for_loop += to_loop
                return mine
            if asyncio._get_running_loop() is loop:
                self._spawn(to_loop)
            else:
                loop.call_soon_threadsafe(self._spawn, to_loop)
        return mine

    def _handle(self) -> None:
        suspects: list[Call] = []
        try:
            while True:
                call: Call | None = self.threads.calls.get()
                begins = self.waiting.begins(call)
                while call:
                    suspects = [call]
                    task, context = self.tasks[call.task_identifier], self.context.copy()
                    run: Any = run_job if isinstance(call, Claimed) else run_batch
                    ended = context.run(run, call, task, self.connections) if begins else handed_back(call)
                    begun = self._ended(call, ended)
                    suspects = []
                    call = self._dispatch(begun, in_thread=True)
                    begins = True
        except BaseException as error:
            self._give_up(suspects, error)

    def _spawn(self, calls: list[Call]) -> None:
        assert self.loop is not None  # noqa: S101
        for call in calls:
            # The loop has only weak references; `running` and `batches` keep the task.
            run = self._run_async(call) if isinstance(call, Claimed) else self._run_batch(call)
            call.handler = self.loop.create_task(run, context=self.context.copy())
        self._spawned.extend(calls)
        if not self._looking:
            self._looking = True
            self.loop.call_soon(self._look, len(self._spawned))

    def _look(self, count: int) -> None:
        """Release the jobs of tasks that were cancelled before their first step.

        They never reached _run_async. The first `count` spawned tasks have had their first step.
        """
        assert self.loop is not None  # noqa: S101
        for _ in range(count):
            call = self._spawned.popleft()
            job = call.jobs[0]
            held = self.running.get(job.id) is job or (job.id, job.run) in self.lost
            if held and cast("asyncio.Task[None]", call.handler).done():
                self.waiting.calls.pop(call.slot, None)
                self._end(call, handed_back(call))
        self._looking = bool(self._spawned)
        if self._looking:
            self.loop.call_soon(self._look, len(self._spawned))

    async def _run_async(self, job: Claimed) -> None:
        try:
            task, begins = self.tasks[job.task_identifier], self.waiting.begins(job)
            ended: Ended = (
                await run_job_async(job, task, self.connections) if begins else (release(job), None)
            )
        except BaseException as error:
            ended = failure_of(job, error)
        self._end(job, ended)

    async def _run_batch(self, batch: Batch) -> None:
        try:
            task, begins = self.tasks[batch.task_identifier], self.waiting.begins(batch)
            back: list[Ended] = [] if begins else [(release(job), None) for job in batch.jobs]
            ends = back or await run_batch_async(batch, task, self.connections)
        except BaseException as error:
            ends = failures_of(batch.jobs, error)
        self._end(batch, ends)

    def _end(self, call: Call, ended: Ended | list[Ended]) -> None:
        """Record the outcome of an async job, or those of a batch; runs on the loop."""
        suspects = [call]
        try:
            begun = self._ended(call, ended)
            suspects = []
            if begun:
                self._dispatch(begun)
        except BaseException as error:
            self._give_up(suspects, error)

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        if self.loop is None:
            self.loop = start_loop(self.config.uvloop, self._loop_failed)
            self.threads.worked()
        return self.loop

    def _loop_failed(self, error: BaseException) -> None:
        calls = (*self.batches.values(), *self.running.values(), *self.lost.values())
        self._give_up([call for call in calls if call.handler is not None], error)

    # -- where a job ends -------------------------------------------------------------------------

    def _ended(self, call: Call, ended: Ended | list[Ended]) -> list[Call]:
        """The one place where jobs end. Returns calls that may start now, for the caller to dispatch."""
        ends: Sequence[tuple[Claimed, Ended]]
        if isinstance(call, Claimed):
            ends = ((call, cast("Ended", ended)),)
        else:
            ends = [*zip(call.jobs, cast("list[Ended]", ended), strict=True)]
        if os.getpid() != self._pid:
            end_copy(ends[0][1][1])
        told: Any = None
        for job, (outcome, said) in ends:
            if outcome.error is not None:
                with contextlib.suppress(
                    Exception
                ):  # raised by the application's logging filters or handlers
                    tell(job, outcome, said, self.config.tracebacks and said is not told)
                told = said  # what all jobs of a batch have raised, the first one tells in full
        with self.lock:
            self.slots.clear(call.slot)
            self.free_slots.append(call.slot)
            self.batches.pop(call.slot, None)
            self.isolated = False
            for job, (outcome, _) in ends:
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

    def _give_up(self, suspects: list[Call], error: BaseException) -> NoReturn:
        """End this process, as the outcome of a job could not be recorded. Its parent blames the suspects."""
        with contextlib.suppress(BaseException):  # a handler may have broken what this needs
            if os.getpid() != self._pid:
                end_copy(error)
        after = "".join(f" after job {call.jobs[0].id} ({call.task_identifier})" for call in suspects)
        text = f"this process ends, as it cannot go on{shown(after)}"
        try:
            log.critical("%s", text, exc_info=error)
        except BaseException:
            os.write(2, f"pyworker: {text}\n".encode(errors="replace"))
        with contextlib.suppress(BaseException):
            self.broken = True  # no further job starts
            self.slots.blame((call.slot, call.runs) for call in suspects)
            self._wake()
            time.sleep(LAST_WORD)  # meanwhile the turn reports outcomes and ends the process
        os._exit(EXIT_BROKEN)
