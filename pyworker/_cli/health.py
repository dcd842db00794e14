"""`pyworker health` and `pyworker metrics`, of the database or of one worker.

They do not load the application.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import click
import psycopg

from .._db.connect import connect
from .._db.database import Database
from .._dev.url import resolved
from .._output import print_json, say
from .._runner.probes import PLAIN
from ..errors import PyworkerError
from .failures import explained
from .options import PortOption, as_json, common, database

ANSWER_TIMEOUT = 5.0  # seconds for an answer

PORT = click.IntRange(1, 65535)
HOST = click.option(
    "--host", default="127.0.0.1", show_default=True,
    help="Address to serve HTTP on. 0.0.0.0 or :: stands for all interfaces, as in a container.",
)  # fmt: skip


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of `pyworker run` for monitoring."""
    for option in (
        click.option(
            "--stuck-after", default=60.0, show_default=True, type=click.FloatRange(15),
            help="A process whose main loop makes no turn for so many seconds is not live."),
        click.option(
            "--health-port", cls=PortOption, type=PORT, help="Serve /live and /ready on this port."),
        click.option(
            "--metrics-port", cls=PortOption, type=PORT,
            help="Serve /metrics of this worker for Prometheus, and /live and /ready, on this port."),
        HOST,
        click.option(
            "--name", default="",
            help="The worker's name, for `pyworker health --worker`. Default: the host name."),
    ):  # fmt: skip
        command = option(command)
    return command


@click.command()
@common
@click.option(
    "--ready/--live", "ready", default=True, help="Ready: it can claim jobs. Live: its main loop runs."
)
@click.option(
    "--worker", help="The name or id of one worker, of which all processes must be live. Default: any worker."
)
@click.option(
    "--port",
    cls=PortOption,
    type=PORT,
    help="Query the worker on this machine with this --health-port instead of the database.",
)
@as_json
def health(dsn: str, schema: str, ready: bool, worker: str | None, port: int | None, machine: bool) -> None:
    """Check whether workers are live, or ready. Does not load the application.

    Exit codes: 0 yes, 1 no, 2 wrong usage, 3 the database did not answer (which tells nothing about
    the worker: in a probe that restarts something, use --port).
    """
    if port is not None:
        if worker is not None:
            raise click.UsageError(
                "--port asks the worker at that port, --worker the database: give one of them"
            )
        raise SystemExit(_ask(port, ready))
    with database(dsn, schema) as db:
        rows = db.worker_health(worker)
    if machine:
        print_json(rows)
    else:
        for row in rows:
            word = "ready" if row["ready"] else "live" if row["live"] else "not live"
            say(f"worker {row['worker_id']} ({row['name']}) is {word}: {row['detail']}")
        if not rows:
            say("there is no worker" if worker is None else f"there is no worker {worker}")
    every = all if worker is not None and not ready else any
    raise SystemExit(0 if rows and every(row["ready" if ready else "live"] for row in rows) else 1)


def _ask(port: int, ready: bool) -> int:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_TIMEOUT)
    try:
        connection.request("GET", "/ready" if ready else "/live")
        answer = connection.getresponse()
        text = answer.read(10_000).decode("utf-8", "replace").strip()
    except (OSError, http.client.HTTPException) as error:
        say(f"no worker answers on port {port}: {error}", err=True)
        return 1
    finally:
        connection.close()
    say(text)
    return 0 if answer.status == 200 else 1


@click.command()
@common
@click.option(
    "--port",
    cls=PortOption,
    type=PORT,
    help="Serve /metrics on this port; each request queries the database.",
)
@HOST
@as_json
def metrics(dsn: str, schema: str, port: int | None, host: str, machine: bool) -> None:
    """Print metrics of the queue in Prometheus' text format.

    For what a worker measures itself (handlers, claims), use `pyworker run --metrics-port`.
    """
    from .._runner import metrics, probes

    if port is None:
        with database(dsn, schema) as db:
            rows = db.metrics()
        print_json(rows) if machine else click.echo(metrics.text_of(rows), nl=False)
        return
    ends = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    with resolved(dsn) as url, probes.serving(host, [port], {"/metrics": _Exporter(url, schema)}):
        click.echo(f"serving /metrics on {host}, port {port}", err=True)
        signal.sigwait(ends)


class _Exporter:
    """Answers requests for /metrics from one connection, one query at a time.

    Requests that come while a query runs share the next one.
    """

    def __init__(self, dsn: str, schema: str) -> None:
        self._dsn, self._schema = dsn, schema
        self._conn: psycopg.Connection[Any] | None = None
        self._asking = threading.Lock()
        self._asked = 0.0
        self._answer = (503, PLAIN, "")

    def __call__(self) -> tuple[int, str, str]:
        came = time.monotonic()
        with self._asking:
            if self._asked <= came:
                self._asked = time.monotonic()
                self._answer = self._ask()
            return self._answer

    def _ask(self) -> tuple[int, str, str]:
        from .._runner.metrics import TEXT, text_of

        kept = self._conn
        while True:
            try:
                conn = self._conn = self._conn or connect(self._dsn)
                return 200, TEXT, text_of(Database(conn, self._schema).metrics())
            except (psycopg.Error, PyworkerError) as error:
                if self._conn and self._conn.closed:
                    self._conn = None
                    if kept:  # it was lost since the last request
                        kept = None
                        continue
                return 503, PLAIN, f"{explained(error, self._schema, 'metrics', self._dsn)}\n"
