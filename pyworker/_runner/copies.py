"""Copies of the worker process that a handler makes with os.fork().

A copy that returns from the handler must not act as a second worker."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import sys
import threading
import weakref
from collections import deque
from typing import Any, NoReturn

log = logging.getLogger("pyworker.worker")


def end_copy(error: Any = None) -> NoReturn:
    """End this copy, in which the handler has returned, as sys.exit() would. It reports nothing."""
    code = 1
    with contextlib.suppress(BaseException):
        if isinstance(error, SystemExit):
            code = 0 if error.code is None else error.code if isinstance(error.code, int) else 1
            if error.code is not None and not isinstance(error.code, int):
                print(error.code, file=sys.stderr)
        else:
            log.error(
                "a copy of the process that a handler made by os.fork() has come back;"
                " it ends here (use os._exit)"
            )
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(code & 0xFF)


def keep_from_copies(loop: asyncio.AbstractEventLoop) -> None:
    """Make each copy that this thread forks end when it returns to the loop.

    Call it in the loop's thread.
    """
    thread, known = threading.get_ident(), weakref.ref(loop)

    def copied() -> None:
        if threading.get_ident() == thread and (loop := known()) is not None:
            for waiting in _ready(loop):
                waiting.clear()  # callbacks of other handlers: the original process runs them
            loop.call_soon(end_copy)

    os.register_at_fork(after_in_child=copied)


def _ready(loop: asyncio.AbstractEventLoop) -> list[deque[Any]]:
    """The loop's queue of callbacks. Neither asyncio nor uvloop has a public name for it."""
    own: Any = getattr(loop, "_ready", None)
    return (
        [own] if own is not None else [found for found in gc.get_referents(loop) if isinstance(found, deque)]
    )
