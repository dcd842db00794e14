"""The arguments of `manage.py pyworker` and of call_command, as those of the pyworker command."""

# pyright: basic
from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
from django.apps import apps
from django.core.management.base import CommandError
from django.utils.module_loading import module_has_submodule

from ..cli import main

DATABASE = "--database"
OURS = (DATABASE, "--settings", "--pythonpath")  # the others are those of the pyworker command
SETUP, ALL = "pyworker.django.setup", "pyworker.django.worker"


def split(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """OURS, wherever they stand before `--`, and all other arguments."""
    own: dict[str, str] = {}
    others: list[str] = []
    left = iter(arguments)
    for word in left:
        name, equals, value = word.partition("=")
        if word == "--":
            return own, [*others, word, *left]
        if name in OURS:
            own[name] = value if equals else next(left, "")
        else:
            others.append(word)
    return own, others


def _command(arguments: Sequence[str]) -> tuple[click.Command, int]:
    """The command that they name, and where its own arguments begin."""
    command: click.Command = main
    at = 0
    while isinstance(command, click.Group) and at < len(arguments):
        command, at = command.commands.get(arguments[at], command), at + 1
    return command, at


def with_modules(arguments: list[str]) -> list[str]:
    """Load the applications before all other modules; without a module, take those of all applications."""
    command, at = _command(arguments)
    if not any(param.name == "modules" and isinstance(param, click.Argument) for param in command.params):
        return arguments
    parser = command.make_parser(click.Context(command, resilient_parsing=True))
    try:
        given = parser.parse_args(arguments[at:])[0].get("modules")
    except click.UsageError:
        return arguments  # the command itself says what is wrong
    return [
        *arguments[:at],
        *([SETUP] if isinstance(given, tuple) and given else _modules()),
        *arguments[at:],
    ]


def _modules() -> list[str]:
    """Each is named, so that a worker removes the schedules that one of them no longer declares."""
    configs = [config for config in apps.get_app_configs() if module_has_submodule(config.module, "tasks")]
    return [ALL, *(f"{config.name}.tasks" for config in configs)]


# -- options given by name, as call_command takes them ---------------------------------------------


def names() -> tuple[str, ...]:
    """Those of every option and every argument of every command."""
    return tuple({name for command in _commands(main) for name in _names(command)})


def _commands(command: click.Command) -> Iterator[click.Command]:
    yield command
    for one in getattr(command, "commands", {}).values():
        yield from _commands(one)


def _names(command: click.Command) -> dict[str, click.Parameter]:
    """As Python spells them: log_level."""
    found = {str(param.name): param for param in command.params}
    for param in command.params:
        if isinstance(param, click.Option):
            found[_long(param).lstrip("-").replace("-", "_")] = param
    return found


def _long(param: click.Parameter) -> str:
    return max(param.opts, key=len)


def with_named(arguments: list[str], options: Mapping[str, Any]) -> list[str]:
    """Add what was given by name: once=True becomes --once."""
    command, at = _command(arguments)
    known, words = _names(command), list[str]()
    for name in sorted(options.keys() & set(names())):
        if (param := known.get(name)) is None:
            raise CommandError(f"pyworker {command.name} has no option {name!r}")
        for value in options[name] if isinstance(options[name], list | tuple) else [options[name]]:
            if isinstance(param, click.Argument):
                words.append(_text(value))
            elif getattr(param, "is_flag", False):
                words += [_long(param)] if value else []
            elif value is not None:
                words += [_long(param), _text(value)]
    return [*arguments[:at], *words, *arguments[at:]]


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict) else str(value)
