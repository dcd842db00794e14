"""Building blocks of statements: names, arguments, literals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from psycopg import sql

from .rows import JOB_COLUMNS

Parameters = Sequence[Any] | Mapping[str, Any]


def as_identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def quoted(schema: str) -> str:
    """An identifier for a statement with parameters, in which drivers require % to be doubled.

    The usual name needs no quotes, and reads better without them.
    """
    return schema if schema == "pyworker" else as_identifier(schema).replace("%", "%%")


def named_call(schema: str, function: str, arguments: Mapping[str, str]) -> str:
    given = ", ".join(f"{name} => %({name})s::{kind}" for name, kind in arguments.items())
    return f"{quoted(schema)}.{function}({given})"


def rows_of(schema: str, call: str, columns: str = JOB_COLUMNS) -> str:
    return f"select {columns} from {quoted(schema)}.{call} j"


def literal(value: Any) -> str:
    """The value as an SQL literal, for psql."""
    return sql.Literal(str(value) if isinstance(value, str) else value).as_string(None).strip()


def filled(statement: str, parameters: Parameters) -> str:
    """The statement with its values as literals, for psql.

    Python's own % operator knows the placeholders of drivers: %s, %(name)s, and %% for a %.
    """
    if isinstance(parameters, Mapping):
        return statement % {name: literal(value) for name, value in parameters.items()}
    return statement % tuple(literal(value) for value in parameters)
