"""Finds `sql/` and `examples/`: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

from pathlib import Path

from .errors import PyworkerError

_HERE = Path(__file__).resolve().parent


def directory(name: str) -> Path:
    for candidate in (_HERE / name, _HERE.parent / name):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"this installation of pyworker lacks its {name}/ directory; install it again")


def text_of(path: Path) -> str:
    """The text of a file that a user named."""
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise PyworkerError(f"{path}: byte {error.start + 1} is not UTF-8") from None
    except OSError as error:
        raise PyworkerError(f"{path}: {error.strerror}") from error
