"""The `pyworker` command; see `pyworker COMMAND --help`."""

from ._cli.root import main

__all__ = ["main"]
