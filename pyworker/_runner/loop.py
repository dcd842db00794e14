"""The event loop of async handlers, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable

from .copies import end_copy, keep_from_copies

log = logging.getLogger("pyworker.worker")


def start_loop(uvloop: bool, failed: Callable[[BaseException], object]) -> asyncio.AbstractEventLoop:
    new_event_loop = asyncio.new_event_loop
    if uvloop:
        with contextlib.suppress(ImportError):
            from uvloop import new_event_loop
    loop = new_event_loop()
    args = (loop, os.getpid(), failed)
    try:
        threading.Thread(target=_turn, args=args, daemon=True, name="event-loop").start()
    except BaseException:
        loop.close()
        raise
    return loop


def _turn(loop: asyncio.AbstractEventLoop, pid: int, failed: Callable[[BaseException], object]) -> None:
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
            failed(error)
        if os.getpid() != pid:
            end_copy()
        log.error("a handler has stopped the event loop (%s); it goes on", why)
