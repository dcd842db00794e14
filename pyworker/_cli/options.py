"""Options that commands share, the connection that they use, and how they fail."""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import click
import psycopg

from .._db.connect import connect, first_line
from .._db.database import Database
from .._db.printing import Printing
from .._dev.url import resolved
from .._escape import shown
from .._logging import is_json
from .._output import print_json, say
from .offers import as_commands

_SERVICE_LINK = re.compile(r"(tcp|udp|sctp)://")
COMMANDLINE = click.core.ParameterSource.COMMANDLINE
F = TypeVar("F", bound=Callable[..., Any])
_MODE = "pyworker.mode"  # where --sql and --dry-run store their choice for `database`

as_json = click.option("--json", "machine", is_flag=True, help="Print JSON.")


class CliError(click.ClickException):
    """An error message of one line: the cause, and what to do."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        # click declares it for the class
        self.exit_code = exit_code  # pyright: ignore[reportAttributeAccessIssue]

    def show(self, file: Any = None) -> None:
        if is_json():  # `pyworker run` with --log-format json: also the last line is JSON
            logging.getLogger("pyworker").error("%s", self.message)
            return
        click.echo(f"pyworker: {shown(self.message)}", file=file or sys.stderr)


@contextlib.contextmanager
def database(dsn: str, schema: str) -> Iterator[Database]:
    """A database in one transaction: --sql only prints the SQL, --dry-run rolls back."""
    mode = click.get_current_context().meta.get(_MODE)
    if mode == "sql":
        with contextlib.ExitStack() as later:

            def real() -> Database:
                return Database(later.enter_context(connect(later.enter_context(resolved(dsn)))), schema)

            yield Printing(schema, real)
        return
    with resolved(dsn) as url, connect(url) as conn, named_roles(url, schema):
        conn.add_notice_handler(lambda notice: _pass_on(notice, schema))
        try:
            with conn.transaction():
                db = Database(conn, schema)
                if mode:
                    db.keep_quiet()
                yield db
                if mode:
                    _say_what_is_taken_back(db.changes())
                    raise psycopg.Rollback
        except psycopg.OperationalError as error:
            if conn.closed:
                raise CliError(
                    f"the connection to the database was lost: {first_line(error)}."
                    " What was asked for may or may not have been done"
                ) from error
            raise


@contextlib.contextmanager
def named_roles(dsn: str, schema: str) -> Iterator[None]:
    """A refusal by the database names the role that this command needs, and why it is missing."""
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        from .failures import explained

        raise CliError(explained(error, schema, verb_of(click.get_current_context()), dsn)) from error


def verb_of(ctx: click.Context) -> str:
    """The command without its options: `queues pause`."""
    own = str(ctx.command.name)
    return f"{verb_of(ctx.parent)} {own}" if ctx.parent and ctx.parent.parent else own


def _pass_on(notice: psycopg.errors.Diagnostic, schema: str) -> None:
    """What a function of ours remarks, such as that a job waits for another signal."""
    if notice.severity_nonlocalized == "NOTICE":
        words = f"pyworker: {notice.message_primary}"
        hint = as_commands(notice.message_hint or "", schema)
        say(f"{words}. {hint}" if hint else words, err=True)


def _say_what_is_taken_back(changes: list[tuple[str, int, int, int]]) -> None:
    words = [
        f"{table} "
        + ", ".join(
            f"{n} {verb}" for n, verb in zip(rows, ("inserted", "updated", "deleted"), strict=True) if n
        )
        for table, *rows in changes
    ]
    click.echo(f"dry run, rolled back: {'; '.join(words) or 'nothing would change'}", err=True)


class WhereOption(click.Option):
    """An option of each command that may also stand before the command: `pyworker --dsn X jobs`.

    All commands take it several times, so that they can refuse more than one.
    """

    def value_from_envvar(self, ctx: click.Context) -> Any:
        value = self.resolve_envvar_value(ctx)
        return None if value is None else [value]

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        if self.name == "schema" and "" in (value or ()):
            raise click.BadParameter("the name of a schema must not be empty", ctx, self)
        return super().process_value(ctx, value)

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, Any]:
        value, source = super().consume_value(ctx, opts)
        given = ctx.find_root().params.get(str(self.name))
        if not given or source is COMMANDLINE:
            return value, source
        return given, click.core.ParameterSource.DEFAULT_MAP


def _one(_ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> str:
    if len(values) > 1:
        raise click.UsageError(
            f"{param.opts[0]} is given {len(values)} times: name one"
            f" {'database' if param.name == 'dsn' else 'schema'}, and start a worker for each"
        )
    return values[0] if values else ""


schema_option = click.option(
    "--schema",
    cls=WhereOption,
    multiple=True,
    default=("pyworker",),
    callback=_one,
    envvar="PYWORKER_SCHEMA",
    show_default=True,
    help="Schema in which pyworker is installed.",
)


class PortOption(click.Option):
    """A port option that ignores the variables that Kubernetes sets for a service with our name."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        value = super().resolve_envvar_value(ctx)
        if value is None or not _SERVICE_LINK.match(value):
            return value
        click.echo(
            f"pyworker: {self.envvar}={shown(value)} is ignored:"
            " it is the address of a service, as Kubernetes sets it, and no port"
            " (enableServiceLinks: false in the pod's spec prevents such variables)",
            err=True,
        )
        return None


