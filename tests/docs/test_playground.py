"""The playground and the guides' Run buttons, in a real Chromium: PostgreSQL runs in its tab."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .test_snippets import EXAMPLES, PAGES, RUN_SHOWN, Block, blocks_of

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def playground(site: Path) -> None:
    if not next(site.rglob("pglite.wasm"), None):
        pytest.skip("there is no npm, or it cannot bring the playground's PostgreSQL")


class Visitor:
    """What a visitor does on the page of the playground."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def press(self, name: str) -> None:
        self.page.get_by_role("button", name=name, exact=True).click()

    def add(self, task: str, queue: str = "", seconds: int = 0, key: str = "") -> int:
        """Adds a job by the form; returns its number."""
        self.page.get_by_label("task").select_option(task)
        self.page.get_by_label("queue").select_option(queue)
        self.page.get_by_label("in seconds").fill(str(seconds))
        self.page.get_by_label("key").fill(key)
        # The log keeps 30 lines, so that a count of them may stand still: the lines of before are marked.
        self.page.locator(".pg-log li").evaluate_all("lines => lines.forEach(line => line.dataset.old = '')")
        self.press("Add a job")
        added = self.page.locator(".pg-log li:not([data-old])", has_text="add_job(").locator(".pg-said")
        job = int(added.inner_text().split(",")[0])
        self.page.locator(".pg-job", has_text=f"job {job} ·").wait_for()
        return job

    def choose(self, job: int) -> None:
        self.page.locator(f"[data-job='{job}']").click()
        self.page.locator(".pg-job", has_text=f"job {job} ·").wait_for()

    def see(self, job: int, state: str) -> None:
        self.page.locator(f".pg-{state} [data-job='{job}']").wait_for()

    def why(self, words: str) -> None:
        self.page.locator(".pg-why", has_text=words).wait_for()

    def ask(self, sql: str) -> Any:
        self.page.get_by_label("SQL").fill(sql)
        self.press("Run")
        return self.page.locator(".pg-out")


@pytest.fixture(scope="module")
def visitor(reader: Callable[..., Any]) -> Visitor:
    """One for all tests below, with a worker that claims nothing by itself. The net is cut when
    PostgreSQL has started."""
    page = reader("playground.html")
    page.get_by_role("button", name="Start PostgreSQL").click()
    page.locator("#pg[data-ready]").wait_for()
    page.context.set_offline(True)
    return Visitor(page)


def test_nothing_of_the_database_loads_before_it_is_asked_for(reader: Callable[..., Any]) -> None:
    for path in ("index.html", "howto.html", "playground.html"):
        page = reader(path)
        loaded = page.evaluate("performance.getEntriesByType('resource').map((one) => one.name)")
        assert [name for name in loaded if "code.js" in name]
        assert [name for name in loaded if "/playground/" in name] == []


def test_a_job_is_added_and_run_without_a_net(visitor: Visitor) -> None:
    job = visitor.add("send_email")
    visitor.see(job, "available")
    visitor.press("Start the worker")
    visitor.see(job, "running")
    visitor.see(job, "completed")
    visitor.press("Stop the worker")


def test_a_job_that_is_claimed_by_hand_fails_is_explained_and_retried(visitor: Visitor) -> None:
    job = visitor.add("send_email")
    visitor.why("waits for a worker")
    visitor.press("Claim one job")
    visitor.see(job, "running")
    visitor.press("Fail")
    visitor.see(job, "retryable")
    visitor.why("waits for its retry")
    assert "you pressed Fail" in visitor.page.locator(".pg-job pre").inner_text()
    visitor.press("Retry")
    visitor.see(job, "available")
    visitor.press("Claim one job")
    visitor.see(job, "running")
    visitor.press("Complete")
    visitor.see(job, "completed")


def test_a_job_of_a_paused_queue_waits_and_is_told_so(visitor: Visitor) -> None:
    visitor.press("Pause queue mail")
    job = visitor.add("send_email", queue="mail")
    visitor.why("queue paused")
    visitor.press("Claim one job")
    visitor.press("Resume queue mail")
    visitor.press("Claim one job")
    visitor.see(job, "running")
    visitor.press("Snooze 10 s")
    visitor.see(job, "scheduled")
    visitor.press("Cancel")
    visitor.see(job, "cancelled")


