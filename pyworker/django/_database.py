"""The connection string of a database of settings.DATABASES: a worker connects as Django does."""

# pyright: basic
from __future__ import annotations

import json
import os
import re
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import connections
from django.utils.connection import ConnectionDoesNotExist
from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo

# What concerns Python's side of Django's connections; a worker has its own.
PYTHONS = {
    "async_", "autocommit", "client_encoding", "connection_factory", "context", "cursor_factory",
    "prepare_threshold", "row_factory",
}  # fmt: skip


NAMES = "PYWORKER_DJANGO_DATABASES"  # by alias, as JSON


def dsn(alias: str) -> str:
    """The connection string of a database of settings.DATABASES."""
    try:
        connection: Any = connections[alias]
    except ConnectionDoesNotExist:
        known = ", ".join(connections)
        raise CommandError(f"there is no DATABASES[{alias!r}] in the settings (known: {known})") from None
    where = f"DATABASES[{alias!r}]"
    if connection.vendor != "postgresql":
        engine = connection.settings_dict["ENGINE"]
        raise CommandError(f"{where} is {engine}, pyworker needs django.db.backends.postgresql")
    try:
        given = {**connection.get_connection_params()}
    except ImproperlyConfigured as error:
        raise CommandError(f"{where}: {error}") from error
    given = {name: value for name, value in given.items() if name not in PYTHONS}
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    if unknown := sorted(given.keys() - known):
        raise CommandError(
            f"{where}['OPTIONS'] has {unknown[0]!r}, which is no connection option of PostgreSQL"
        )
    session = _of_each_session(connection.settings_dict["OPTIONS"])
    if session:
        given["options"] = " ".join([*filter(None, [given.get("options")]), *session])
    return make_conninfo(**given)


def _of_each_session(options: dict[str, Any]) -> list[str]:
    """What Django sets in each session after it has connected."""
    set_first = {"role": options.get("assume_role")}
    if (level := options.get("isolation_level")) is not None:
        from django.db.backends.postgresql.psycopg_any import IsolationLevel

        set_first["default_transaction_isolation"] = IsolationLevel(level).name.lower().replace("_", " ")
    return [f"-c {name}={_escaped(str(value))}" for name, value in set_first.items() if value]


def _escaped(value: str) -> str:
    return re.sub(r"([\\\s])", r"\\\1", value)


def names_of_databases() -> str:
    """For a worker that this process starts: within a test run they are others than the settings name."""
    return json.dumps({alias: connections[alias].settings_dict["NAME"] for alias in connections})


def take_names() -> None:
    for alias, name in json.loads(os.environ.get(NAMES, "{}")).items():
        connections[alias].settings_dict["NAME"] = name
