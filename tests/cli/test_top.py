"""`pyworker top`, driven by Textual's Pilot on a real database: what it shows, and that nothing is
done unasked."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import DataTable, Footer, Input, Static

from pyworker._distribution import pip_install
from pyworker._top.app import Top
from pyworker._top.pages import PAGES, filters
from pyworker._top.screens import Ask, JobPage
from tests.support import ROOT

DEADLINE = 30.0

ZOO = """
    select pyworker.add_job('send_email', '{"to": "secret@example.org"}', queue_name => 'mail');
    select pyworker.add_job('send_email', '{}', queue_name => 'mail', job_key => 'order [7]');
    select pyworker.add_job('resize', run_at => '2100-01-01');
    select pyworker.add_job('charge', '{}', sequence_policy => '{"key": "customer 9"}'),
           pyworker.add_job('charge', '{}', sequence_policy => '{"key": "customer 9"}'),
               pyworker.promote_jobs();
    select pyworker.permanently_fail_jobs('{4}',
        E'Traceback\\n  File "x"\\nValueError: the card was [declined]');
    select pyworker.add_job('report');
    select pyworker.add_schedule('nightly', '0 4 * * mon-fri', 'report', timezone => 'Europe/Berlin');
    select pyworker.set_queue('thumbnails', 4)
