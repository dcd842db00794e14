"""What commands share: the options that say where the queue is, the way there, and how to give up."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click
import psycopg

from . import _sql
from ._connect import connect
from ._embedded import kept_server

as_json = click.option("--json", "machine", is_flag=True, help="Print JSON, for machines.")


class Problem(click.ClickException):
    """One line that names the cause, and the way out."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # pyright: ignore[reportAttributeAccessIssue] - click declares it for the class

    def show(self, file: Any = None) -> None:
        click.echo(f"pyworker: {self.message}", file=file or sys.stderr)


@contextlib.contextmanager
def resolved(dsn: str) -> Iterator[str]:
    """`demo` stands for the database that `pyworker demo` left behind."""
    if dsn != "demo":
        yield dsn
    else:
        with kept_server("demo") as server:
            yield server.url()


@contextlib.contextmanager
def database(dsn: str, schema: str) -> Iterator[_sql.Database]:
    """All that a command does, or nothing of it."""
    with resolved(dsn) as url, connect(url) as conn:
        try:
            with conn.transaction():
                yield _sql.Database(conn, schema)
        except psycopg.OperationalError as error:
            if conn.closed:
                raise Problem(
                    f"the connection to the database was lost: {first_line(error)}. What was asked for may or may not have been done"
                ) from error
            raise


def first_line(error: psycopg.Error) -> str:
    return str(error).strip().split("\n")[0].removeprefix("connection is bad: ").removeprefix("connection failed: ")


def common(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say where the queue is."""

    @click.option(
        "--dsn",
        default="",
        envvar="DATABASE_URL",
        help="Database: a postgresql:// URL or libpq's key=value. Default: the PG* variables.",
    )
    @click.option(
        "--schema",
        default="pyworker",
        envvar="PYWORKER_SCHEMA",
        show_default=True,
        help="Schema that pyworker is installed in.",
    )
    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return command(*args, **kwargs)

    return wrapped


def part_of_group(command: Callable[..., Any]) -> Callable[..., Any]:
    """A subcommand that takes the options of `common` as its group does: `queues --dsn X pause Q` and `queues pause Q --dsn X`."""

    @common
    @click.pass_context
    @functools.wraps(command)
    def wrapped(ctx: click.Context, **options: Any) -> Any:
        where = [
            own if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE else of_group
            for name, of_group, own in zip(
                ("dsn", "schema"), ctx.obj, (options.pop("dsn"), options.pop("schema")), strict=True
            )
        ]
        return command(tuple(where), **options)

    return wrapped
