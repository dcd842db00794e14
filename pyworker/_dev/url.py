"""The database that a command names: a URL, libpq's keywords, `demo` or `dev`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from urllib.parse import quote, urlencode

from psycopg.conninfo import conninfo_to_dict

from .._distribution import pip_install
from .homes import NoPostgres
from .postgres import Server, kept_server

# Unlike the demo's, the data of `pyworker dev` must survive a crash of the machine.
DURABLE = {"fsync": "on", "full_page_writes": "on"}


@contextmanager
def resolved(dsn: str) -> Iterator[str]:
    """The connection string.

    `demo` and `dev` are the databases that the commands of these names keep. They are started if they do
    not run.
    """
    if dsn not in ("demo", "dev"):
        yield dsn
    else:
        with kept_server("demo") if dsn == "demo" else dev_server() as server:
            yield server.url()


def dev_server(place: Path | None = None) -> AbstractContextManager[Server]:
    """The server of `pyworker dev`; place: where its data are, by default the user's data directory."""
    return kept_server("dev", place=place or _home(), settings=DURABLE)


def _home() -> Path:
    if os.geteuid() == 0:  # the server's account cannot reach root's home directory
        return Path("/var/lib/pyworker")
    try:
        import platformdirs
    except ImportError:
        raise NoPostgres(
            f"the database of `pyworker dev` needs platformdirs: {pip_install('dev-server')}"
        ) from None
    return platformdirs.user_data_path("pyworker")


def url_of(dsn: str) -> str:
    """A connection string of libpq as a URL, for libraries that take nothing else."""
    given = {key: str(value) for key, value in conninfo_to_dict(dsn).items() if value is not None}
    user, password = given.pop("user", ""), given.pop("password", "")
    host, port, name = given.pop("host", ""), given.pop("port", ""), given.pop("dbname", "")
    account = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    if not re.fullmatch(r"[\w.-]*", host):  # a directory with a Unix socket, several hosts, IPv6
        given["host"], host = host, ""
        if port:
            given["port"], port = port, ""
    place = f"{account}@{host}" if account else host
    place += f":{port}" if port else ""
    more = urlencode(given, quote_via=quote)
    return f"postgresql://{place}/{quote(name, safe='')}" + (f"?{more}" if more else "")
