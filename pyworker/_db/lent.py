"""What a handler gets of a pooled connection: a connection of psycopg for one block, over the same session.

    pool's connection → Lent, in a transaction → its block ends → our last statement → commit → CLEAN

What the handler sets on a Lent (factories, adapters, handlers, prepared statements) ends with it, and our own
statements run on the pool's connection. What it sets in the session, CLEAN undoes: for a tenth of a new
session's time, and a sixth of that of DISCARD ALL, after which each function is planned again.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, cast

import psycopg
from psycopg.pq import ConnStatus, TransactionStatus
from psycopg.rows import tuple_row

from ..errors import WrongState, translated
from .connection import AsyncConnection, Connection
from .either import entered, settled
from .text import literal

AnyConnection = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]

# The session as it was opened, but for what a function in Perl or Python keeps for itself.
_UNDO = (
    "close all", "unlisten *", "reset session authorization", "reset role", "reset all",
    "select pg_catalog.pg_advisory_unlock_all()", "discard temp", "discard sequences",
)  # fmt: skip
CLEAN = "; ".join([*_UNDO, "deallocate all"])
# A time of its own for each transaction of a session, also after COMMIT AND CHAIN; no setting changes it.
_BEGAN = "select extract(epoch from pg_catalog.now())"
# The second of two transactions that begin at one time, as they are of one message. It has run no query yet,
# so the handler may still set its isolation level.
_BEGIN = f"begin; {_BEGAN}; commit and chain"
# The handler may have put on a role that must not call our functions. Deferred triggers are to run as it.
_AS_OURSELVES = (
    f"{_BEGAN}, pg_catalog.set_config('pyworker.was_user', current_setting('session_authorization'), true),"
    " pg_catalog.set_config('pyworker.was_role', current_setting('role'), true),"
    " pg_catalog.set_config('session_authorization', null, true),"
    " pg_catalog.set_config('role', null, true); "
)
_AS_BEFORE = (
    "; select case when current_setting(s.name) <> current_setting(s.was)"
    " then pg_catalog.set_config(s.name, current_setting(s.was), true) end from (values"
    " ('session_authorization', 'pyworker.was_user'), ('role', 'pyworker.was_role')) s(name, was)"
)
# A pooler keeps these for each client, and takes over what RESET makes of them.
_OF_POOLERS = ("client_encoding", "DateStyle", "TimeZone", "standard_conforming_strings", "application_name")


class _Block(NamedTuple):
    """What the end of a handler's block needs to know."""

    caller: str
    began: Any
    before: str  # statements before our last one
    place: int  # of its result among theirs


@asynccontextmanager
async def begun(conn: Connection[Any] | AsyncConnection[Any]) -> AsyncGenerator[Any]:
    """As psycopg's transaction(), on a connection of a pool; gives the time of the transaction.

    The pool rolls back what has raised."""
    (began,) = await _last_row(conn, 1, _BEGIN)
    try:
        yield began
    except psycopg.Rollback as error:
        await settled(conn.rollback())
        if error.transaction:
            raise
    else:
        await settled(conn.commit())


async def _last_row(
    conn: Connection[Any] | AsyncConnection[Any],
    place: int,
    text: str,
    values: Any = None,
    block: _Block | None = None,
) -> Any:
    """Run several statements at once. Returns the row of the one at that place."""
    kind: Any = psycopg.AsyncClientCursor if isinstance(conn, AsyncConnection) else psycopg.ClientCursor
    async with entered(kind(conn, row_factory=tuple_row)) as cursor:
        await settled(cursor.execute(text, values))
        if block and (await settled(cursor.fetchall()))[0][0] != block.began:
            raise _ended_by_hand(block.caller)
        for _ in range(place):
            cursor.nextset()
        return (await settled(cursor.fetchall()))[0]


async def last(conn: Connection[Any] | AsyncConnection[Any], statement: str, *parameters: Any) -> Any:
    """Run our statement at the end of a handler's block, as the role that we connected with. Its row."""
    block = cast("_Block", conn.block)
    text = f"{block.before}{statement}{_AS_BEFORE if conn.was_lent else ''}"
    with translated():
        return await _last_row(conn, block.place, text, parameters, block)


