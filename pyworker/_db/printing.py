"""`--sql`: prints the SQL that a command would run, with its values, in psql's syntax."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from .database import Database
from .scripts import BEGIN
from .text import Parameters, filled, quoted


class Shown(click.exceptions.Exit):
    """Ends the command: the statement was printed, so there is no answer to continue with."""


class Printing(Database):
    """Prints statements instead of running them.

    parse_crontab runs, as it only reads a text and later statements depend on its answer.
    """

    job_columns = "j.*"

    def __init__(self, schema: str, real: Callable[[], Database]) -> None:
        self.schema = schema
        self._s = quoted(schema)
        self._real = real

    def _rows(self, statement: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        click.echo(filled(statement, parameters) + ";")
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

    def states(self, job_ids: Sequence[int]) -> dict[int, str | None]:
        """Nothing: it is only for a message about what the command has changed."""
        return {}

    def lost_among(self, job_ids: Sequence[int]) -> list[int]:
        """Prints the one call that leaves lost jobs out, in place of a call for each job."""
        self._jobs("retry_jobs(%s)", list(job_ids))
        return []

    def may_read_payloads(self) -> bool:
        return True

    def queue_state(self, queue_name: str) -> Mapping[str, Any]:
        """As if it were paused: only a change asks."""
        return {"known": True, "paused": True, "paused_family": None}

    def parse_crontab(self, content: str) -> list[dict[str, Any]]:
        return self._real().parse_crontab(content)
