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

# What `pyworker --help` says of each: one line of 80 columns.
SUMMARIES = {
    "add": "Add a job of TASK.",
    "cancel": "Cancel jobs.",
    "delete": "Delete jobs, also finished ones.",
    "demo": "Show an example application, with a database of its own.",
    "dev": "Run a database, a reloading worker and the dashboard.",
    "doctor": "Check the health of the queue, and say how to repair it.",
    "explain": "Explain why a job is not running.",
    "health": "Check whether workers are live, or ready.",
    "jobs": "List jobs, newest first, or show one.",
    "metrics": "Print metrics in Prometheus' text format.",
    "migrate": "Install pyworker, or upgrade it to this version.",
    "queues": "List the queues, or change one.",
    "remove": "Remove the jobs that hold a job_key.",
    "replay": "Run a past job's handler here, and keep nothing of it.",
    "retry": "Run ended jobs again, and waiting jobs now.",
    "run": "Run a worker for the tasks in MODULES.",
    "schedules": "List the schedules, or change one.",
    "sequences": "List the sequences, halted ones first, or resume one.",
    "signal": "Send a signal to a job that waits for it.",
    "sql": "Print ready SQL statements on a topic.",
    "tasks": "List the definitions of tasks, or write them.",
    "top": "View and change the queue in the terminal.",
    "ui": "Serve the dashboard for a browser.",
}

for command in COMMANDS:
    command.short_help = SUMMARIES[str(command.name)]
    main.add_command(command)
name_variables(main, "PYWORKER")
