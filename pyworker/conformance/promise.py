"""A promise: its name, what it says, where docs/protocol.md says so, and the play that tries it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .stage import Stage


@dataclass(frozen=True)
class Promise:
    name: str
    text: str
    section: str  # the heading in docs/protocol.md
    says: str  # words of that section
    play: Callable[[Stage], str]  # returns what was observed; raises Broken


PROMISES: dict[str, Promise] = {}


def promise(section: str, says: str) -> Callable[[Callable[[Stage], str]], Callable[[Stage], str]]:
    """The function's docstring is the promise, its name the promise's name."""

    def add(play: Callable[[Stage], str]) -> Callable[[Stage], str]:
        name, text = play.__name__, (play.__doc__ or "").strip()
        PROMISES[name] = Promise(name, text, section, says, play)
        return play

    return add
