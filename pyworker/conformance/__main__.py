"""The command: python -m pyworker.conformance --dsn … -- COMMAND …"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import click
import psycopg
from psycopg.conninfo import make_conninfo

from .._db.conformance import Conformance
from .._db.connect import first_line
from .._dev.url import url_of
from . import faults, order, outcomes, waiting
from .broken import Broken
from .promise import PROMISES, Promise
from .stage import Stage

LEASE = timedelta(seconds=12)  # the shortest that configure takes
CONCURRENCY = "5"
ROOMS = [module.__name__ for module in (outcomes, order, waiting, faults)]
IN_ORDER = sorted(PROMISES.values(), key=lambda promise: ROOMS.index(promise.play.__module__))


@contextmanager
def staged(dsn: str, command: Sequence[str], patience: float, keep: bool) -> Iterator[Stage]:
    """A stage in a schema of its own."""
    schema = f"pyworker_conformance_{os.getpid()}"
    db = Conformance(dsn, schema)
    environment = {
        **os.environ, "DATABASE_URL": url_of(make_conninfo(dsn, application_name=schema)),
        "PYWORKER_SCHEMA": schema, "PYWORKER_RUN_CONCURRENCY": CONCURRENCY,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="pyworker-") as directory, db.conn:
        try:
            db.install(LEASE)
            stage = Stage(db, command, environment, Path(directory), patience)
            try:
                yield stage
            finally:
                stage.clear()
        finally:
            if keep:
                click.echo(f"kept: schema {schema}")
            else:
                db.drop()


def played(stage: Stage, promise: Promise) -> bool:
    """Play one promise, and print what was observed."""
    began = time.monotonic()
    try:
        observed, kept = promise.play(stage), True
    except Broken as broken:
        observed, kept = str(broken), False
    mark = click.style("kept  ", fg="green") if kept else click.style("BROKEN", fg="red")
    click.echo(f"{mark} {promise.name} ({time.monotonic() - began:.1f} s): {observed}")
    if not kept:
        click.echo(f"       promise: {promise.text}")
        click.echo(f"       docs/protocol.md, {promise.section}: {promise.says}")
        for line in stage.output().splitlines():
            click.echo(f"       | {line}")
    stage.clear(keep_worker=kept and stage.is_calm())
    return kept


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--dsn", default="", envvar="DATABASE_URL", help="Default: the PG* variables.")
@click.option("--list", "listed", is_flag=True, help="List the promises.")
@click.option("--only", multiple=True, metavar="NAME", type=click.Choice(list(PROMISES)),
              help="Play this promise only. Can be repeated.")  # fmt: skip
@click.option("--skip", multiple=True, metavar="NAME", type=click.Choice(list(PROMISES)),
              help="Do not play this promise. Can be repeated.")  # fmt: skip
@click.option("--patience", default=1.0, show_default=True, type=click.FloatRange(0.1),
              help="Multiplies how long each expected event may take.")  # fmt: skip
@click.option("--keep", is_flag=True, help="Keep the schema, for a look at its jobs.")
def main(
    command: tuple[str, ...], dsn: str, listed: bool, only: tuple[str, ...], skip: tuple[str, ...],
    patience: float, keep: bool,
) -> None:  # fmt: skip
    """Start COMMAND, a worker with the conformance handlers, and try each promise of docs/protocol.md.

    It works in a schema of its own, which it drops at the end. Exit codes: 0 all promises were kept,
    1 not all, 2 wrong usage.
    """
    chosen = [p for p in IN_ORDER if p.name not in skip and (not only or p.name in only)]
    if listed:
        for promise in chosen:
            click.echo(f"{promise.name}: {promise.text}")
        return
    if not command:
        raise click.UsageError("name the command of the worker, after --")
    try:
        with staged(dsn, command, patience, keep) as stage:
            broken = [promise.name for promise in chosen if not played(stage, promise)]
    except psycopg.Error as error:
        raise click.ClickException(f"the database refuses: {first_line(error)}") from error
    except OSError as error:
        raise click.ClickException(f"the command cannot be started: {error}") from error
    click.echo(f"{len(chosen) - len(broken)} of {len(chosen)} promises were kept")
    if broken:
        click.echo(f"broken: {', '.join(broken)}")
        raise SystemExit(1)


if __name__ == "__main__":
    main(prog_name="python -m pyworker.conformance")
