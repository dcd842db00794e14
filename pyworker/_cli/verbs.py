"""The commands: where each is, and what `pyworker --help` says of it in one line of 80 columns."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping

import click

VERBS = {
    "add": ("jobs", "Add a job of TASK."),
    "cancel": ("jobs", "Cancel jobs."),
    "delete": ("jobs", "Delete jobs, also finished ones."),
    "demo": ("dev", "Show an example application, with a database of its own."),
    "dev": ("dev", "Run a database, a reloading worker and the dashboard."),
    "doctor": ("doctor", "Check the health of the queue, and say how to repair it."),
    "explain": ("jobs", "Explain why a job is not running."),
    "health": ("health", "Check whether workers are live, or ready."),
    "jobs": ("jobs", "List jobs, newest first, or show one."),
    "metrics": ("health", "Print metrics in Prometheus' text format."),
    "migrate": ("migrate", "Install pyworker, or upgrade it to this version."),
    "queues": ("queues", "List the queues, or change one."),
    "remove": ("jobs", "Remove the jobs that hold a job_key."),
    "replay": ("dev", "Run a past job's handler here, and keep nothing of it."),
    "retry": ("jobs", "Run ended jobs again, and waiting jobs now."),
    "run": ("run", "Run a worker for the tasks in MODULES."),
    "schedules": ("schedules", "List the schedules, or change one."),
    "sequences": ("queues", "List the sequences, halted ones first, or resume one."),
    "signal": ("jobs", "Send a signal to a job that waits for it."),
    "sql": ("topics", "Print ready SQL statements on a topic."),
    "tasks": ("tasks", "List the definitions of tasks, or write them."),
    "top": ("top", "View and change the queue in the terminal."),
    "ui": ("serve", "Serve the dashboard for a browser."),
}


class Commands(Mapping[str, click.Command]):
    """Each is loaded when it is asked for."""

    def __init__(self) -> None:
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._loaded:
            module, summary = VERBS[name]
            command = getattr(importlib.import_module(f"{__package__}.{module}"), name)
            command.short_help = summary
            _name_variables(command, f"PYWORKER_{name}")
            self._loaded[name] = command
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)


def _name_variables(command: click.Command, prefix: str) -> None:
    """Let a variable set each option: PYWORKER_ADD_MAX_ATTEMPTS sets --max-attempts of `add`."""
    for option in command.params:
        if isinstance(option, click.Option):
            own = f"{prefix}_{max(option.opts, key=len)[2:]}".upper().replace("-", "_")
            option.envvar = option.envvar or own
            option.show_envvar = True
    for name, one in getattr(command, "commands", {}).items():
        _name_variables(one, f"{prefix}_{name}")
