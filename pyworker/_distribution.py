"""The name of the distribution. The import package and the command are called `pyworker`; that name on PyPI is another project's."""

from __future__ import annotations

DISTRIBUTION = "pyworker-pg"


def pip_install(extra: str) -> str:
    """The command that adds an optional dependency, for messages."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
