"""Where handlers run: sync ones in threads, async ones on an event loop in a thread of its own.

Threads are started when they are needed, at most one for each handler. Where the system allows no more, calls
wait for those that there are; what waits too long is handed back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import NoReturn

from . import attempt
from .claimed import Call
from .connections import Connections
from .outcomes import Ended, failures_of, release
from .waiting import Waiting

log = logging.getLogger("pyworker.worker")

AGAIN = 1.0  # seconds until the next attempt to start a thread
NO_THREAD = (RuntimeError, MemoryError)  # what Python raises then


class Places:
    """The places of one process.

    `waiting`: knows of the calls that are sent to a place. `ended`: takes the outcomes of a call, and
    returns calls that may start then. `give_up`: ends the process, as it cannot go on after these calls;
    None: after any that runs on the loop."""

    def __init__(
        self,
        threads: int,
        uvloop: bool,
        connections: Connections,
        waiting: Waiting,
        ended: Callable[[Call, list[Ended]], list[Call]],
        give_up: Callable[[list[Call] | None, BaseException], NoReturn],
    ) -> None:
        self.context = copy_context()  # holds what task modules set; each handler runs in its own copy
        self._most, self._uvloop, self._connections = threads, uvloop, connections
        self._waiting, self._ended, self._give_up = waiting, ended, give_up
        self._calls: SimpleQueue[Call] = SimpleQueue()  # for the threads
        self._threads = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._for_loop: list[Call] = []  # its thread could not be started
        self._short = self._told = False  # of threads; and the log says so
        self._again_at = 0.0

    def dispatch(self, calls: list[Call], in_thread: bool = False) -> Call | None:
        """Send each call to its place. A thread gets one back to run next: that costs less."""
        mine: Call | None = None
        for_loop: list[Call] = []
        for call in calls:
            if call.task.is_async:
                for_loop.append(call)
            elif in_thread and mine is None:
                mine = call
            else:
                self._waiting.calls[call.slot] = call
                self._calls.put(call)
                if not self._short:
                    self._start_thread()
        if for_loop:
            self._waiting.calls.update({call.slot: call for call in for_loop})
            self._send_to_loop(for_loop)
        return mine

    def cancel(self, call: Call) -> None:
        """Cancel an async handler."""
        if self._loop is not None and call.handler is not None:
            self._loop.call_soon_threadsafe(call.handler.cancel)

    def again_in(self) -> float:
        """Seconds until `start_again` is to be called."""
        return max(self._again_at - time.monotonic(), 0.0) if self._short else math.inf

    def start_again(self) -> None:
        """Start what could not be started before, when it is time."""
        if self.again_in():
            return
        self._short = False
        while self._calls.qsize() and self._start_thread():
            pass
        waiting, self._for_loop = self._for_loop, []
        self.dispatch(waiting)

    # -- threads -----------------------------------------------------------------------------------

    def _start_thread(self) -> bool:
        name = f"handler-{self._threads + 1}"
        if self._threads >= self._most or not self._start(self._run_calls, name):
            return False
        self._threads += 1
        return True

    def _start(self, target: Callable[[], object], name: str) -> bool:
        try:
            threading.Thread(target=target, daemon=True, name=name).start()
        except NO_THREAD as error:
            if not self._told:
                self._told = True
                log.error(
                    "no thread can be started (%s): %d of %d handlers run, other jobs are handed back",
                    error or "no memory", self._threads, self._most,
                )  # fmt: skip
            self._short, self._again_at = True, time.monotonic() + AGAIN
            return False
        if self._told:
            self._told = False
            log.info("threads can be started again")
        return True

    def _run_calls(self) -> None:
        suspects: list[Call] = []
        try:
            while True:
                call: Call | None = self._calls.get()
                begins = self._waiting.begins(call)
                while call:
                    suspects, own = [call], self.context.copy()
                    ends = own.run(attempt.run, call, self._connections) if begins else handed_back(call)
                    begun, suspects = self._ended(call, ends), []
                    call, begins = self.dispatch(begun, in_thread=True), True
        except BaseException as error:
            self._give_up(suspects, error)

    # -- the loop ----------------------------------------------------------------------------------

    def _send_to_loop(self, calls: list[Call]) -> None:
        if self._loop is None:
            self._loop = _new_loop(self._uvloop)
            if not self._start(self._turn, "event-loop"):
                self._loop.close()
                self._loop = None
                self._for_loop += calls
                return
        if asyncio._get_running_loop() is self._loop:
            self._spawn(calls)
        else:
            self._loop.call_soon_threadsafe(self._spawn, calls)

    def _turn(self) -> None:
        """Run the loop, and restart it for the other handlers when a handler stops it.

        A handler does so by loop.stop(), or by SystemExit or KeyboardInterrupt in a subtask.
        """
        assert self._loop is not None  # noqa: S101
        while True:
            why = "loop.stop()"
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                why = type(error).__name__
            except BaseException as error:
                self._give_up(None, error)
            log.error("a handler has stopped the event loop (%s); it goes on", why)

    def _spawn(self, calls: list[Call]) -> None:
        assert self._loop is not None  # noqa: S101
        for call in calls:
            # The loop has only weak references; the handlers' list of calls keeps the task.
            call.handler = self._loop.create_task(self._run_async(call), context=self.context.copy())
            call.handler.add_done_callback(partial(self._done, call), context=self.context)

    async def _run_async(self, call: Call) -> None:
        try:
            begins = self._waiting.begins(call)
            ends = await attempt.run_async(call, self._connections) if begins else handed_back(call)
        except BaseException as error:
            ends = failures_of(call.jobs, error)
        self._end(call, ends)  # in the same step: the handler may have broken the loop

    def _done(self, call: Call, handler: asyncio.Task[None]) -> None:
        if handler.cancelled():  # before its first step
            self._waiting.begins(call)
            self._end(call, handed_back(call))

    def _end(self, call: Call, ends: list[Ended]) -> None:
        suspects = [call]
        try:
            begun, suspects = self._ended(call, ends), []
            self.dispatch(begun)
        except BaseException as error:
            self._give_up(suspects, error)


def handed_back(call: Call) -> list[Ended]:
    """The outcomes of a call that does not begin."""
    return [(release(job), None) for job in call.jobs]


def _new_loop(uvloop: bool) -> asyncio.AbstractEventLoop:
    new_event_loop = asyncio.new_event_loop
    if uvloop:
        with contextlib.suppress(ImportError):
            from uvloop import new_event_loop
    return new_event_loop()
