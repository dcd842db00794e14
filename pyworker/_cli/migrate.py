"""`pyworker migrate`: install or upgrade the schema."""

from __future__ import annotations

import click

from .._db import migrations
from .._db.connect import connect
from .._dev.url import resolved
from ..errors import InvalidArgument
from .options import common


@click.command()
@common
@click.option("--dry-run", is_flag=True, help="List the migrations to apply; change nothing.")
@click.option(
    "--sql", "print_sql", is_flag=True, help="Print the SQL script instead of running it; needs no database."
)
@click.option(
    "--from",
    "from_version",
    type=int,
    metavar="N",
    help="With --sql: the schema version that the database has. Default: the script looks for itself.",
)
@click.option(
    "--no-transaction",
    is_flag=True,
    help="With --sql: omit BEGIN and COMMIT, for a migration tool that opens the transaction.",
)
@click.option(
    "--roles",
    is_flag=True,
    help="Create the roles SCHEMA_producer, _worker, _reader and _admin (needs CREATEROLE).",
)
@click.option(
    "--movable-clock",
    is_flag=True,
    help="For tests: let the setting pyworker.clock_offset move the queue's time.",
)
def migrate(
    dsn: str, schema: str, dry_run: bool, print_sql: bool, from_version: int | None, no_transaction: bool,
    roles: bool, movable_clock: bool
) -> None:  # fmt: skip
    """Install pyworker, or upgrade it to this version.

    It runs in one transaction. You may repeat it, run it concurrently and interrupt it; running
    workers continue. All of pyworker belongs to the owner of the schema: whichever role calls, it goes
    on as the owner, or is refused before it changes anything.
    """
    if print_sql:
        try:
            script = migrations.script(
                schema, from_version, roles=roles, movable_clock=movable_clock, transaction=not no_transaction
            )
        except InvalidArgument as error:
            raise click.UsageError(f"--from: {error}") from None
        click.echo(script)
        return
    if from_version is not None or no_transaction:
        option = "--no-transaction" if from_version is None else "--from"
        raise click.UsageError(f"{option} is for --sql: `migrate` looks for itself")
    with resolved(dsn) as url, connect(url) as conn:
        if dry_run:
            pending = migrations.pending(conn, schema)
            for migration in pending:
                click.echo(f"would apply {migration.name}{' (breaking)' if migration.breaking else ''}")
            click.echo(
                f"{len(pending)} migrations to apply; functions and views are always brought up to date"
            )
            return
        done = migrations.migrate(conn, schema, roles=roles, movable_clock=movable_clock)
        for migration in done:
            click.echo(f"applied {migration.name}")
        click.echo(f"schema {schema} is at version {migrations.newest()}")
