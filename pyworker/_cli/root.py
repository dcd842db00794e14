"""The `pyworker` command group, and the messages of commands that fail."""

from __future__ import annotations

import contextlib
import io
import sys
from typing import Any, cast

import click
import psycopg

from .._db.connect import first_line
from .._dev.postgres import NoPostgres
from .._distribution import DISTRIBUTION
from .._output import open_streams, unwritten
from .._runner.config import EXIT_DATABASE_NEWER, EXIT_DATABASE_OLDER
from ..errors import PyworkerError, SchemaVersionError, sqlstate_of
from . import usage
from .doctor import EXIT_UNKNOWN
from .options import CliError


class Gone(Exception):
    """The reader of the output has closed its pipe."""


class Group(click.Group):
    def main(self, *args: Any, **extra: Any) -> Any:
        open_streams()
        try:
            return super().main(*args, **extra)
        except (SystemExit, OSError, Gone) as ended:
            error = unwritten(ended.__cause__ or ended)
            if error is None:
                raise
            if isinstance(error, BrokenPipeError):
                raise SystemExit(0) from None  # `pyworker jobs | head` is no error
            click.echo(f"pyworker: cannot write the output: {error.strerror}", err=True)
            raise SystemExit(1) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return self._invoke(ctx)
        except CliError as problem:
            if ctx.invoked_subcommand in ("doctor", "health"):
                problem.exit_code = EXIT_UNKNOWN  # pyright: ignore[reportAttributeAccessIssue]
            raise

    def _invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            usage.reword(error)
            raise
        except SchemaVersionError as error:
            codes = {"older": EXIT_DATABASE_OLDER, "newer": EXIT_DATABASE_NEWER}
            raise CliError(_with_hint(error), codes.get(error.detail or "", 1)) from error
        except PyworkerError as error:
            raise CliError(_with_hint(error)) from error
        except NoPostgres as error:
            raise CliError(str(error)) from error
        except psycopg.Error as error:
            raise CliError(_explained(error)) from error
        except UnicodeEncodeError as error:
            raise CliError(f"an argument is not UTF-8: {error.object!a}") from error
        except BrokenPipeError as error:
            raise Gone from error  # click would report an error


def _with_hint(error: PyworkerError) -> str:
    return f"{error}. {error.hint}" if error.hint else str(error)


def _explained(error: psycopg.Error) -> str:
    first = first_line(error)
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        ways_out = {
            "for database": "Its owner can GRANT CREATE ON DATABASE … TO your role",
            "create role": "Let a role with CREATEROLE run it, or go without --roles",
            "owner of": "Upgrade as the role that installed it",
        }
        otherwise = (
            "Ask the owner of the schema: GRANT <schema>_admin (or _producer, _worker, _reader) TO your role"
        )
        return f"{first}. {next((way for words, way in ways_out.items() if words in first), otherwise)}"
    if isinstance(
        error,
        psycopg.errors.InvalidSchemaName | psycopg.errors.UndefinedFunction | psycopg.errors.UndefinedTable,
    ):
        return (
            f"{first}. Is pyworker installed here? Run: pyworker migrate (or name its schema with --schema)"
        )
    if isinstance(error, psycopg.errors.LockNotAvailable):
        return (
            f"{first}: another session holds a lock on pyworker's tables for too long."
            " Nothing was changed; try again"
        )
    if "session is read-only" in first:
        return (
            f"{first}: default_transaction_read_only is on for this server, database or role."
            " Its owner can turn it off"
        )
    if isinstance(error, psycopg.OperationalError) and sqlstate_of(error) is None:
        return (
            f"cannot reach the database: {first}. Name one with --dsn, DATABASE_URL or PGHOST, PGDATABASE …"
        )
    if isinstance(error, psycopg.ProgrammingError) and sqlstate_of(error) is None:
        return f"{first}. --dsn, DATABASE_URL take postgresql://user@host/database, or host=… user=… dbname=…"
    return first


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name=DISTRIBUTION)
@click.option("--dsn", help="The same as --dsn of the command.")
@click.option("--schema", help="The same as --schema of the command.")
def main(dsn: str | None, schema: str | None) -> None:
    """A job queue that lives in PostgreSQL.

    Any SQL client adds jobs: SELECT pyworker.add_job('send_email', '{"to": "a@b.c"}').
    `pyworker run` runs them.
    """
    del dsn, schema  # the options of the command find them: WhereOption
    with contextlib.suppress(AttributeError):  # standard output may have been replaced by another stream
        cast("io.TextIOWrapper[Any]", sys.stdout).reconfigure(errors="backslashreplace")


def name_variables(group: click.Group, prefix: str) -> None:
    """Let a variable set each option: PYWORKER_ADD_MAX_ATTEMPTS sets --max-attempts of `add`."""
    for name, command in group.commands.items():
        for option in command.params:
            if isinstance(option, click.Option):
                own = f"{prefix}_{name}_{max(option.opts, key=len)[2:]}".upper().replace("-", "_")
                option.envvar = option.envvar or own
                option.show_envvar = True
        if isinstance(command, click.Group):
            name_variables(command, f"{prefix}_{name}")