_dsn_option = click.option(
    "--dsn",
    cls=WhereOption,
    multiple=True,
    callback=_one,
    envvar="DATABASE_URL",
    help="Database: a postgresql:// URL, libpq's key=value, `demo` or `dev`. Default: the PG* variables.",
)


def common(command: F) -> F:
    """Add the options that name the database and the schema."""
    return _dsn_option(schema_option(command))


def _mode(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and ctx.meta.setdefault(_MODE, param.name) != param.name:
        raise click.UsageError("--sql runs nothing, --dry-run does: use one or the other")


def _mode_option(name: str, about: str) -> Callable[[F], F]:
    return click.option(name, is_flag=True, expose_value=False, callback=_mode, help=about)


_printed = _mode_option("--sql", "Print the SQL, with its values, instead of running it.")
_taken_back = _mode_option("--dry-run", "Show what would change, then roll back.")


class Exits(NamedTuple):
    """What a verb yields if the command has an exit code of its own."""

    value: Any
    code: int


def verb(
    of: click.Group | None = None,
    name: str | None = None,
    *,
    changes: bool = False,
    machine: bool = True,
    check: Callable[..., None] | None = None,
) -> Callable[[Callable[..., Iterator[Any]]], click.Command]:
    """Make a command of a generator, which is called with the database and the command's own arguments.

    What stands before its `yield` runs in one transaction. --json prints what it yields; otherwise the rest
    prints for people, after the commit. `of`: the group that it belongs to, whose own options count for it,
    too: `queues --dsn X pause Q` is `queues pause Q --dsn X`. `check` refuses wrong usage before the
    database is asked for anything.
    """

    def decorate(function: Callable[..., Iterator[Any]]) -> click.Command:
        @click.pass_context
        @functools.wraps(function)
        def run(ctx: click.Context, dsn: str, schema: str, machine: bool = False, **options: Any) -> None:
            own = {"dsn": dsn, "schema": schema}
            given = {name for name in own if ctx.get_parameter_source(name) is COMMANDLINE}
            where = {name: own[name] if name in given else value for name, value in (ctx.obj or own).items()}
            if ctx.invoked_subcommand:
                ctx.obj = own
                return
            if check:
                check(**options)
            with database(**where) as db:
                steps = function(db, **options)
                value = next(steps, None)
            value, code = value if isinstance(value, Exits) else (value, 0)
            if machine:
                print_json(value)
            else:
                for _ in steps:
                    pass
            if code:
                raise SystemExit(code)

        body = _printed(_taken_back(run) if changes else run)
        body = common(as_json(body) if machine else body)
        make = of.command(name) if of else click.command(name)
        return make(body)

    return decorate


def listing(function: Callable[..., Iterator[Any]]) -> click.Group:
    """Make such a command that lists what its subcommands change."""
    made = verb()(function)
    return click.Group(
        made.name, params=made.params, callback=made.callback, help=made.help, invoke_without_command=True
    )


def does(
    group: click.Group, name: str, change: Callable[[Database, str], object], done: str, about: str
) -> None:
    """Add a subcommand that makes one change, such as `pause` of `queues`."""
    thing = str(group.name).removesuffix("s")

    @verb(group, name, changes=True, machine=False)
    @click.argument("target", metavar=thing.upper())
    def command(db: Database, target: str) -> Iterator[None]:
        change(db, target)
        yield
        say(f"{thing} {target} {done}")

    command.help = about
