"""The signals that stop a worker.

They may reach every process of the worker (Ctrl-C, `kill -- -PGID`, systemd); only the parent acts
on them."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
Handler = Callable[[int, object], None]


def heard() -> list[signal.Signals]:
    """The signals of STOPS that the parent acts on.

    All, but not a SIGHUP that nohup made it ignore.
    """
    return [
        number
        for number in STOPS
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
    ]


def nothing(_number: int, _frame: object) -> None:
    """A signal handler that does nothing; the signal interrupts a wait."""


@contextmanager
def listening(stop: Handler) -> Iterator[socket.socket]:
    """Do what is to be done at each signal. Yields a socket that can be read after each of them."""
    wakeup, notice = socket.socketpair()
    for end in (wakeup, notice):
        end.setblocking(False)
    signal.set_wakeup_fd(notice.fileno())
    acts: dict[int, Handler] = {signal.SIGCHLD: nothing, **dict.fromkeys(heard(), stop)}
    before = {number: signal.signal(number, act) for number, act in acts.items()}
    try:
        yield wakeup
    finally:
        signal.set_wakeup_fd(-1)
        for number, act in before.items():
            signal.signal(number, act)


@contextmanager
def held_back() -> Iterator[None]:
    """Block these signals while the parent starts a child.

    The child inherits the mask, so no signal ends it before it calls leave_to_parent.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Exit(NamedTuple):
    pid: int
    code: int


def ended_child() -> Exit | None:
    """A child process that has ended, once for each. As PID 1 it also reaps orphans."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return Exit(pid, os.waitstatus_to_exitcode(status)) if pid else None


def is_child_to_reap() -> bool:
    with suppress(ChildProcessError):
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return False


def adopt_orphans() -> None:
    """Become the parent of processes whose own has ended, as PID 1 is, so that `ended_child` reaps them."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def restore_in_copies() -> None:
    """Give each process that a handler forks (multiprocessing, a preexec_fn) the default actions.

    Call it before the application is imported, as hooks run in the order of their registration.
    """
    masks = threading.local()

    def before() -> None:  # a signal that comes at once waits for its default action
        masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)

    def restored() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    def in_copy() -> None:
        for number in heard():
            signal.signal(number, signal.SIG_DFL)
        restored()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # it may raise only from here on

    os.register_at_fork(before=before, after_in_parent=restored, after_in_child=in_copy)


def signal_group(group: int, number: int) -> bool:
    """Send a signal to all processes of a group. False if there are none, or none of this user."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def wake_parent() -> None:
    """Let the parent look at its children at once, as when one has ended."""
    os.kill(os.getppid(), signal.SIGCHLD)


def leave_to_parent() -> None:
    """Make the child do nothing at these signals.

    With SIG_IGN, programs that its jobs start would ignore them, too.
    """
    for number in heard():
        signal.signal(number, nothing)
        signal.siginterrupt(number, False)  # restart system calls of C libraries
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
