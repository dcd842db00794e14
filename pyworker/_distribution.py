"""The name of the distribution.

The import package and the command are called `pyworker`, but that name on PyPI belongs to another
project."""

from __future__ import annotations

import importlib.util
import sys

DISTRIBUTION = "pyworker-pg"


def pip_install(extra: str) -> str:
    """The command that installs an optional dependency, for messages.

    An environment may have no pip: `python3 -m venv --without-pip`, uv.
    """
    pip = "pip" if importlib.util.find_spec("pip") else f"python3 -m pip --python {sys.prefix}"
    return f"{pip} install '{DISTRIBUTION}[{extra}]'"