"""


class Screen:
    """The running screen, and waiting for what comes of a key."""

    def __init__(self, app: Top, pilot: Any) -> None:
        self.app, self.pilot = app, pilot

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def type(self, text: str) -> None:
        """The last letter as a key, the ones before it at once."""
        assert isinstance(self.app.focused, Input)
        self.app.focused.value = text[:-1]
        self.app.focused.cursor_position = len(text)
        await self.press({":": "colon"}.get(text[-1], text[-1]))

    async def until(self, condition: Callable[[], Any]) -> None:
        """Look until it is so; the overview, where complaints are, says why not."""
        try:
            async with asyncio.timeout(DEADLINE):
                while not condition():
                    await self.pilot.pause(0.02)
        except TimeoutError:
            raise AssertionError(
                f"never came true; page {self.app.page}, overview: {self.text('#overview')}"
            ) from None

    def rows(self) -> list[list[str]]:
        table = self.app.query_one(f"#{self.app.page}-table", DataTable)
        return [[str(cell) for cell in table.get_row_at(n)] for n in range(table.row_count)]

    def column(self, n: int) -> list[str]:
        return [row[n] for row in self.rows()]

    def text(self, widget: str) -> str:
        return str(self.app.screen.query_one(widget, Static).content)

    async def on(self, page: str) -> None:
        await self.press(str(list(PAGES).index(page) + 1))
        await self.until(lambda: self.app.page == page and self.app.rows[page])

    async def answer(self, key: str) -> str:
        """Wait for the question, answer it; returns the question."""
        await self.until(lambda: isinstance(self.app.screen, Ask))
        question = self.app.screen.question  # type: ignore[attr-defined]
        while isinstance(self.app.screen, Ask):  # at first it takes no yes
            await self.press(key)
        return question


@pytest.fixture
def top(db: Any, dsn: str) -> Any:
    """top(steps) has the zoo on a screen, runs the steps on it, and ends it."""
    db.execute(ZOO)

    def run(steps: Callable[[Screen], Awaitable[None]], size: tuple[int, int] = (130, 34)) -> None:
        async def whole() -> None:
            app = Top(dsn, "pyworker")
            async with app.run_test(size=size) as pilot:
                screen = Screen(app, pilot)
                await screen.until(lambda: app.rows["jobs"] and isinstance(app.focused, DataTable))
                await pilot.pause()
                await steps(screen)

        asyncio.run(whole())

    return run


def state(db: Any, job_id: int) -> str:
    return db.execute("select state from pyworker.get_job(%s)", [job_id]).fetchone()[0]


def test_the_overview_and_the_jobs_are_shown(top: Any) -> None:
    async def steps(screen: Screen) -> None:
        assert screen.column(0) == ["6", "5", "4", "3", "2", "1"]
        assert screen.column(4)[4] == "order [7]"  # as it is
        assert screen.column(7)[2] == "ValueError: the card was [declined]"
        overview = screen.text("#overview")
        assert "scheduled 1 " in overview
        assert "discarded 1 " in overview
        assert "halted sequences 1 " in overview
        assert "workers 0 " in overview
        assert "next nightly " in overview
        assert "secret" not in screen.app.export_screenshot()

    top(steps)


@pytest.mark.parametrize(
    ("key", "question", "job", "after"),
    [
        ("r", "Retry job 3?", 3, "available"),
        ("c", "Cancel job 3?", 3, "cancelled"),
        ("d", "Delete job 3?", 3, None),
    ],
)
def test_what_is_done_to_a_job_is_asked_back(
    top: Any, db: Any, key: str, question: str, job: int, after: str | None
) -> None:
    async def steps(screen: Screen) -> None:
        await screen.press("down", "down", "down", key)
        assert await screen.answer("n") == question
        assert state(db, job) == "scheduled"
        await screen.press(key)
        await screen.answer("y")
        await screen.until(lambda: state(db, job) == after)
        if after:
            await screen.until(
                lambda: dict(zip(screen.column(0), screen.column(2), strict=True))[str(job)] == after
            )
        else:
            await screen.until(lambda: str(job) not in screen.column(0))

    top(steps)
    action = {"r": "retry", "c": "cancel", "d": "delete"}[key]
    assert db.execute("select action, target, ok from pyworker.audit").fetchall() == [(action, "3", True)]


def test_what_is_refused_is_said(top: Any, db: Any) -> None:
    async def steps(screen: Screen) -> None:
        await screen.press("down", "down", "down", "r")
        await screen.until(lambda: isinstance(screen.app.screen, Ask))
        db.execute("select pyworker.delete_job(3)")
        await screen.answer("y")
        await screen.until(
            lambda: any("there is no job 3" in str(note.message) for note in screen.app._notifications)
        )

    top(steps)


def test_a_job_is_explained_and_its_payload_shown_only_when_asked_for(top: Any, db: Any) -> None:
    async def steps(screen: Screen) -> None:
        await screen.press(*["down"] * 5, "e")
        await screen.until(
            lambda: isinstance(screen.app.screen, JobPage) and "send_email" in screen.text("#job")
        )
        assert "no worker: no worker is alive" in screen.text("#job")
        assert "secret" not in screen.text("#job")
        await screen.press("v")
        await screen.until(lambda: "secret@example.org" in screen.text("#job"))
        await screen.press("c")
        assert await screen.answer("y") == "Cancel job 1?"
        await screen.until(lambda: "cancelled" in screen.text("#job"))
        await screen.press("escape")
        await screen.until(lambda: not isinstance(screen.app.screen, JobPage))

    top(steps)
    assert state(db, 1) == "cancelled"


def test_errors_of_a_job_are_shown_as_they_are(top: Any) -> None:
    async def steps(screen: Screen) -> None:
        await screen.press("down", "down", "enter")
        await screen.until(
            lambda: (
                isinstance(screen.app.screen, JobPage)
                and "ValueError: the card was [declined]" in screen.text("#job")
            )
        )

    top(steps)


def test_jobs_can_be_filtered(top: Any) -> None:
    async def steps(screen: Screen) -> None:
        for words, found in {
            "task:send_email": ["2", "1"],
            "state:discarded": ["4"],
            "state:discarded state:scheduled": ["4", "3"],
            "queue:mail": ["2", "1"],
            "ValueError": ["4"],
            "queue:mail nothing like it": [],
        }.items():
            await screen.press("slash", "ctrl+u")
            await screen.type(words)
            await screen.press("enter")
            await screen.until(lambda found=found: screen.column(0) == found)
        await screen.press("slash", "ctrl+u", "enter")
        await screen.until(lambda: len(screen.rows()) == 6)

    top(steps)


def test_a_filter_that_is_none_is_refused_in_words(top: Any) -> None:
    async def steps(screen: Screen) -> None:
        await screen.press("slash")
        await screen.type("state:lost")
        await screen.press("enter")
        await screen.until(lambda: "lost" in screen.text("#overview"))

    top(steps)


def test_pages_of_jobs_follow_one_another(top: Any, db: Any) -> None:
    db.execute("select pyworker.add_job('many') from generate_series(1, 100)")

    async def steps(screen: Screen) -> None:
        assert screen.column(0)[0] == "106"
        await screen.press("n")
        await screen.until(lambda: screen.column(0)[0] == "56")
        await screen.press("n")
        await screen.until(lambda: screen.column(0) == ["6", "5", "4", "3", "2", "1"])
        await screen.press("b")
        await screen.until(lambda: screen.column(0)[0] == "106")

    top(steps)


def test_a_queue_is_paused_and_goes_on(top: Any, db: Any) -> None:
    def paused() -> bool:
        return db.execute(
            "select bool_or(paused) from pyworker.queue_stats where queue_name = 'mail'"
        ).fetchone()[0]

    async def steps(screen: Screen) -> None:
        await screen.on("queues")
        assert screen.column(0) == ["mail", "thumbnails"]
        await screen.press("p")
        assert await screen.answer("y") == "Pause queue mail?"
        await screen.until(lambda: screen.column(4)[0] == "paused")
        assert paused()
        await screen.press("p")
        assert await screen.answer("y") == "Resume queue mail?"
        await screen.until(lambda: screen.column(4)[0] == "")

    top(steps)
    assert not paused()


def test_a_halted_sequence_is_seen_first_and_resumed(top: Any, db: Any) -> None:
    db.execute("""select pyworker.add_job('charge', '{}', sequence_policy => '{"key": "a customer"}')""")

    async def steps(screen: Screen) -> None:
        await screen.on("sequences")
        assert [row[0] for row in screen.rows()] == ["4", ""]
        await screen.press("p")
        assert (await screen.answer("y")).startswith("Resume sequence ")
        await screen.until(lambda: screen.column(0) == ["", ""])

    top(steps)


def test_a_schedule_is_paused_and_run(top: Any, db: Any) -> None:
    async def steps(screen: Screen) -> None:
        await screen.on("schedules")
        assert screen.rows()[0][6].endswith("(Europe/Berlin)")
        await screen.press("p")
        assert await screen.answer("y") == "Pause schedule nightly?"
        await screen.until(lambda: screen.column(3) == ["paused"])
        await screen.press("g")
        assert await screen.answer("y") == "Run schedule nightly?"
        await screen.until(
            lambda: (
                db.execute("select count(*) from pyworker.jobs where task_identifier = 'report'").fetchone()
                == (2,)
            )
        )

    top(steps)


def reporting_worker(db: Any, **info: Any) -> int:
    """A worker that runs a `report`, of which it has done four tenths."""
    info = {"host": "web-1", "pid": 42, **info}
    worker: int = db.execute("select pyworker.register_worker(%s)", [json.dumps(info)]).fetchone()[0]
    db.execute(
        "select pyworker.set_progress(id, run, 0.4, 'page 4 of 10') "
        "from pyworker.claim_jobs(%s, 1, array['report'])",
        [worker],
    )
    return worker


def test_workers_are_shown_with_what_they_run(top: Any, db: Any) -> None:
    worker = reporting_worker(db, concurrency=12, memory=99 << 20, version="0.1.0")

    async def steps(screen: Screen) -> None:
        await screen.on("workers")
        shown = [row[:3] + row[5:] for row in screen.rows()]
        assert shown == [[str(worker), "web-1", "42", "1 of 12", "99 MB", "0.1.0", "report 6"]]
        await screen.press("enter")
        await screen.until(lambda: isinstance(screen.app.screen, JobPage) and "report" in screen.text("#job"))
        assert re.search(r"progress +0\.4.*\n *progress_message +page 4 of 10", screen.text("#job"))

    top(steps)


def test_keys_that_mean_nothing_on_a_page_are_not_offered(top: Any) -> None:
    def offered(screen: Screen) -> set[str]:
        return {
            binding.binding.description
            for binding in screen.app.screen.active_bindings.values()
            if binding.enabled
        }

    async def steps(screen: Screen) -> None:
        assert screen.app.query(Footer)
        assert {"Retry", "Cancel", "Delete", "Filter"} <= offered(screen)
        assert "Pause/resume" not in offered(screen)
        await screen.on("queues")
        await screen.until(lambda: "Pause/resume" in offered(screen))
        assert not {"Retry", "Cancel", "Filter"} & offered(screen)

    top(steps)


def test_it_looks_again_by_itself_and_finds_a_lost_database_again(top: Any, db: Any) -> None:
    async def steps(screen: Screen) -> None:
        db.execute("select pyworker.add_job('later')")
        await screen.until(lambda: screen.column(0)[0] == "7")
        assert screen.app.conn
        db.execute("select pg_terminate_backend(%s)", [screen.app.conn.info.backend_pid])
        db.execute("select pyworker.add_job('latest')")
        await screen.until(lambda: screen.column(0)[0] == "8")

    top(steps)


def test_the_picture_in_the_documents(top: Any, db: Any) -> None:
    """PYWORKER_WRITE_IMAGES=1 draws it again."""
    reporting_worker(db)

    async def steps(screen: Screen) -> None:
        await screen.press("down")
        words = ("halted", "nightly", "send_email", "[declined]", "Retry")  # from top to bottom
        await screen.until(lambda: all(word in screen.app.export_screenshot() for word in words))
        picture = screen.app.export_screenshot(title="pyworker top")
        if os.environ.get("PYWORKER_WRITE_IMAGES"):
            (ROOT / "docs" / "images").mkdir(exist_ok=True)
            (ROOT / "docs" / "images" / "top.svg").write_text(picture, "utf-8")

    top(steps, (128, 22))


def test_words_of_a_filter() -> None:
    assert filters("") == {}
    assert filters("state:a state:b key:k http://x a: b") == {
        "states": ["a", "b"],
        "job_key": "k",
        "search": "http://x a: b",
    }


def test_without_textual_it_says_what_to_install(tmp_path: Path, dsn: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nsys.modules['textual'] = None\nsys.modules['textual.app'] = None\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pyworker", "top"], capture_output=True, text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{tmp_path}:{ROOT}", "DATABASE_URL": dsn},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"pyworker: pyworker top needs textual: {pip_install('top')}\n"
