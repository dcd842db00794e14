"""The databases and schemas that `pyworker run` serves, and what it calls them when there are several."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import click
import psycopg
from psycopg.conninfo import conninfo_to_dict

# All that may be a password in what libpq cannot read: from a colon to the last @, or to the end.
_PASSWORDS = re.compile(r"(?is)((?<!^postgresql)(?<!^postgres):|password *=).*(?=@)|(password *=).*")


class Place(NamedTuple):
    dsn: str
    schema: str
    host: str
    port: str
    dbname: str  # or the name of the service


def paired(dsns: Sequence[str], schemas: Sequence[str]) -> list[tuple[str, str]]:
    """One of them may be given once, then it counts for all; else they are paired in order."""
    several = max(len(dsns), len(schemas))
    if not {len(dsns), len(schemas)} <= {1, several}:
        raise click.UsageError(
            f"--dsn is given {len(dsns)} times and --schema {len(schemas)} times: give one of them once,"
            " for all, or both equally often, in the same order"
        )
    return [(dsns[i % len(dsns)], schemas[i % len(schemas)]) for i in range(several)]


def named(places: Sequence[tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """Several databases by name: the name of the database, and as much more as distinguishes them."""
    found = [_place(number, dsn, schema) for number, (dsn, schema) in enumerate(places, 1)]
    for number, place in enumerate(found):
        if (first := next(i for i, other in enumerate(found) if other[1:] == place[1:])) < number:
            raise click.UsageError(
                f"databases {first + 1} and {number + 1} are the same: {place.dbname}, schema {place.schema}."
                " One worker serves it; for more handlers raise --processes or --concurrency"
            )
    ways: list[Callable[[Place], str]] = [
        lambda place: place.dbname,
        lambda place: f"{place.dbname}.{place.schema}",
        lambda place: f"{place.host}/{place.dbname}",
        lambda place: f"{place.host}:{place.port}/{place.dbname}",
        lambda place: f"{place.host}:{place.port}/{place.dbname}.{place.schema}",
    ]
    for way in ways:
        names = {way(place): (place.dsn, place.schema) for place in found}
        if len(names) == len(found):
            return names
    raise AssertionError("places that differ have names that differ")


def _hidden(found: re.Match[str]) -> str:
    return f"{found[1] or found[2]}***"


def _place(number: int, dsn: str, schema: str) -> Place:
    try:
        given = {key: str(value) for key, value in conninfo_to_dict(dsn).items() if value}
    except psycopg.ProgrammingError as error:
        # What libpq quotes may be a part of the password.
        why = re.sub(r'\s*"[^"]*"', "", str(error)).strip().rstrip(":")
        raise click.UsageError(f"--dsn number {number}, {_PASSWORDS.sub(_hidden, dsn)}: {why}") from None
    if service := given.get("service"):
        return Place(dsn, schema, given.get("host", ""), given.get("port", ""), given.get("dbname", service))
    default = {
        option.keyword.decode(): (option.val or b"").decode() for option in psycopg.pq.Conninfo.get_defaults()
    }
    host, port, user = (given.get(key) or default.get(key) or "" for key in ("host", "port", "user"))
    dbname = given.get("dbname") or default.get("dbname") or user
    return Place(dsn, schema, given.get("hostaddr") or host or "local", port, dbname)
