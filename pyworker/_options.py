"""The options that commands share: where the queue is."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click


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
