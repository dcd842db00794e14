"""Who runs where: handlers in threads and on the event loop, from the claimed job to its one outcome.

    ready → _start → running → run_job | run_job_async → _ended → outcomes

`_ended` alone decides that a job has ended. Where it cannot, the process ends (`_give_up`), and the parent hands its jobs back.
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
from .outcomes import KINDS, Ended, Outcomes, failure_of, tell
from .shared import Slots

log = logging.getLogger("pyworker.worker")

CANCEL_GRACE = 5.0  # seconds that a handler has to stop when it is cancelled, before its process is ended
LAST_WORD = 2.0  # seconds that a broken process has to report what has ended
NEVER = -1


class Handlers:
    """The handlers of a worker process, at most `concurrency` at once."""

    def __init__(self, config: RunConfig, slots: Slots, connections: Connections, wake: Callable[[], None]) -> None:
        self.config = config
        self.slots = slots
        self.connections = connections
        self.tasks: dict[str, tasks.Task[..., Any]] = {}
        self.timeouts: dict[str, float] = {}  # by task, in seconds
        self.context = copy_context()  # with what the modules of the tasks set; each handler runs in a copy of its own
        # Guarded by `lock`: what is claimed and not begun, and what runs.
        self.lock = threading.Lock()
        self.ready: deque[Claimed] = deque()
        self.running: dict[
            tuple[int, int], Claimed
        ] = {}  # by id and run: a job may run again before its lost run has ended
        self.handed_back: list[Claimed] = []  # at the end; kept, so that no handler is collected
        self.broken = False  # a job's end could not be noted
        self.isolated = False  # what runs may have ended a process before: nothing runs beside it
        self.free_slots = list(range(config.concurrency))
        self.threads = 0
        self.thread_jobs: SimpleQueue[Claimed] = SimpleQueue()
        self.loop: asyncio.AbstractEventLoop | None = None
        self._spawned: deque[Claimed] = deque()  # tasks that may not have had their first step
        self._looking = False
        # Filled by handlers, emptied by the turn. deque.append is atomic.
        self.outcomes: deque[tuple[str, Any]] = deque()
        self.wake_at = NEVER  # with how few jobs at hand the end of one wakes the turn
        self._wake = wake
        self._pid = os.getpid()

    # -- for the turn ---------------------------------------------------------------------------------------------

    @property
    def load(self) -> int:
        return len(self.ready) + len(self.running)

    @property
    def idle(self) -> bool:
        with self.lock:  # an end goes from `running` to `outcomes`
            return not (self.ready or self.running or self.outcomes)

    def begin(self, claimed: Iterable[Sequence[Any]]) -> None:
        """Rows of claim_jobs: as many as there is room for begin now, the others after them."""
        with self.lock:
            self.ready.extend(Claimed(*row) for row in claimed)
            begun = self._start()
        self._dispatch(begun)

    def collect(self) -> Outcomes:
        outcomes = Outcomes()
        add = {kind: getattr(outcomes, kind).append for kind in KINDS}
        while self.outcomes:
            kind, value = self.outcomes.popleft()
            add[kind](value)
        return outcomes

    def take_back(self, outcomes: Outcomes) -> None:
        """They may not have been heard: they are to be collected again."""
        for kind in KINDS:
            self.outcomes.extend((kind, item) for item in getattr(outcomes, kind))

    def known(self) -> list[tuple[int, int]]:
        """Id and run of every job that is ours as far as we know."""
        with self.lock:
            return [(job.id, job.run) for job in self.ready] + [*self.running] + [told[:2] for _, told in self.outcomes]

    def keep(self, held: set[int]) -> None:
        """Of what has not begun, only these jobs are still ours."""
        with self.lock:
            self.ready = deque(job for job in self.ready if job.id in held)

    def hand_back(self, everything: bool) -> None:
        """What has not begun is released; with `everything` also what runs, whose handlers end with this process."""
        with self.lock:
            self._release(self.ready)
            self.ready.clear()
            if everything:
                self._release(self.running.values())
                self.handed_back.extend(self.running.values())
                self.running.clear()

    def uncancelled(self) -> list[tuple[int, int]]:
        with self.lock:
            return [(job.id, job.run) for job in (*self.running.values(), *self.ready) if not job.cancelled]

    def cancel(self, gone: set[int]) -> None:
        """These jobs were cancelled, or are no longer ours: what has not begun is released, what runs is told to stop."""
        with self.lock:
            for job in [job for job in self.ready if job.id in gone]:
                self.ready.remove(job)
                self._release([job])  # ends cancelled there, if it is still ours
            for job in [job for job in self.running.values() if job.id in gone and not job.cancelled]:
                self._cancel(job)

    def leave(self) -> None:
        """The process ends deliberately: no handler is to blame."""
        self.lock.acquire(timeout=1)  # for good: no further job begins
        self.slots.blame([])

    # -- where a job begins … -------------------------------------------------------------------------------------

    def _release(self, jobs: Iterable[Claimed]) -> None:
        self.outcomes.extend(("released", (job.id, job.run)) for job in jobs)

    def _cancel(self, job: Claimed) -> None:
        job.cancelled = True
        if isinstance(job.handler, Job):
            job.handler._cancelled = True  # pyright: ignore[reportPrivateUsage] - its reader is the handler
        elif job.handler is not None:
            self._event_loop().call_soon_threadsafe(job.handler.cancel)
        self.slots.set(job.slot, job.id, job.run, time.monotonic() + CANCEL_GRACE)

    def _start(self) -> list[Claimed]:
        """Give free slots to ready jobs; called with the lock held. The caller, no longer holding it, is to dispatch them."""
        begun: list[Claimed] = []
        if self.ready and self.slots.expired():  # we stood still; what is still ours goes back
            self._release(self.ready)
            self.ready.clear()
        while self.ready and len(self.running) < self.config.concurrency and not (self.isolated or self.broken):
            if self.ready[0].crashes and self.running:
                break
            job = self.ready.popleft()
            self.isolated = job.crashes > 0
            for lost in [lost for lost in self.running.values() if lost.id == job.id]:
                self._cancel(lost)  # an earlier run of the same job, whose claim must be gone
            self.running[job.id, job.run] = job
            job.slot = self.free_slots.pop()
            limit = self.timeouts.get(job.task_identifier)
            # The parent has more patience with what can be cancelled.
            patience = CANCEL_GRACE if limit and self.tasks[job.task_identifier].is_async else 0.0
            self.slots.set(job.slot, job.id, job.run, time.monotonic() + limit + patience if limit else 0.0)
            begun.append(job)
        return begun

    def _dispatch(self, begun: list[Claimed], in_thread: bool = False) -> Claimed | None:
        """Each to where its handler runs. A handler thread gets one back, to go on with: a hand-over costs more than many a handler."""
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
            # `running` keeps it from being collected; the loop itself has only weak references.
            job.handler = self.loop.create_task(self._run_async(job), context=self.context.copy())
        self._spawned.extend(jobs)
        if not self._looking:
            self._looking = True
            self.loop.call_soon(self._look, len(self._spawned))

    def _look(self, count: int) -> None:
        """A task that is cancelled before its first step never comes to _run_async: its job is released. These have had theirs."""
        assert self.loop is not None  # noqa: S101
        for _ in range(count):
            job = self._spawned.popleft()
            if cast("asyncio.Task[None]", job.handler).done() and self.running.get((job.id, job.run)) is job:
                self._end(job, ("released", (job.id, job.run), None))
        self._looking = bool(self._spawned)
        if self._looking:
            self.loop.call_soon(self._look, len(self._spawned))

    async def _run_async(self, job: Claimed) -> None:
        try:
            task, limit = self.tasks[job.task_identifier], self.timeouts.get(job.task_identifier)
            ended = await run_job_async(job, task, self.connections, limit)
        except BaseException as error:
            ended = failure_of(job, error)
        self._end(job, ended)

    def _end(self, job: Claimed, ended: Ended) -> None:
        """On the loop."""
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
        """SystemExit and KeyboardInterrupt in a subtask, and loop.stop(), stop the loop. It goes on, for the other handlers."""
        keep_from_copies(loop)
        while True:
            why = "loop.stop()"
            try:
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                why = type(error).__name__
            except BaseException as error:
                self._give_up([job for job in self.running.values() if isinstance(job.handler, asyncio.Task)], error)
            if os.getpid() != self._pid:
                end_copy()
            log.error("a handler has stopped the event loop (%s); it goes on", why)

    # -- … and where it ends --------------------------------------------------------------------------------------

    def _ended(self, job: Claimed, ended: Ended) -> list[Claimed]:
        """The one place where a job ends. What may begin in its place is returned, to be dispatched."""
        kind, value, said = ended
        if os.getpid() != self._pid:
            end_copy(said)
        if kind == "failed":
            with contextlib.suppress(Exception):  # of a filter or handler of the application
                tell(job, value, said, self.config.tracebacks)
        with self.lock:
            self.slots.clear(job.slot)
            self.free_slots.append(job.slot)
            self.isolated = False
            if self.running.pop((job.id, job.run), None) is None:
                return []  # handed back meanwhile
            self.outcomes.append((kind, value))
            begun = self._start()
        if len(self.ready) <= self.wake_at:
            self.wake_at = NEVER  # once is enough
            self._wake()
        return begun

    def _give_up(self, suspects: list[Claimed], error: BaseException) -> NoReturn:
        """A job's end could not be noted. The process ends, so that the parent hands its jobs back; only the suspects are blamed."""
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
            self.broken = True  # no further job begins
            self.slots.blame([(job.slot, job.id, job.run) for job in suspects])
            self._wake()
            time.sleep(LAST_WORD)  # the turn reports what has ended, and ends the process
        os._exit(EXIT_BROKEN)
