"""add_job from Python, in the caller's own transaction, on whatever connection the caller has.

psycopg connections and cursors (sync and async), psycopg2's, SQLAlchemy connections and sessions over either (sync and async),
and Django's `connection`: told apart by what they can do, so that none of them is imported.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import psycopg
from psycopg.rows import tuple_row

from . import _sql
from ._sql import JobRow
from .errors import translated

# Called before each add: told the task, and the options, which it may change.
producers: list[Callable[[str, dict[str, Any]], None]] = []


def default_schema() -> str:
    return os.environ.get("PYWORKER_SCHEMA") or "pyworker"


def add_job(conn: Any, identifier: str, payload: Any = None, *, schema: str | None = None, **options: Any) -> Any:
    """Add a job in the caller's transaction; it is run when that transaction has committed.

    conn: a connection, cursor or session of psycopg, psycopg2, SQLAlchemy or Django. With an asynchronous one the result must be
    awaited. payload: any JSON value, or a dataclass, pydantic model or msgspec struct. options: add_job's SQL arguments
    (queue_name, run_at, max_attempts, job_key, priority, flags, job_key_mode, meta, …). schema: where pyworker is installed,
    by default $PYWORKER_SCHEMA or "pyworker". Returns the job as a JobRow. Raises InvalidArgument and its kin.
    """
    for producer in producers:
        producer(identifier, options)
    return _add(conn, identifier, payload, schema, options)


def _add(conn: Any, identifier: str, payload: Any, schema: str | None, options: dict[str, Any]) -> Any:
    statement, parameters = _sql.add_job_call(schema or default_schema(), identifier, payload, options)
    if isinstance(conn, psycopg.Cursor | psycopg.AsyncCursor):
        conn = cast("Any", conn).connection  # whoever reads from the cursor goes on doing so
    if isinstance(conn, psycopg.AsyncConnection):
        return _add_async(cast("Any", conn), statement, parameters)
    if isinstance(conn, psycopg.Connection):
        with translated(), psycopg.Cursor[Any](cast("Any", conn), row_factory=tuple_row) as cursor:
            return _add_on_cursor(cursor, statement, parameters)
    if hasattr(conn, "exec_driver_sql"):  # a SQLAlchemy connection
        _require_psycopg_style(conn)
        if hasattr(conn, "sync_connection"):
            return _add_on_sqlalchemy_async(conn, statement, parameters)
        with translated():
            return _sql.job_row(tuple(conn.exec_driver_sql(statement, parameters).one()))
    if hasattr(conn, "get_bind") and hasattr(conn, "connection"):  # a SQLAlchemy session, of whatever kind
        connection = conn.connection()
        if inspect.isawaitable(connection):
            return _add_on_awaited(connection, statement, parameters)
        return _add(connection, identifier, payload, schema, options)
    with translated():
        if hasattr(conn, "execute") and hasattr(conn, "fetchone"):  # a cursor: psycopg2's or Django's
            return _add_on_cursor(conn, statement, parameters)
        if hasattr(conn, "cursor"):  # a connection of theirs
            with conn.cursor() as cursor:
                return _add_on_cursor(cursor, statement, parameters)
    raise TypeError(
        f"add_job: conn must be a connection, cursor or session of psycopg, psycopg2, SQLAlchemy or Django, got {type(conn).__name__}"
    )


def _add_on_cursor(cursor: Any, statement: str, parameters: Mapping[str, Any]) -> JobRow | None:
    cursor.execute(statement, parameters)
    row = cursor.fetchone()
    # psycopg2's RealDictCursor makes a mapping of it.
    return _sql.job_row(tuple(cast("Mapping[str, Any]", row).values()) if isinstance(row, Mapping) else row)


async def _add_async(conn: Any, statement: str, parameters: Mapping[str, Any]) -> JobRow | None:
    with translated():
        async with psycopg.AsyncCursor[Any](conn, row_factory=tuple_row) as cursor:
            await cursor.execute(cast("Any", statement), parameters)
            return _sql.job_row(await cursor.fetchone())


async def _add_on_awaited(connection: Awaitable[Any], statement: str, parameters: Mapping[str, Any]) -> JobRow | None:
    conn = await connection
    _require_psycopg_style(conn)
    return await _add_on_sqlalchemy_async(conn, statement, parameters)


async def _add_on_sqlalchemy_async(conn: Any, statement: str, parameters: Mapping[str, Any]) -> JobRow | None:
    with translated():
        result = await conn.exec_driver_sql(statement, parameters)
        return _sql.job_row(tuple(result.one()))


def _require_psycopg_style(conn: Any) -> None:
    dialect = getattr(conn, "dialect", None)
    if getattr(dialect, "paramstyle", "pyformat") != "pyformat":
        raise TypeError(
            f"add_job: SQLAlchemy's driver {dialect.driver if dialect else '?'} is not supported; use psycopg or psycopg2, "
            "or execute SELECT pyworker.add_job(…) yourself"
        )
