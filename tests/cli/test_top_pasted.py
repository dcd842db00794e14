"""What is pasted into `pyworker top`, and by a terminal that sends it as keys: many in one read."""

from __future__ import annotations

from typing import Any

from textual.events import Key, Paste

from pyworker._top.screens import JobPage

from .test_top import Screen
from .test_top import top as top


def at_once(screen: Screen, text: str) -> None:
    for character in text:
        key = {"/": "slash", "\r": "enter"}.get(character, character)
        screen.app.post_message(Key(key, character))


def test_what_comes_at_once_after_a_slash_goes_into_the_filter(top: Any, db: Any) -> None:
    async def steps(screen: Screen) -> None:
        at_once(screen, "/deploy/r\r")
        await screen.until(lambda: screen.app.filters == {"search": "deploy/r"})
        await screen.press("slash", "ctrl+u")
        screen.app.post_message(Paste("state:discarded"))
        await screen.press("enter")
        await screen.until(lambda: screen.column(0) == ["4"])

    top(steps)
    assert db.execute("select from pyworker.audit").fetchall() == []


def test_what_comes_at_once_confirms_nothing(top: Any, db: Any) -> None:
    async def steps(screen: Screen) -> None:
        screen.app.post_message(Paste("dy"))
        for page, keys in (("jobs", "dy"), ("queues", "/deploy")):
            await screen.on(page)
            at_once(screen, keys)
            await screen.answer("n")
        await screen.on("jobs")
        await screen.press("enter")
        await screen.until(lambda: isinstance(screen.app.screen, JobPage))
        at_once(screen, "dy")
        await screen.answer("n")

    top(steps)
    assert db.execute("select from pyworker.audit").fetchall() == []
