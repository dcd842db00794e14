"""What a command or a worker says of an error that ends it, and the exit code."""

from __future__ import annotations

from contextlib import suppress

import psycopg

from .._db.connect import connect, first_line
from .._db.rights import COMMANDS, is_refusal, why_refused
from .._runner.config import EXIT_DATABASE_NEWER, EXIT_DATABASE_OLDER
from ..errors import PyworkerError, RoleMissing, SchemaVersionError, sqlstate_of


def explained(
    error: PyworkerError | psycopg.Error, schema: str = "", command: str = "run", dsn: str | None = None
) -> str:
    """The cause, and what to do.

    With `dsn` the database is asked why a role may not do what it wants.
    """
    roles = COMMANDS.get(command)
    if schema and roles and is_refusal(error):
        role = f"{schema}_{roles[0]}"
        error = RoleMissing(f"pyworker {command}", role)
        with suppress(psycopg.Error, PyworkerError):
            if dsn is not None:
                with connect(dsn) as conn:
                    return f"pyworker {command} needs the role {role}, {why_refused(conn, schema, role)}"
    if isinstance(error, psycopg.Error):
        return _of_postgres(error)
    return f"{error}. {error.hint}" if error.hint else str(error)


def exit_code_of(error: PyworkerError | psycopg.Error) -> int:
    codes = {"older": EXIT_DATABASE_OLDER, "newer": EXIT_DATABASE_NEWER}
    return codes.get(error.detail or "", 1) if isinstance(error, SchemaVersionError) else 1


def _of_postgres(error: psycopg.Error) -> str:
    first = first_line(error)
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        ways_out = {
            "for database": "Its owner can GRANT CREATE ON DATABASE … TO your role",
            "create role": "Let a role with CREATEROLE run it, or go without --roles",
            "owner of": "Run: pyworker migrate",
        }
        way_out = error.diag.message_hint or next(
            (way for words, way in ways_out.items() if words in first), None
        )
        return f"{first}. {way_out}" if way_out else first
    if isinstance(
        error,
        psycopg.errors.InvalidSchemaName | psycopg.errors.UndefinedFunction | psycopg.errors.UndefinedTable,
    ):
        return (
            f"{first}. Is pyworker installed here? Run: pyworker migrate (or name its schema with --schema)"
        )
    if isinstance(error, psycopg.errors.LockNotAvailable):
        return (
            f"{first}: another session holds a lock on pyworker's tables for too long."
            " Nothing was changed; try again"
        )
    if "session is read-only" in first:
        return (
            f"{first}: it is a standby and no leader was found, or default_transaction_read_only is on for"
            " the server, database or role. Name the leader's host, too; or let the owner turn it off"
        )
    if isinstance(error, psycopg.OperationalError) and sqlstate_of(error) is None:
        return (
            f"cannot reach the database: {first}. Name one with --dsn, DATABASE_URL or PGHOST, PGDATABASE …"
        )
    if isinstance(error, psycopg.ProgrammingError) and sqlstate_of(error) is None:
        return f"{first}. --dsn, DATABASE_URL take postgresql://user@host/database, or host=… user=… dbname=…"
    return first
