"""The signals that stop a worker.

They may reach each of its processes (Ctrl-C, `kill -- -PGID`, systemd); the parent alone acts on them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def heard() -> list[signal.Signals]:
    """Those of STOPS that the parent acts on: all but a SIGHUP that nohup has told it to ignore."""
    return [number for number in STOPS if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN]


def nothing(_number: int, _frame: object) -> None:
    """A handler that only wakes what waits."""


@contextmanager
def held_back() -> Iterator[None]:
    """The parent, while it starts a child: the child inherits the mask, so no signal ends it before it calls leave_to_parent."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_to_parent() -> None:
    """The child does nothing at these signals. With SIG_IGN the programs that its jobs start would ignore them, too."""
    for number in heard():
        signal.signal(number, nothing)
        signal.siginterrupt(number, False)  # system calls of C libraries go on
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
