"""The base of Database: one connection, one schema, and the ways to run a statement."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, ParamSpec, Self, TypeVar, cast, overload

import psycopg
from psycopg.rows import tuple_row

from ..errors import PyworkerError, translated
from .rows import JOB_COLUMNS, JobRow, job_row
from .text import Parameters, quoted, rows_of

P = ParamSpec("P")
T = TypeVar("T")

# Partitions are counted under the name of their table.
_CHANGES = """
    select coalesce(parent.relname, s.relname),
        sum(s.n_tup_ins)::int, sum(s.n_tup_upd)::int, sum(s.n_tup_del)::int
    from pg_stat_xact_user_tables s
    left join pg_inherits i on i.inhrelid = s.relid
    left join pg_class parent on parent.oid = i.inhparent
    where s.schemaname = %s and s.n_tup_ins + s.n_tup_upd + s.n_tup_del > 0
    group by 1 order by 1"""


class _Call(Generic[P, T]):
    """A call of SQL as a method of a database: its arguments stand for the %s, in their order."""

    def __init__(self, call: str, columns: str = "") -> None:
        self._call = call
        self._columns = columns

    @overload
    def __get__(self, db: None, owner: Any) -> Self: ...
    @overload
    def __get__(self, db: Base, owner: Any) -> Callable[P, T]: ...
    def __get__(self, db: Base | None, owner: Any) -> Any:
        return self if db is None else functools.partial(self, db)

    def __call__(self, db: Base, *arguments: P.args, **named: P.kwargs) -> T:
        return self._ask(db, [_sent(argument) for argument in arguments])

    def statement(self, schema: str) -> str:
        """For another connection."""
        return f"select {self._columns} from {quoted(schema)}.{self._call}"

    def _ask(self, db: Base, arguments: list[Any]) -> Any:
        raise NotImplementedError


class Value(_Call[P, T]):
    """The one value that a function returns."""

    def _ask(self, db: Base, arguments: list[Any]) -> Any:
        return db._value(self._call, *arguments)


class Rows(_Call[P, list[dict[str, Any]]]):
    """These columns of its rows."""

    def _ask(self, db: Base, arguments: list[Any]) -> Any:
        return db._dicts(self._columns, self._call, *arguments)


class Jobs(_Call[P, list[JobRow]]):
    def _ask(self, db: Base, arguments: list[Any]) -> Any:
        return db._jobs(self._call, *arguments)


class OneJob(_Call[P, JobRow]):
    def _ask(self, db: Base, arguments: list[Any]) -> Any:
        return db._jobs(self._call, *arguments)[0]


class MaybeJob(_Call[P, JobRow | None]):
    def statement(self, schema: str) -> str:
        return rows_of(schema, self._call)

    def _ask(self, db: Base, arguments: list[Any]) -> Any:
        return next(iter(db._jobs(self._call, *arguments)), None)


def _sent(value: Any) -> Any:
    """An object is sent as JSON text, and any sequence as an array."""
    if isinstance(value, dict):
        return json.dumps(value)
    return list(cast("Any", value)) if isinstance(value, tuple) else value


class Base:
    """Runs statements in one schema over one connection."""

    job_columns = JOB_COLUMNS

    def __init__(
        self,
        conn: psycopg.Connection[Any],
        schema: str = "pyworker",
        guard: Callable[[psycopg.Connection[Any]], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        """`guard` surrounds each statement: see SilenceGuard and answered."""
        self.conn = conn
        self._guard = guard
        self.schema = schema
        self._s = quoted(schema)

    def _rows(self, statement: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        with self._guard(self.conn), translated():
            # Binary, because the text of a time or an interval depends on session settings.
            # With factories of our own, as the connection may be a test's (pyworker.testing).
            with psycopg.Cursor(self.conn, row_factory=tuple_row) as cursor:
                return cursor.execute(cast("Any", statement), parameters, binary=True).fetchall()

    def _value(self, call: str, *parameters: Any) -> Any:
        return self._rows(f"select {self._s}.{call}", parameters)[0][0]

    def _jobs(self, source: str, *parameters: Any) -> list[JobRow]:
        rows = self._rows(rows_of(self.schema, source, self.job_columns), parameters)
        return [job for row in rows if (job := job_row(row))]

    def _dicts(self, columns: str, source: str, *parameters: Any) -> list[dict[str, Any]]:
        rows = self._rows(f"select {columns} from {self._s}.{source}", parameters)
        return [dict(zip(columns.split(", "), row, strict=True)) for row in rows]

    def each(self, *calls: Callable[[], Any]) -> list[Any]:
        """Run the calls of a command that needs several statements."""
        return [call() for call in calls]

    def beside(self, ask: Callable[[], T]) -> T | None:
        """What a command asks besides its work, in a savepoint: the work stays if the question fails.

        None if this role may not ask, or the question takes too long.
        """
        try:
            with self.conn.transaction():
                return ask()
        except (psycopg.Error, PyworkerError):
            if self.conn.closed:
                raise
            return None

    def keep_quiet(self) -> None:
        """Send no notification in this transaction.

        The time of the last one is not transactional, so a rollback could not undo it.
        """
        self.conn.execute(b"select set_config('pyworker.notify', 'off', true)")

    def changes(self) -> list[tuple[str, int, int, int]]:
        """The changes of this transaction: table, rows inserted, updated, deleted."""
        return cast("Any", self._rows(_CHANGES, [self.schema]))

    def limit_time(self, seconds: int) -> None:
        """Limit the time of each statement in this transaction."""
        self.conn.execute(b"select set_config('statement_timeout', %s, true)", [f"{seconds}s"])

    def check_version(self, client_version: int) -> None:
        with translated():
            try:
                self._value("check_version(%s)", client_version)
            except (psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedFunction) as error:
                from ..errors import SchemaVersionError

                own = SchemaVersionError(
                    f"there is no pyworker in schema {self.schema!r} of this database, or a very old one"
                )
                own.detail, own.hint = "older", "Run: pyworker migrate"
                raise own from error
