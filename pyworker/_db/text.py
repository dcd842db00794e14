"""Building blocks of statements: names, arguments, literals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psycopg import sql

from .rows import JOB_COLUMNS

Call = tuple[str, list[Any]]  # a statement and its parameters


def as_identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def quoted(schema: str) -> str:
    """An identifier for a statement with parameters, in which drivers require % to be doubled."""
    return as_identifier(schema).replace("%", "%%")


def named_call(schema: str, function: str, arguments: Mapping[str, str]) -> str:
    given = ", ".join(f"{name} => %({name})s::{kind}" for name, kind in arguments.items())
    return f"{quoted(schema)}.{function}({given})"


def rows_of(schema: str, call: str) -> str:
    return f"select {JOB_COLUMNS} from {quoted(schema)}.{call} j"  # noqa: S608


def literal(value: Any) -> str:
    """The value as an SQL literal, for psql."""
    return sql.Literal(str(value) if isinstance(value, str) else value).as_string(None).strip()
