"""`manage.py pyworker …`: runs the pyworker command on this project's database."""

# pyright: basic
from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import click
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS

from pyworker._cli.options import CliError
from pyworker.cli import main
from pyworker.django._arguments import DATABASE, names, split, with_modules, with_named
from pyworker.django._database import NAMES, dsn, names_of_databases, take_names


class Command(BaseCommand):
    help = (
        "Runs the pyworker command on this project's database, or on the one that --database names."
        " `run`, `dev` and `tasks sync` without modules take the tasks of all applications."
    )
    requires_system_checks = ()  # each command checks what it needs
    stealth_options = names()  # what call_command takes by name

    def run_from_argv(self, argv: list[str]) -> None:
        """Pass all arguments but Django's to pyworker, including `--help` and `--version`."""
        own, arguments = split(argv[2:])
        take_names()
        sys.exit(main.main(with_modules(arguments), **_of(own.get(DATABASE) or DEFAULT_DB_ALIAS)))

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(DATABASE, default=DEFAULT_DB_ALIAS, help="The alias of the database.")
        parser.add_argument("arguments", nargs=argparse.REMAINDER, help="Those of the pyworker command.")

    def handle(self, *args: Any, **options: Any) -> None:
        """For call_command: returns after success, and raises CommandError otherwise."""
        own, arguments = split(options["arguments"])
        arguments = with_named(arguments, options)
        alias = own.get(DATABASE) or options["database"]
        if arguments[:1] in (["run"], ["dev"]):
            code = _in_a_process([*arguments, DATABASE, alias])
        else:
            code = self._here(with_modules(arguments), alias, options)
        if code:
            words = f"pyworker {arguments[0]} has ended with exit code {code}"
            raise CommandError(words, returncode=int(code))

    def _here(self, arguments: list[str], alias: str, options: Mapping[str, Any]) -> Any:
        with _streams(options):
            try:
                return main.main(arguments, standalone_mode=False, **_of(alias))
            except click.ClickException as error:
                raise CommandError(error.format_message(), returncode=error.exit_code) from error
            except SystemExit as ended:
                return ended.code


def _in_a_process(arguments: list[str]) -> int:
    """A worker has a process of its own: it takes over signals, logging and all child processes."""
    environment = {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "DJANGO_SETTINGS_MODULE": settings.SETTINGS_MODULE,
        NAMES: names_of_databases(),
    }
    command = [sys.executable, "-m", "django", "pyworker", *arguments]
    return subprocess.run(command, env={**os.environ, **environment}, check=False).returncode  # noqa: S603


def _of(alias: str) -> dict[str, Any]:
    """A --dsn in the arguments comes before this database, which comes before DATABASE_URL."""

    def url() -> list[str]:
        try:
            return [dsn(alias)]
        except CommandError as error:
            raise CliError(str(error)) from error

    return {"prog_name": "manage.py pyworker", "default_map": {"dsn": url}}


@contextlib.contextmanager
def _streams(options: Mapping[str, Any]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if options.get("stdout"):
            stack.enter_context(contextlib.redirect_stdout(options["stdout"]))
        if options.get("stderr"):
            stack.enter_context(contextlib.redirect_stderr(options["stderr"]))
        yield
