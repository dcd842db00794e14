"""The database that a command names: a URL, libpq's keywords, or `demo`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .postgres import kept_server


@contextmanager
def resolved(dsn: str) -> Iterator[str]:
    """The connection string. `demo` is the database that `pyworker demo` has kept; start it."""
    if dsn != "demo":
        yield dsn
    else:
        with kept_server("demo") as server:
            yield server.url()
