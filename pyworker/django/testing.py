"""Jobs in the tests of a Django project: run them in the test, and leave no job to the next one.

    from django.test import TransactionTestCase
    from pyworker.django.testing import JobsMixin

    class OrderTests(JobsMixin, TransactionTestCase):
        def test_an_order_is_charged(self):
            self.client.post("/orders/", {"email": "ada@example.org"})
            self.jobs.assert_enqueued("charge")
            self.jobs.drain()                        # runs what is due, in this process

It needs pip install 'pyworker-pg[testing]'. See docs/testing.md.
"""

# pyright: basic
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.test import TransactionTestCase

from .. import testing
from .._client import default_schema
from .._db.scripts import delete_jobs_text
from ._connections import around_handlers, close_threads
from ._database import dsn


class Jobs(testing.Queue):
    """The jobs in one database of the test run: drain, run_task, enqueued, assert_enqueued …"""

    def __init__(self, alias: str = DEFAULT_DB_ALIAS) -> None:
        self.alias = alias
        super().__init__(dsn(alias))
        around_handlers()

    @contextmanager
    def _worker(self) -> Iterator[Any]:
        """The worker has connections of its own: it sees only what is committed."""
        if connections[self.alias].in_atomic_block:
            raise transaction.TransactionManagementError(
                "jobs of an open transaction cannot run: use TransactionTestCase rather than TestCase"
                " (pytest-django: django_db(transaction=True)), and run them outside atomic()"
            )
        try:
            with super()._worker() as worker:
                yield worker
        finally:
            close_threads()

    def clear(self) -> None:
        """Delete all jobs. Definitions of tasks, settings of queues and schedules stay."""
        with connections[self.alias].cursor() as cursor:
            cursor.execute(delete_jobs_text(default_schema()))


class JobsMixin:
    """Put it before TransactionTestCase: `self.jobs`, and an empty queue after each test.

    Django empties only the tables of its models."""

    jobs_database = DEFAULT_DB_ALIAS

    @property
    def jobs(self) -> Jobs:
        return Jobs(self.jobs_database)

    def _fixture_teardown(self) -> None:
        if isinstance(self, TransactionTestCase) and not connections[self.jobs_database].in_atomic_block:
            self.jobs.clear()  # a TestCase rolls back
        super()._fixture_teardown()  # type: ignore[misc]
