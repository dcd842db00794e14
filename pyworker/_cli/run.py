"""`pyworker run`: start a worker."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import click

from .._dev.url import resolved
from .._runner.config import RunConfig
from . import health as _health
from .options import CliError, common, named_roles


def _bounded(
    _ctx: click.Context, _param: click.Parameter, queues: tuple[str, ...]
) -> tuple[list[str], dict[str, int]]:
    """The queues that --queue names, and the bounds of those with one.

    A callback of the option, so that a wrong value is refused before missing modules are.
    """
    bounds: dict[str, int] = {}
    names: list[str] = []
    for queue in queues:
        name, equals, bound = queue.rpartition("=")
        if not equals:
            name = queue
        elif not name or not bound.isdecimal() or not 1 <= int(bound) <= 1000:
            raise click.UsageError(f"--queue {queue}: write QUEUE or QUEUE=N, with N from 1 to 1000")
        else:
            bounds[name] = int(bound)
        if name != "*" and name.endswith("*"):
            raise click.UsageError(
                f"--queue {queue}: name queues one by one; '*' alone stands for the others"
            )
        if name in names:
            raise click.UsageError(f"--queue {name} is given twice")
        names.append(name)
    return names, bounds


@click.command()
@click.argument("modules", nargs=-1, required=True)
@common
@click.option(
    "--concurrency",
    "-c",
    default=10,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="Handlers that each process runs at once.",
)
@click.option(
    "--processes",
    "-p",
    default=1,
    show_default=True,
    type=click.IntRange(1, 256),
    help="Processes that run handlers.",
)
@click.option(
    "--queue",
    "queues",
    multiple=True,
    callback=_bounded,
    metavar="QUEUE[=N]",
    help="Run only jobs of this queue ('default': jobs in no queue), at most N at once in each process. "
    "'*' stands for all other queues together. Can be repeated.",
)
@click.option("--task", "tasks", multiple=True, help="Run only this task. Can be repeated.")
@click.option(
    "--forbid-flag", "forbidden_flags", multiple=True, help="Do not run jobs with this flag. Can be repeated."
)
@click.option("--once", is_flag=True, help="Run the jobs that can run now, then exit.")
@click.option(
    "--shutdown-timeout",
    default=25.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Seconds that running jobs have to finish after SIGTERM.",
)
@click.option(
    "--poll-interval",
    default=5.0,
    show_default=True,
    type=click.FloatRange(0.05),
    help="Seconds between polls when no notification arrives; at most 5.",
)
@click.option(
    "--max-memory",
    type=click.IntRange(16),
    metavar="MB",
    help="Replace a process that uses more; kill it at one and a half times this.",
)
@click.option(
    "--crontab",
    type=click.Path(exists=True, dir_okay=False),
    help="Load the schedules of this file first, as `pyworker schedules load` does.",
)
@click.option(
    "--no-uvloop",
    is_flag=True,
    help="Run async handlers on asyncio's own event loop, even if uvloop is installed.",
)
@click.option(
    "--log-format", type=click.Choice(["text", "short", "json"]), default="text", show_default=True,
    help="On a terminal, `text` means `short`.",
)  # fmt: skip
@click.option("--no-tracebacks", is_flag=True, help="Log exceptions of handlers without their tracebacks.")
@click.option(
    "--log-level",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
    default="INFO",
    show_default=True,
)
@_health.run_options
def run(
    modules: tuple[str, ...], dsn: str, schema: str, queues: tuple[list[str], dict[str, int]],
    tasks: tuple[str, ...], forbidden_flags: tuple[str, ...], max_memory: int | None,
    crontab: str | None, no_uvloop: bool, no_tracebacks: bool, health_port: int | None,
    metrics_port: int | None, host: str, **options: Any,
) -> None:  # fmt: skip
    """Run the jobs of the tasks that MODULES define (packages with all submodules).

    On SIGTERM or Ctrl-C the worker claims no new job, gives running jobs the shutdown timeout, and
    hands the others back at once; a second signal hands all jobs back.

    Exit codes: 0 done, 1 error,
    2 wrong usage, 56 the database is older than this pyworker (run `pyworker migrate`), 57 it is
    newer and incompatible (upgrade pyworker).
    """
    from .._logging import set_up

    try:
        os.getcwd()  # modules are looked for in it
    except OSError as error:
        raise CliError(f"the current directory cannot be read: {error.strerror}") from error

    config = RunConfig(
        dsn="", schema=schema, tasks=list(modules), queues=queues[0], bounds=queues[1],
        only_tasks=list(tasks), forbidden_flags=list(forbidden_flags),
        max_memory=max_memory << 20 if max_memory else None, metrics=metrics_port is not None,
        uvloop=not no_uvloop, tracebacks=not no_tracebacks, **options,
    )  # fmt: skip
    set_up(config.log_format, config.log_level)
    ports = [port for port in (health_port, metrics_port) if port]
    with resolved(dsn) as config.dsn, named_roles(config.dsn, schema):
        raise SystemExit(_serve(config, crontab, host, ports))


def _serve(config: RunConfig, crontab: str | None, host: str, ports: list[int]) -> int:
    from .._runner import metrics, probes
    from .._runner.parent import Parent
    from .crontab import load_for_run

    if crontab:
        load_for_run(config.dsn, config.schema, crontab)
    parent = Parent(config)
    with (
        metrics.collected(parent) as own,
        probes.serving(host, ports, {**probes.of_worker(parent), **own}),
        _progress(config),
    ):
        return parent.run()


def _progress(config: RunConfig) -> contextlib.AbstractContextManager[object]:
    from .._logging import on_terminal

    if not config.once or config.log_format == "json" or not on_terminal():
        return contextlib.nullcontext()
    from .progress import progress

    return progress(config.dsn, config.schema)
