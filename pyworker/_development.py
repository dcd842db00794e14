"""The commands for those who write tasks. What each takes is imported only when it is called."""

from __future__ import annotations

import click

from ._options import common


@click.command()
@click.argument("job_id", type=click.IntRange(1, 2**63 - 1))
@common
@click.option(
    "--modules", multiple=True, metavar="MODULE",
    help="Where its task is defined; can be repeated. Default: what a live worker that knows the task has loaded.",
)  # fmt: skip
@click.option("--pdb", "debug", is_flag=True, help="Look at an exception of the handler in the debugger.")
def replay(job_id: int, dsn: str, schema: str, modules: tuple[str, ...], debug: bool) -> None:
    """Run the handler of job JOB_ID here, in the foreground, on the payload of that job, and keep nothing.

    What it does in job.transaction(), by job.add_job() and job.once() is rolled back, and the job itself stays as it is, whatever
    state it is in. Breakpoints work. What the handler does elsewhere, it does: mails are sent, files are written. Exit code 1: it
    failed.
    """
    from ._replay import run

    run(job_id, dsn, schema, list(modules), debug)
