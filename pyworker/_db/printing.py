"""`--sql`: prints the SQL that a command would run, with its values, in psql's syntax."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from .database import Database
from .rows import JOB_COLUMNS
from .scripts import BEGIN
from .text import literal, quoted

_PLACEHOLDER = re.compile(r"%\((\w+)\)s|%s|%%")
_LEFT_OUT = re.compile(r", \w+ => %\((\w+)\)s::[a-z]+(?:\[\])?")  # a later named argument


class Shown(click.exceptions.Exit):
    """Ends the command: the statement was printed, so there is no answer to continue with."""


class Printing(Database):
    """Prints statements instead of running them. parse_crontab runs, as it only reads a text and
    later statements depend on its answer."""

    def __init__(self, schema: str, real: Callable[[], Database]) -> None:
        self.schema = schema
        self._s = quoted(schema)
        self._real = real

    def _rows(
        self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = ()
    ) -> list[tuple[Any, ...]]:
        click.echo(self._filled(statement, parameters) + ";")
        raise Shown(0)

    def each(self, *calls: Callable[[], Any]) -> list[Any]:
        if len(calls) > 1:
            click.echo(BEGIN, nl=False)
        for call in calls:
            try:
                call()
            except Shown:
                continue
        if len(calls) > 1:
            click.echo("commit;")
        raise Shown(0)

    def parse_crontab(self, content: str) -> list[tuple[Any, ...]]:
        return self._real().parse_crontab(content)

    def _filled(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any]) -> str:
        text = statement.replace(JOB_COLUMNS, "j.*")
        if self.schema == "pyworker":
            text = text.replace(self._s, self.schema)
        if isinstance(parameters, Mapping):
            named = parameters

            def unless_null(match: re.Match[str]) -> str:
                return "" if named[match[1]] is None else match[0]

            text = _LEFT_OUT.sub(unless_null, text)
        given = iter(() if isinstance(parameters, Mapping) else parameters)

        def filled(match: re.Match[str]) -> str:
            if match[0] == "%%":
                return "%"
            value = parameters[match[1]] if isinstance(parameters, Mapping) else next(given)
            return literal(value)

        return _PLACEHOLDER.sub(filled, text)
