"""How the text of a statement is put together: names, arguments, literals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psycopg import sql

from .rows import JOB_COLUMNS

Call = tuple[str, list[Any]]  # a statement and its parameters


def as_identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def quoted(schema: str) -> str:
    """In a statement with parameters, where drivers take a lone % for one."""
    return as_identifier(schema).replace("%", "%%")


def named_call(schema: str, function: str, arguments: Mapping[str, str]) -> str:
    given = ", ".join(f"{name} => %({name})s::{kind}" for name, kind in arguments.items())
    return f"{quoted(schema)}.{function}({given})"


def rows_of(schema: str, call: str) -> str:
    return f"select {JOB_COLUMNS} from {quoted(schema)}.{call} j"  # noqa: S608


def literal(value: Any) -> str:
    """As it stands in a statement for psql."""
    return sql.Literal(str(value) if isinstance(value, str) else value).as_string(None).strip()
