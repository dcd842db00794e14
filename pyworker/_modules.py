"""Imports modules, and packages with all their submodules."""

from __future__ import annotations

import importlib
import logging
import os
import pkgutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from ._escape import shown

log = logging.getLogger("pyworker.worker")

NO_CODE = ("__pycache__", "node_modules")


def import_all(name: str) -> None:
    """Import this module, and if it is a package all submodules."""
    module = importlib.import_module(name)
    for found in pkgutil.walk_packages(getattr(module, "__path__", []), name + "."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)


def warn_of_others(names: Iterable[str]) -> None:
    """Log the modules below these packages that import_all does not find, if they look like tasks.

    Their directories have no __init__.py. They may hold scripts, so they are not imported.
    """
    roots = tuple(names)
    loaded = [each for each in [*sys.modules] if each.startswith(tuple(f"{root}." for root in roots))]
    for package in sorted({*roots, *loaded}):
        for path in getattr(sys.modules.get(package), "__path__", []):
            for module in _without_package(Path(path)):
                if f"{package}.{module}" not in sys.modules:
                    log.warning(
                        "module %s is not loaded: its directory has no __init__.py."
                        " Add that file, or name the module",
                        shown(f"{package}.{module}"),
                    )


def _without_package(folder: Path) -> Iterator[str]:
    for top, folders, files in os.walk(folder):
        inner = Path(top).relative_to(folder).parts
        folders[:] = sorted(each for each in folders if each.isidentifier() and each not in NO_CODE)
        if not inner:
            folders[:] = [each for each in folders if not (folder / each / "__init__.py").exists()]
            continue
        for name in sorted(files):
            stem, suffix = os.path.splitext(name)
            with suppress(OSError):
                if suffix == ".py" and stem.isidentifier() and _has_tasks(Path(top, name)):
                    yield ".".join([*inner, *([] if stem == "__init__" else [stem])])


def _has_tasks(file: Path) -> bool:
    text = file.read_bytes()
    return b"pyworker" in text or b"@task" in text
