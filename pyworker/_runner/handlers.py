"""Runs handlers in threads and on the event loop, from the claimed job to its one outcome.

    ready → _start → running → run_job | run_job_async → _ended → outcomes

Only `_ended` ends a job. If it cannot, the process exits (`_give_up`) and the parent hands its jobs
back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any, NoReturn, cast

from .. import tasks
from .._escape import shown
from ..job import Job
from .attempt import run_job, run_job_async
from .claimed import Claimed
from .config import EXIT_BROKEN, RunConfig
from .connections import Connections
from .copies import end_copy, keep_from_copies
from .outcomes import Ended, Outcome, Outcomes, Report, failure_of, release, tell
from .shared import Slots

log = logging.getLogger("pyworker.worker")

CANCEL_GRACE = 5.0  # seconds from a handler's cancellation until its process is killed
LAST_WORD = 2.0  # seconds that a broken process has to report outcomes
NEVER, IF_URGENT = -1, -2  # see wake_at


class Handlers:
    """The handlers of a worker process, at most `concurrency` at once."""

    def __init__(
        self, config: RunConfig, slots: Slots, connections: Connections, wake: Callable[[], None]
    ) -> None:
        self.config = config
        self.slots = slots
        self.connections = connections
        self.tasks: dict[str, tasks.Task[..., Any]] = {}
        self.context = copy_context()  # holds what task modules set; each handler runs in its own copy
        # `lock` guards `ready` (claimed, not started) and `running`.
        self.lock = threading.Lock()
        self.ready: deque[Claimed] = deque()
        self.running: dict[
            tuple[int, int], Claimed
        ] = {}  # by id and run: a job may run again before the handler of its lost run ends
        self.handed_back: list[Claimed] = []  # referenced, so that no handler is garbage collected
        self.broken = False  # a job's outcome could not be recorded
        self.isolated = False  # the running job may have crashed a process before, so it runs alone
        self.free_slots = list(range(config.concurrency))
        self.threads = 0
        self.thread_jobs: SimpleQueue[Claimed] = SimpleQueue()
        self.loop: asyncio.AbstractEventLoop | None = None
        self._spawned: deque[Claimed] = deque()  # asyncio tasks that may not have started yet
        self._looking = False
        # Filled by handlers, emptied by the turn. deque.append is atomic.
        self.outcomes: deque[Outcome] = deque()
        self.urgent = False  # an outcome is to be reported at once: see _ended
        self.wake_at = NEVER  # an outcome wakes the turn if at most so many jobs are ready
        self._wake = wake
        self._pid = os.getpid()

    # -- for the turn ------------------------------------------------------------------------------

    @property
    def load(self) -> int:
        return len(self.ready) + len(self.running)

    @property
    def idle(self) -> bool:
        with self.lock:  # `_ended` moves a job from `running` to `outcomes`
            return not (self.ready or self.running or self.outcomes)

    def begin(self, claimed: Iterable[Sequence[Any]]) -> None:
        """Take claimed jobs.

        Start as many as there is room for; the others wait in `ready`.
        """
        with self.lock:
            self.ready.extend(Claimed(*row) for row in claimed)
            begun = self._start()
        self._dispatch(begun)

    def collect(self) -> Outcomes:
        outcomes = Outcomes()
        self.urgent = False
        while self.outcomes:
            outcomes.add(self.outcomes.popleft())
        return outcomes

    def take_back(self, outcomes: Outcomes) -> None:
        """Put outcomes back that may not have been stored, for the next `collect`."""
        self.outcomes.extend(outcomes)

    def queues(self) -> list[str | None]:
        """The queue of each job that waits or runs here."""
        with self.lock:
            return [job.queue_name for job in (*self.ready, *self.running.values())]

    def known(self) -> list[tuple[int, int]]:
        """Id and run of every job that this process believes it holds."""
        with self.lock:
            return (
                [(job.id, job.run) for job in self.ready]
                + [*self.running]
                + [outcome[:2] for outcome in self.outcomes]
            )

    def hand_back(self, everything: bool) -> None:
        """Release the ready jobs, with `everything` also the running ones.

        Their handlers end with this process.
        """
        with self.lock:
            self._release(self.ready)
            self.ready.clear()
            if everything:
                self._release(self.running.values())
                self.handed_back.extend(self.running.values())
                self.running.clear()

    def cancel(self, runs: set[tuple[int, int]]) -> None:
        """Cancel these jobs, or jobs that are no longer ours.

        Release the ready ones, and tell the handlers of the running ones.
        """
        with self.lock:
            for job in [job for job in self.ready if (job.id, job.run) in runs]:
                self.ready.remove(job)
                self._release([job])  # if it is still ours, the database ends it as cancelled
            for run in runs & self.running.keys():
                if not self.running[run].cancelled:
                    self._cancel(self.running[run])

    def leave(self) -> None:
        """Record that no handler is to blame for the end of this process."""
        self.lock.acquire(timeout=1)  # never released, so that no further job starts
        self.slots.blame([])

    # -- where a job begins -----------------------------------------------------------------------

    def _release(self, jobs: Iterable[Claimed]) -> None:
        self.outcomes.extend(release(job) for job in jobs)

    def _cancel(self, job: Claimed) -> None:
        job.cancelled = True
        if isinstance(job.handler, Job):
            job.handler._cancelled = True  # pyright: ignore[reportPrivateUsage] - its reader is the handler
        elif job.handler is not None:
            self._event_loop().call_soon_threadsafe(job.handler.cancel)
        self.slots.set(job.slot, job.id, job.run, time.monotonic() + CANCEL_GRACE)

    def _start(self) -> list[Claimed]:
        """Assign free slots to ready jobs.

        Call it with the lock held; dispatch the returned jobs after releasing it.
        """
        begun: list[Claimed] = []
        if self.ready and self.slots.expired():  # this process was suspended: release what is still ours
            self._release(self.ready)
            self.ready.clear()
        while (
            self.ready and len(self.running) < self.config.concurrency and not (self.isolated or self.broken)
        ):
            if self.ready[0].crashes and self.running:
                break
            job = self.ready.popleft()
            self.isolated = job.crashes > 0
            for lost in [lost for lost in self.running.values() if lost.id == job.id]:
                self._cancel(lost)  # an earlier run of the same job: its claim is lost
            self.running[job.id, job.run] = job
            job.slot = self.free_slots.pop()
            limit = job.timeout
            # An async handler is cancelled at its limit; the parent kills only after CANCEL_GRACE
            # more.
            patience = CANCEL_GRACE if limit and self.tasks[job.task_identifier].is_async else 0.0
            self.slots.set(job.slot, job.id, job.run, time.monotonic() + limit + patience if limit else 0.0)
            begun.append(job)
        return begun

    def _dispatch(self, begun: list[Claimed], in_thread: bool = False) -> Claimed | None:
        """Send each job to where its handler runs.

        A handler thread gets one job back to run next: handing it over would cost more than many a
        handler.
        """
        mine: Claimed | None = None
        to_loop: list[Claimed] = []
        for job in begun:
            if self.tasks[job.task_identifier].is_async:
                to_loop.append(job)
            elif in_thread and mine is None:
                mine = job
            else:
                self.thread_jobs.put(job)
                if self.threads < self.config.concurrency:
                    self.threads += 1
                    threading.Thread(target=self._handle, daemon=True, name=f"handler-{self.threads}").start()
        if to_loop:
            loop = self._event_loop()
            if asyncio._get_running_loop() is loop:
                self._spawn(to_loop)
            else:
                loop.call_soon_threadsafe(self._spawn, to_loop)
        return mine

    def _handle(self) -> None:
        suspects: list[Claimed] = []
        try:
            while True:
                job: Claimed | None = self.thread_jobs.get()
                while job:
                    suspects = [job]
                    task = self.tasks[job.task_identifier]
                    begun = self._ended(job, self.context.copy().run(run_job, job, task, self.connections))
                    suspects = []
                    job = self._dispatch(begun, in_thread=True)
        except BaseException as error:
            self._give_up(suspects, error)

    def _spawn(self, jobs: list[Claimed]) -> None:
        assert self.loop is not None  # noqa: S101
        for job in jobs:
            # The loop has only weak references; `running` keeps the task from being garbage
            # collected.
            job.handler = self.loop.create_task(self._run_async(job), context=self.context.copy())
        self._spawned.extend(jobs)
        if not self._looking:
            self._looking = True
            self.loop.call_soon(self._look, len(self._spawned))

    def _look(self, count: int) -> None:
        """Release the jobs of tasks that were cancelled before their first step.

        They never reached _run_async. The first `count` spawned tasks have had their first step.
        """
        assert self.loop is not None  # noqa: S101
        for _ in range(count):
            job = self._spawned.popleft()
            if cast("asyncio.Task[None]", job.handler).done() and self.running.get((job.id, job.run)) is job:
                self._end(job, (release(job), None))
        self._looking = bool(self._spawned)
        if self._looking:
            self.loop.call_soon(self._look, len(self._spawned))

    async def _run_async(self, job: Claimed) -> None:
        try:
            ended = await run_job_async(job, self.tasks[job.task_identifier], self.connections)
        except BaseException as error:
            ended = failure_of(job, error)
        self._end(job, ended)

    def _end(self, job: Claimed, ended: Ended) -> None:
        """Record the outcome of an async job; runs on the loop."""
        suspects = [job]
        try:
            begun = self._ended(job, ended)
            suspects = []
            if begun:
                self._dispatch(begun)
        except BaseException as error:
            self._give_up(suspects, error)

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        if self.loop is None:
            new_event_loop = asyncio.new_event_loop
            if self.config.uvloop:
                with contextlib.suppress(ImportError):
                    from uvloop import new_event_loop
            self.loop = new_event_loop()
            threading.Thread(target=self._turn_loop, args=[self.loop], daemon=True, name="event-loop").start()
        return self.loop

    def _turn_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the loop, and restart it for the other handlers when a handler stops it.

        A handler does so by loop.stop(), or by SystemExit or KeyboardInterrupt in a subtask.
        """
        keep_from_copies(loop)
        while True:
            why = "loop.stop()"
            try:
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                why = type(error).__name__
            except BaseException as error:
                self._give_up(
                    [job for job in self.running.values() if isinstance(job.handler, asyncio.Task)], error
                )
            if os.getpid() != self._pid:
                end_copy()
            log.error("a handler has stopped the event loop (%s); it goes on", why)

    # -- where a job ends -------------------------------------------------------------------------

    def _ended(self, job: Claimed, ended: Ended) -> list[Claimed]:
        """The one place where a job ends.

        Returns jobs that may start now, for the caller to dispatch.
        """
        outcome, said = ended
        if os.getpid() != self._pid:
            end_copy(said)
        if isinstance(outcome, Report) and outcome.error is not None:
            with contextlib.suppress(Exception):  # raised by the application's logging filters or handlers
                tell(job, outcome, said, self.config.tracebacks)
        with self.lock:
            self.slots.clear(job.slot)
            self.free_slots.append(job.slot)
            self.isolated = False
            if self.running.pop((job.id, job.run), None) is None:
                return []  # it was handed back in the meantime
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

    def _give_up(self, suspects: list[Claimed], error: BaseException) -> NoReturn:
        """End this process because a job's outcome could not be recorded.

        The parent hands its jobs back and blames only the suspects.
        """
        with contextlib.suppress(BaseException):  # a handler may have broken what this needs
            if os.getpid() != self._pid:
                end_copy(error)
        after = "".join(f" after job {job.id} ({job.task_identifier})" for job in suspects)
        text = f"this process ends, as it cannot go on{shown(after)}"
        try:
            log.critical("%s", text, exc_info=error)
        except BaseException:
            os.write(2, f"pyworker: {text}\n".encode(errors="replace"))
        with contextlib.suppress(BaseException):
            self.broken = True  # no further job starts
            self.slots.blame([(job.slot, job.id, job.run) for job in suspects])
            self._wake()
            time.sleep(LAST_WORD)  # meanwhile the turn reports outcomes and ends the process
        os._exit(EXIT_BROKEN)
