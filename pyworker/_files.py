"""Finds `sql/` and `examples/`: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).resolve().parent


def directory(name: str) -> Path:
    for candidate in (_HERE / name, _HERE.parent / name):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"this installation of pyworker lacks its {name}/ directory; install it again")