def test_a_job_is_asked_for_while_an_earlier_call_is_answered(visitor: Visitor) -> None:
    """The database is busy, so that both presses come before the answer to the first."""
    visitor.press("Pause queue mail")
    job = visitor.add("send_email", queue="mail")
    out = visitor.ask("select count(*) from generate_series(1, 3000000)")
    for name in ("Claim one job", "Resume queue mail", "Claim one job"):
        visitor.press(name)
    visitor.see(job, "running")
    visitor.press("Complete")
    visitor.see(job, "completed")
    assert out.inner_text().split() == ["1", "row", "count", "3000000"]


def test_a_job_that_fails_each_time_is_discarded_once_the_clock_has_moved(visitor: Visitor) -> None:
    job = visitor.add("broken")
    visitor.press("Start the worker")
    visitor.see(job, "retryable")
    for attempt in (2, 3):
        visitor.press("1 minute later")
        visitor.page.locator(".pg-log", has_text=f"job {job}: began attempt {attempt} of 3").wait_for()
        visitor.see(job, "retryable" if attempt == 2 else "discarded")
    visitor.why("discarded")
    visitor.press("Stop the worker")


def test_the_second_job_of_a_key_replaces_the_first(visitor: Visitor) -> None:
    first = visitor.add("send_email", seconds=600, key="k")
    assert visitor.add("call_api", seconds=600, key="k") == first
    visitor.page.locator(f"[data-job='{first}']", has_text="call_api").wait_for()
    visitor.see(first, "scheduled")


def test_any_sql_is_answered_and_an_error_has_its_code(visitor: Visitor) -> None:
    visitor.ask("select 6 * 7 as product; select ';' as a, null as b").locator(
        "td", has_text="null"
    ).wait_for()
    assert visitor.page.locator(".pg-out th").all_inner_texts() == ["a", "b"]
    out = visitor.ask("select pyworker.add_job('')")
    out.locator("pre", has_text="PW001").wait_for()
    visitor.ask("select state from pyworker.doctor() where severity <> 'ok'").locator("pre").wait_for()


# -- the guides ------------------------------------------------------------------------------------


def runnable(page: Path) -> list[Block]:
    blocks = [block for block in blocks_of(page) if block.language == "sql" and block.is_run]
    return [] if RUN_SHOWN.search(page.read_text("utf-8")) else blocks


# Each starts a PostgreSQL of its own, which takes seconds. The others are run by `make torture`.
OFTEN = {"index", "howto", "unique-jobs"}
GUIDES = {page: runnable(page) for page in PAGES if runnable(page)}


@pytest.mark.parametrize(
    "guide",
    [pytest.param(g, marks=[] if g.stem in OFTEN else pytest.mark.torture, id=g.stem) for g in GUIDES],
)
def test_the_examples_of_a_guide_run_from_its_last_run_button(
    reader: Callable[..., Any], guide: Path
) -> None:
    """In the page's order, with the errors that the page announces, and no others."""
    page = reader("reference-sql.html" if guide == EXAMPLES else f"{guide.stem.lower()}.html")
    buttons = page.get_by_role("button", name="Run this SQL")
    blocks = GUIDES[guide]
    assert buttons.count() == len(blocks)
    buttons.last.click()
    shown = page.locator(".code-out")
    shown.last.locator("*").first.wait_for()
    for at, block in enumerate(blocks):
        expected = re.fullmatch(r"error: (\w{5})", block.marker)
        said = shown.nth(at).inner_text()
        assert ("ERROR" in said) == bool(expected), f"{guide.name}, line {block.line}: {said}"
        assert not expected or expected[1] in said
    page.context.close()


# -- code ------------------------------------------------------------------------------------------


def test_a_copy_button_copies_code_and_commands_without_their_prompt(reader: Callable[..., Any]) -> None:
    page = reader("readme.html")
    block = page.locator(".highlight-sql").first
    block.get_by_role("button", name="Copy").click()
    block.get_by_text("Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("SELECT id, state FROM pyworker.add_job(")
    page.locator(".highlight-console").first.get_by_role("button", name="Copy").click()
    page.locator(".highlight-console").first.get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == "pyworker run myapp.tasks"


@pytest.mark.parametrize("path", ["index", "start", "tutorial", "howto", "playground", "coming-from"])
def test_no_line_of_code_is_cut_on_a_phone(reader: Callable[..., Any], path: str) -> None:
    """The page does not scroll sideways, and code wraps; only answers and tables have a scroll bar."""
    page = reader(f"{path}.html", width=390)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    cut = page.evaluate(
        """[...document.querySelectorAll('article div.highlight > pre')]
            .filter((pre) => !pre.closest('.highlight-text') && pre.scrollWidth > pre.clientWidth)
            .map((pre) => pre.textContent)"""
    )
    assert cut == []