def _ended_by_hand(caller: str) -> WrongState:
    return WrongState(
        f"{caller}: the handler has ended the transaction by hand, with COMMIT or ROLLBACK;"
        " what it has committed cannot be undone. Leave the block to commit, raise to roll back, and"
        " put what is to be rolled back alone into a `with conn.transaction():`"
    )


def refuse_copy(process: int, caller: str) -> None:
    """A forked copy of the process would read the answers from the sockets of the first."""
    if os.getpid() != process:
        raise WrongState(
            f"{caller} belongs to the process that runs the handler: give other processes the payload, and"
            " let them open connections of their own"
        )


class _Gate:
    """The lock of a session, for one who may use it until `ended`."""

    def __init__(self, conn: AnyConnection, caller: str) -> None:
        self._lock: Any = conn.lock
        self._pgconn, self._caller, self._process = conn.pgconn, caller, os.getpid()
        self.ended = False

    def _refuse(self) -> None:
        try:
            if self.ended:
                raise psycopg.OperationalError(
                    f"the connection is closed: the block of {self._caller} that gave it has ended"
                )
            self.refuse_idle()
        except BaseException:
            self._lock.release()
            raise

    def refuse_idle(self) -> None:
        """The block's own transaction is over."""
        if self._pgconn.transaction_status == TransactionStatus.IDLE:
            raise _ended_by_hand(self._caller)

    def __enter__(self) -> None:
        refuse_copy(self._process, f"the connection of {self._caller}")
        self._lock.acquire()
        self._refuse()

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._lock.release()

    async def __aenter__(self) -> None:
        refuse_copy(self._process, f"the connection of {self._caller}")
        await self._lock.acquire()
        self._refuse()

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._lock.release()


class _Ends:
    """What Lent and LentAsync share. The next __init__ in their order of classes is psycopg's."""

    pgconn: Any
    _gate: _Gate

    def __init__(self, conn: AnyConnection, caller: str, began: Any, pooled: bool) -> None:
        view, lender = cast("Any", self), cast("Any", conn)
        cast("Any", super()).__init__(conn.pgconn)
        view.lock = self._gate = _Gate(conn, caller)
        lender.was_lent = not pooled
        lender.block = _Block(caller, began, _AS_OURSELVES, 1)
        if pooled:  # another client gets the session after the commit, so all is undone before
            view.prepare_threshold = None  # a prepared statement belongs to one of the pooler's sessions
            given = [(name, conn.info.parameter_status(name)) for name in _OF_POOLERS]
            kept = [f"set {name} = {literal(value)}" for name, value in given if value is not None]
            undo = [_BEGAN, "set constraints all immediate", *_UNDO, *kept, ""]
            lender.block = _Block(caller, began, "; ".join(undo).replace("%", "%%"), len(undo) - 1)

    def end(self) -> None:
        """Refuse each further use, of the cursors made from it, too."""
        self._gate.ended = True
        self.pgconn.notice_handler = self.pgconn.notify_handler = None

    def refuse_last(self, caller: str) -> None:
        """At the block's end, if our last statement must not follow.

        What is sent in a pipeline that is still open may never have been answered."""
        if self.pgconn.status == ConnStatus.OK and self.pgconn.pipeline_status:
            self.pgconn.finish()
            raise WrongState(f"{caller}: leave conn.pipeline() before the block ends; nothing was committed")
        self._gate.refuse_idle()

    @property
    def closed(self) -> bool:
        return self._gate.ended or self.lost

    @property
    def lost(self) -> bool:
        """True if the session has ended."""
        return self.pgconn.status == ConnStatus.BAD

    def commit(self) -> NoReturn:
        self._refuse_end("commit")

    def rollback(self) -> NoReturn:
        self._refuse_end("rollback")

    def _refuse_end(self, verb: str) -> NoReturn:
        raise psycopg.ProgrammingError(
            f"{verb}() is forbidden here: the transaction ends with its block, and rolls back if that raises"
        )


class Lent(_Ends, Connection[Any]):
    """Over the session of a connection, in whose transaction it is."""


class LentAsync(_Ends, AsyncConnection[Any]):
    """The same for asyncio."""
