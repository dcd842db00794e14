"""To which transaction a call of a job's method belongs.

A transaction of a job belongs to the asyncio task or the thread that has opened it, and to the tasks that
this one starts within its block. For all others job.add_job() uses a connection of its own: what one of them
rolls back, the others have not written.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from .errors import WrongState

guard = threading.Lock()  # for what a job notes of its transactions and steps: several threads may


class _Opened:
    """A block of job.transaction() or job.step_transaction(), around which `outer` may be: another job's."""

    __slots__ = ("connection", "is_open", "job", "outer")

    def __init__(self, job: Any, connection: Any, outer: _Opened | None) -> None:
        self.job = job
        self.connection = connection
        self.outer = outer
        self.is_open = True


_innermost: ContextVar[_Opened | None] = ContextVar("pyworker_opened", default=None)


def opened(job: Any) -> Any:
    """The connection of the job's block that the caller is in; None outside."""
    at = _innermost.get()
    while at is not None and not (at.job is job and at.is_open):
        at = at.outer
    return at and at.connection


@contextmanager
def within(job: Any, connection: Any) -> Iterator[None]:
    outer = _innermost.get()
    mine = _Opened(job, connection, outer)
    _innermost.set(mine)
    try:
        yield
    finally:
        mine.is_open = False  # tasks that were started in the block may outlive it
        if _innermost.get() is mine:
            _innermost.set(outer)


def refuse_inside(job: Any, caller: str, why: str) -> None:
    if opened(job) is not None:
        raise WrongState(f"{caller}: {why}")
