"""The `pyworker` command; see `pyworker COMMAND --help`."""

from __future__ import annotations

from ._cli import dev, doctor, health, jobs, migrate, queues, run, schedules, serve, tasks, top, topics
from ._cli.root import main, name_variables

__all__ = ["main"]

COMMANDS = (
    migrate.migrate, run.run, dev.demo,
    jobs.add, jobs.jobs, jobs.retry, jobs.signal, jobs.cancel, jobs.delete, jobs.remove, jobs.explain,
    doctor.doctor, top.top, health.health, health.metrics, queues.queues, queues.sequences,
    schedules.schedules, tasks.tasks, topics.sql, dev.replay, dev.dev, serve.ui,
)  # fmt: skip

for command in COMMANDS:
    main.add_command(command)
name_variables(main, "PYWORKER")
