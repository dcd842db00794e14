"""What `pyworker top` measures, and how much of it a small terminal shows."""

from __future__ import annotations

import re
from typing import Any

from textual.widgets import DataTable, Static

from .test_top import Screen
from .test_top import top as top


def test_rates_limits_and_the_slowest_tasks_are_shown(top: Any, db: Any) -> None:
    worker = db.execute("select pyworker.register_worker()").fetchone()[0]
    for task, seconds in (("report", 90), ("send_email", 1)):
        db.execute("select pyworker.claim_jobs(%s, 1, array[%s])", [worker, task])
        db.execute(
            "update pyworker.live_jobs set claimed_at = claimed_at - %s * interval '1 s'"
            " where state = 'running'", [seconds],
        )  # fmt: skip
        db.execute(
            "select pyworker.finish_jobs(array_agg(id), array_agg(run)) from pyworker.jobs"
            " where state = 'running'"
        )

    async def steps(screen: Screen) -> None:
        await screen.on("tasks")
        assert screen.column(0)[:2] == ["report", "send_email"]
        assert screen.rows()[0][1:3] == ["1", "0"]
        assert screen.rows()[0][-1].startswith("1 min 3")
        await screen.on("queues")
        assert screen.column(1) == ["0 of 1", "0 of 4"]
        assert "/min completed" in screen.text("#overview")

    top(steps)


def test_on_80_by_24_characters_nothing_of_the_overview_is_cut_off(top: Any) -> None:
    async def steps(screen: Screen) -> None:
        overview = screen.app.query_one("#overview", Static)
        lines = str(overview.content).splitlines()
        assert max(map(len, lines)) <= 78
        assert overview.size.height == len(lines)
        for words in ("scheduled 1 ", "discarded 1 ", "halted sequences 1 ", "next nightly "):
            assert words in screen.text("#overview")
        assert screen.app.query_one("#jobs-table").size.height >= 10

    top(steps, (80, 24))


def test_on_80_by_24_characters_a_row_of_jobs_and_of_queues_shows_its_last_column(top: Any, db: Any) -> None:
    db.execute("select pyworker.set_queue('mail', 2, 10, '90 minutes')")

    async def steps(screen: Screen) -> None:
        table = screen.app.query_one("#jobs-table", DataTable)
        titles = [str(column.label) for column in table.columns.values()]
        before_error = list(table.columns.values())[: titles.index("last error")]
        assert sum(column.get_render_width(table) for column in before_error) <= 68
        assert re.fullmatch(r"\d\d:\d\d:\d\d|\d\d-\d\d \d\d:\d\d", screen.rows()[0][titles.index("run at")])
        assert "2100-01-01" in screen.column(titles.index("run at"))
        await screen.on("queues")
        assert "0 of 10 in 1 h 30 min" in screen.column(5)
        assert screen.app.query_one("#queues-table", DataTable).virtual_size.width <= 80

    top(steps, (80, 24))


def test_a_queue_shows_what_runs_and_waits_since_when_and_what_is_used_of_its_rate(top: Any, db: Any) -> None:
    db.execute("select pyworker.set_queue('api', 4, 2, '90 minutes')")
    db.execute("select pyworker.set_queue('tenant:*', null, fair => true)")
    db.execute("select pyworker.add_job('t', queue_name => 'api') from generate_series(1, 5)")
    worker = db.execute("select pyworker.register_worker()").fetchone()[0]
    db.execute("select count(*) from pyworker.claim_jobs(%s, 3, array['t'])", [worker])

    async def steps(screen: Screen) -> None:
        await screen.on("queues")
        rows = {row[0]: row for row in screen.rows()}
        _, running, available, oldest, paused, rate, fair = rows["api"]
        assert (running, available, paused, fair) == ("2 of 4", "3", "", "")
        assert oldest
        assert re.fullmatch(r"2 of 2 in 1 h 30 min, next \d\d:\d\d:\d\d\S+", rate), rate
        assert rows["tenant:*"][-1] == "fair"

    top(steps)


def test_what_shows_no_job_does_not_offer_to_explain_one(top: Any) -> None:
    async def steps(screen: Screen) -> None:
        def offered() -> set[str]:
            bindings = screen.app.screen.active_bindings.values()
            return {active.binding.description for active in bindings if active.enabled}

        await screen.until(lambda: "Explain" in offered())
        await screen.press("5")
        await screen.until(lambda: screen.app.page == "tasks")
        await screen.until(lambda: "Explain" not in offered())

    top(steps)
