"""Around each handler, what Django does around a request: connections that are broken or too old are closed.

A sync handler has the connections of its thread. Those of an async handler are in the thread in which its
`sync_to_async`, and so the ORM, runs. No other handler uses this thread before it ends. Then both keep
their connections for as long as CONN_MAX_AGE says.
"""

# pyright: basic
from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator, Set
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from django.db import connections
from psycopg.pq import TransactionStatus

from .. import _middleware
from ..job import AsyncJob, Job

log = logging.getLogger("pyworker.django")


def around_handlers() -> None:
    """Surround the handlers of this process, outside all other middleware."""
    if around not in _middleware.registered:
        _middleware.registered.insert(0, around)


def around(job: Job | AsyncJob) -> Generator[None, Any, None]:
    if isinstance(job, AsyncJob):
        yield from _around_async(job)
        return
    lent = _in_transaction()
    close_old_connections(lent, job.task_identifier)
    try:
        yield
    finally:
        close_old_connections(lent, job.task_identifier)


def _in_transaction() -> Set[str]:
    """The databases on which the caller has a transaction open, as a TestCase has."""
    return {conn.alias for conn in connections.all(initialized_only=True) if _is_in_transaction(conn)}


def _is_in_transaction(conn: Any) -> bool:
    """In atomic(), or after a BEGIN that Django does not know of."""
    about = getattr(conn.connection, "info", None)  # psycopg's and psycopg2's
    status = getattr(about, "transaction_status", TransactionStatus.IDLE)
    return conn.in_atomic_block or status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)


def close_old_connections(lent: Set[str] = frozenset(), task: str = "") -> None:
    """As Django's, in this thread. The caller's connections stay as they are."""
    for conn in connections.all(initialized_only=True):
        if conn.alias in lent:
            continue
        if _is_in_transaction(conn):
            log.error("task %s has left a transaction of database %r open: rolled back", task, conn.alias)
            del connections[conn.alias]  # Django opens no other connection within the block
            conn.close()
        else:
            conn.close_if_unusable_or_obsolete()


class _Thread(ThreadPoolExecutor):
    """Where the database calls of one async handler run, one after the other."""

    def __init__(self) -> None:
        super().__init__(max_workers=1, thread_name_prefix="django")
        self.used = False
        _threads.add(self)

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.used = True
        return super().submit(fn, *args, **kwargs)


_threads: set[_Thread] = set()
_free: deque[_Thread] = deque()  # those that no handler has


class _Context(ThreadSensitiveContext):
    """The handler's own. asgiref finds the thread by it."""


def _around_async(job: AsyncJob) -> Generator[None, Any, None]:
    """Nothing here waits: a thread runs what it is given in that order."""
    if isinstance(SyncToAsync.thread_sensitive_context.get(None), _Context):
        yield  # another job of the same batch has begun it
        return
    try:
        thread = _free.pop()
    except IndexError:
        thread = _Thread()
    if thread.used:
        thread.submit(close_old_connections)
    context = _Context()
    SyncToAsync.context_to_thread_executor[context] = thread
    token = SyncToAsync.thread_sensitive_context.set(context)
    try:
        yield
    finally:
        SyncToAsync.thread_sensitive_context.reset(token)
        SyncToAsync.context_to_thread_executor.pop(context, None)
        if thread.used:  # a cancelled handler may have left it at work
            closed = thread.submit(close_old_connections, task=job.task_identifier)
            closed.add_done_callback(lambda _: _free.append(thread))
        else:
            _free.append(thread)


def close_threads() -> None:
    """Close the connections of these threads, and wait for it: a test's database is dropped soon."""
    while _threads:
        thread = _threads.pop()
        if thread.used:
            thread.submit(connections.close_all)
        thread.shutdown()
    _free.clear()
