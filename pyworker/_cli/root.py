"""The `pyworker` command group, and the messages of commands that fail."""

from __future__ import annotations

import contextlib
import io
import sys
from typing import Any, cast

import click
import psycopg

from .._dev.postgres import NoPostgres
from .._distribution import DISTRIBUTION
from .._output import open_streams, unwritten
from ..errors import PyworkerError
from . import usage
from .failures import exit_code_of, explained
from .offers import as_commands
from .options import CliError
from .verbs import VERBS, Commands

EXIT_UNKNOWN = 3  # of doctor and health, as of monitoring plugins


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

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in sorted(VERBS.items())])

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
        except (PyworkerError, psycopg.Error) as error:
            schema = ctx.params.get("schema") or ("pyworker",)
            if isinstance(error, PyworkerError) and error.hint:
                error.hint = as_commands(error.hint, schema[0])
            words = explained(error, schema[0], str(ctx.invoked_subcommand))
            raise CliError(words, exit_code_of(error)) from error
        except NoPostgres as error:
            raise CliError(str(error)) from error
        except UnicodeEncodeError as error:
            raise CliError(f"an argument is not UTF-8: {error.object!a}") from error
        except BrokenPipeError as error:
            raise Gone from error  # click would report an error


@click.group(
    cls=Group, commands=cast("Any", Commands()), context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name=DISTRIBUTION)
@click.option("--dsn", multiple=True, help="The same as --dsn of the command.")
@click.option("--schema", multiple=True, help="The same as --schema of the command.")
def main(dsn: tuple[str, ...], schema: tuple[str, ...]) -> None:
    """A job queue that lives in PostgreSQL.

    Any SQL client adds jobs: SELECT pyworker.add_job('send_email', '{"to": "a@b.c"}').
    `pyworker run` runs them.
    """
    del dsn, schema  # the options of the command find them: WhereOption
    with contextlib.suppress(AttributeError):  # standard output may have been replaced by another stream
        cast("io.TextIOWrapper[Any]", sys.stdout).reconfigure(errors="backslashreplace")
