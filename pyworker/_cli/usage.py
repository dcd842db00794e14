"""Messages about wrong usage: by the names that a command has here, also for users of other queues."""

from __future__ import annotations

import re
from typing import Any, cast

import click

# What other queues call a command, and what it is called here.
_COMMANDS = {
    "worker": "run", "work": "run", "start": "run", "serve": "run", "consume": "run",
    "enqueue": "add", "send": "add", "push": "add", "call": "add",
    "list": "jobs", "ls": "jobs", "inspect": "jobs", "show": "jobs",
    "status": "jobs, queues or doctor", "info": "jobs, queues or doctor", "stats": "queues",
    "workers": "top, ui or health", "monitor": "top",
    "web": "ui", "dashboard": "ui", "admin": "ui", "flower": "ui",
    "beat": "schedules", "cron": "schedules", "crontab": "schedules",
    "check": "doctor", "ping": "health", "install": "migrate", "init": "migrate", "upgrade": "migrate",
    "requeue": "retry", "purge": "delete", "help": "--help", "version": "--version",
}  # fmt: skip
_OPTIONS = {
    "--workers": "--processes", "--jobs": "--concurrency", "--threads": "--concurrency",
    "--queues": "--queue", "--loglevel": "--log-level", "--in": "--delay", "--countdown": "--delay",
    "--at": "--run-at", "--eta": "--run-at", "--retries": "--max-attempts", "--job-key": "--key",
}  # fmt: skip
_SCHEDULE = "To add one: SELECT pyworker.add_schedule(name, cron, task), or @cron in Python"
_NUMBERS = {
    "integer": "an integer", "integer range": "an integer", "float": "a number", "float range": "a number",
}  # fmt: skip


def reword(error: click.UsageError) -> None:
    """Change what click says of wrong usage."""
    if isinstance(error, click.MissingParameter) and error.param and error.param.name == "modules":
        cast("Any", error).message = "Name the modules that define your tasks, such as myapp.tasks"
    elif isinstance(error, click.BadParameter):
        _bad_value(error)
    elif isinstance(error, click.NoSuchOption):
        known = {name for option in (error.ctx.command.params if error.ctx else ()) for name in option.opts}
        if _OPTIONS.get(error.option_name) in known:
            _suggest(error, f"Did you mean '{_OPTIONS[error.option_name]}'?")
    elif found := re.match(r"No such command '(.*?)'", error.message):
        _suggest(error, _command(error.ctx.command if error.ctx else None, found[1]))


def _command(group: click.Command | None, word: str) -> str | None:
    if not (group and group.name) or group.name == "pyworker" or "jobs" in getattr(group, "commands", ()):
        return f"Here that is: pyworker {_COMMANDS[word]}" if word in _COMMANDS else None
    if word in ("list", "ls", "show"):
        return f"To list them: pyworker {group.name}"
    if word in ("add", "create"):
        return {"schedules": _SCHEDULE, "queues": "To set limits: pyworker queues set"}.get(group.name)
    return None


def _suggest(error: click.UsageError, advice: str | None) -> None:
    if advice:
        changed: Any = error  # what click declares as final
        changed.possibilities = None
        changed.message = f"{error.message} {advice}"


def _bad_value(error: click.BadParameter) -> None:
    """click names the variable of each option, which we do only if the bad value came from there."""
    given, changed = error.param, cast("Any", error)
    for words, better in _NUMBERS.items():
        changed.message = error.message.replace(f"is not a valid {words}.", f"is not {better}.")
    if given is None or error.param_hint is not None:
        return
    if isinstance(given, click.Option):
        hint = click.Parameter.get_error_hint(given, error.ctx)
    else:
        hint = given.get_error_hint(error.ctx).replace("[", "").replace("]", "")
    source = error.ctx.get_parameter_source(str(given.name)) if error.ctx else None
    if source is click.core.ParameterSource.ENVIRONMENT:
        hint += f" (from the variable {given.envvar})"
    error.param_hint = hint
