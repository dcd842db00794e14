"""Copies of the worker process that handlers make with os.fork(), multiprocessing or a preexec_fn.

A copy is an ordinary process. If it returns from the handler, it must not act as a second worker."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any, NoReturn

from . import signals

log = logging.getLogger("pyworker.worker")


def make_ordinary(ours: Iterable[int]) -> None:
    """Give each copy default signals, and close these files there.

    Call it before the application is imported, as hooks run in the order of their registration.
    """
    masks = threading.local()

    def before() -> None:  # a signal that comes at once waits for its default action
        masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, signals.STOPS)

    def in_copy() -> None:
        for number in signals.heard():
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        with open(os.devnull, "r+b", buffering=0) as nothing:
            for fd in ours:  # not closed: their numbers stay taken
                with contextlib.suppress(OSError):
                    os.dup2(nothing.fileno(), fd, inheritable=False)
        restored()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # it may raise only from here on

    def restored() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    os.register_at_fork(before=before, after_in_parent=restored, after_in_child=in_copy)


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
