"""The connections that pyworker opens: their COMMIT never ends in a rollback without an error.

After a statement has failed, PostgreSQL answers COMMIT with ROLLBACK and psycopg does not look at the
answer. Where the statement's error was caught, the caller would believe that all was committed.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.pq import TransactionStatus
from psycopg.rows import Row
from psycopg.types.json import set_json_loads

from ..errors import TransactionAborted


class _OwnAdapters:
    """psycopg's adapters as they were before the application's modules changed them for all connections."""

    def __init__(self) -> None:
        self.adapters = AdaptersMap(psycopg.adapters)
        self.connection = None
        set_json_loads(json.loads, cast("Any", self))


OWN_ADAPTERS = _OwnAdapters()


def refuse_aborted(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Raise TransactionAborted if a statement of the open transaction has failed."""
    if conn.info.transaction_status == TransactionStatus.INERROR:
        # The server's words for the statement that failed, unless another one was refused after it.
        message = conn.pgconn.error_message.decode("utf-8", "replace").strip().split("\n")[0]
        cause = message.partition(":")[2].strip()
        raise TransactionAborted("" if "transaction is aborted" in cause else cause)


class Connection(psycopg.Connection[Row]):
    """psycopg's, whose commit() and transaction() raise TransactionAborted rather than roll back silently."""

    was_lent = False  # to a handler, since it was cleaned: see lent
    block: Any = None  # what the end of a handler's block needs to know: see lent

    def commit(self) -> None:
        try:
            refuse_aborted(self)
        except TransactionAborted:
            self.rollback()
            raise
        super().commit()

    @contextmanager
    def transaction(
        self, savepoint_name: str | None = None, force_rollback: bool = False
    ) -> Generator[psycopg.Transaction]:
        with super().transaction(savepoint_name, force_rollback) as transaction:
            yield transaction
            if not force_rollback:
                refuse_aborted(self)


class AsyncConnection(psycopg.AsyncConnection[Row]):
    """The same for asyncio."""

    was_lent = False
    block: Any = None

    async def commit(self) -> None:
        try:
            refuse_aborted(self)
        except TransactionAborted:
            await self.rollback()
            raise
        await super().commit()

    @asynccontextmanager
    async def transaction(
        self, savepoint_name: str | None = None, force_rollback: bool = False
    ) -> AsyncGenerator[psycopg.AsyncTransaction]:
        async with super().transaction(savepoint_name, force_rollback) as transaction:
            yield transaction
            if not force_rollback:
                refuse_aborted(self)
