"""What a play raises when the worker does not keep its promise."""

from __future__ import annotations


class Broken(Exception):
    """The worker did not keep the promise; the text is what was observed."""


def hold(kept: bool, observed: str) -> None:
    if not kept:
        raise Broken(observed)
