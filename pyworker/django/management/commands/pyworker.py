"""`manage.py pyworker …`: runs the pyworker command on this project's database."""

# pyright: basic
from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connections
from psycopg.conninfo import make_conninfo

from pyworker.cli import main


class Command(BaseCommand):
    help = (
        "Runs the pyworker command on this project's database;"
        " `run` without modules runs the tasks of all applications."
    )
    requires_system_checks = ()  # each command checks what it needs

    def run_from_argv(self, argv: list[str]) -> None:
        """Pass all further arguments to pyworker, including `--help` and `--version`."""
        self.execute_pyworker(argv[2:])

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("arguments", nargs="*")

    def handle(self, *args: Any, **options: Any) -> None:
        self.execute_pyworker(options["arguments"])

    def execute_pyworker(self, arguments: list[str]) -> None:
        os.environ["DATABASE_URL"] = dsn("default")
        if arguments[:1] == ["run"] and not [a for a in arguments[1:2] if not a.startswith("-")]:
            arguments = ["run", "pyworker.django.worker", *arguments[1:]]
        code = main.main(arguments, prog_name="manage.py pyworker", standalone_mode=True)
        sys.exit(code)


def dsn(alias: str) -> str:
    """The connection string of a database of settings.DATABASES."""
    settings = connections[alias].settings_dict
    if connections[alias].vendor != "postgresql":
        raise CommandError(
            f"DATABASES[{alias!r}] is {settings['ENGINE']}, pyworker needs django.db.backends.postgresql"
        )
    words = {"NAME": "dbname", "HOST": "host", "PORT": "port", "USER": "user", "PASSWORD": "password"}
    known = {word: str(settings[name]) for name, word in words.items() if settings.get(name)}
    options = {
        name: value
        for name, value in settings.get("OPTIONS", {}).items()
        if name in ("sslmode", "service", "passfile", "sslrootcert")
    }
    return make_conninfo(**known, **options)
