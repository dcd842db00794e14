"""Waits for an answer of `pyworker health`."""

from __future__ import annotations

from typing import Any


def until_health(queue: Any, health: Any, code: int, word: str, *options: str) -> None:
    """Until it answers like this, by this code and with this word."""
    last: list[Any] = []

    def answered() -> bool:
        last[:] = health(*options)
        return last[0] == code and word in last[1]

    try:
        queue.until_so(f"health {options} is {code}, {word!r}", answered)
    except AssertionError as error:
        raise AssertionError(f"{error}\nits last answer: {last}") from None
