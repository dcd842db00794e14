"""`pyworker top` as a reader, who may look at a job. Payloads and actions need a role that is named."""

from __future__ import annotations

import asyncio
from typing import Any

from textual.widgets import DataTable

from pyworker._top.app import Top
from pyworker._top.pages import PAGES
from pyworker._top.screens import JobPage
from tests.cli.test_top import Screen
from tests.roles.conftest import Logins, one_role, state


def notes(screen: Screen) -> list[str]:
    return [str(note.message) for note in screen.app._notifications]


def test_a_reader_sees_each_table_and_a_job_and_is_named_the_role_for_the_rest(
    db: Any, people: Logins, zoo: dict[str, int]
) -> None:
    before = state(db)

    async def steps(screen: Screen) -> None:
        for page in PAGES:
            await screen.press(str(list(PAGES).index(page) + 1))
            await screen.until(lambda page=page: screen.app.page == page)
        await screen.on("jobs")
        at = screen.column(0).index(str(zoo["waiting"]))
        await screen.press(*["down"] * at, "e")
        await screen.until(lambda: isinstance(screen.app.screen, JobPage))
        await screen.until(lambda: "waits for a worker" in screen.text("#job"))
        assert "not shown; v shows it" in screen.text("#job")
        assert notes(screen) == []
        await screen.press("v")
        await screen.until(lambda: notes(screen))
        assert one_role(notes(screen)[0]) == "admin"
        await screen.press("c")
        await screen.answer("y")
        await screen.until(lambda: len(notes(screen)) > 1)
        assert {one_role(note) for note in notes(screen)} == {"admin"}

    async def whole() -> None:
        app = Top(people.dsn_of(people.of["reader"]), "pyworker")
        async with app.run_test(size=(130, 34)) as pilot:
            screen = Screen(app, pilot)
            await screen.until(lambda: app.rows["jobs"] and isinstance(app.focused, DataTable))
            await pilot.pause()
            await steps(screen)

    asyncio.run(whole())
    assert state(db) == before
