"""The name of the distribution.

The import package and the command are called `pyworker`, but that name on PyPI belongs to another
project."""

from __future__ import annotations

DISTRIBUTION = "pyworker-pg"


def pip_install(extra: str) -> str:
    """The command that installs an optional dependency, for messages."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
