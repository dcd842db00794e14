"""The table of docs/limits.md: each of its calls does what the row says."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support import ROOT
from tests.support.api import Api
from tests.support.queues import add, claim

TABLE = dict(re.findall(r"(?m)^\| … (.+?) \| (.+) \|$", (ROOT / "docs" / "limits.md").read_text("utf-8")))
MANY = 120
# A queue that the row speaks of, and how many of so many jobs one worker starts that takes all it gets.
STARTED = {
    "one job of a queue at a time": ("any", 1),
    "at most 4 at once": ("thumbnails", 4),
    "no limit, a name by which workers choose jobs": ("mail", MANY),
    "at most 2 at once per customer": ("customer:42", 2),
    "at most 10 starts a minute": ("api", 10),
    "at most 3 at once, and 10 starts a minute": ("api", 3),
    "100 calls an hour for each API key": ("key:42", 100),
    "no customer to wait for another one's 20,000 jobs": ("customer:42", MANY),
}


@pytest.fixture
def own_api(fresh: Any) -> Api:
    fresh.execute("set search_path = pyworker, public")  # as the table has the calls
    return Api(fresh)


def test_the_table_has_these_rows_and_links_for_the_others() -> None:
    others = {want: this for want, this in TABLE.items() if want not in STARTED}
    assert set(STARTED) <= set(TABLE)
    assert [want for want, this in others.items() if "](" not in this and "pyworker run" not in this] == []


@pytest.mark.parametrize("want", STARTED)
def test_a_call_of_the_table_does_what_its_row_says(own_api: Api, want: str) -> None:
    for call in re.findall(r"`(set_queue\(.*?\))`", TABLE[want]):
        own_api.rows(f"select {call}")
    queue, started = STARTED[want]
    worker = own_api.register_worker()
    ids = add(own_api, MANY, queue)
    claimed: list[int] = []
    while more := claim(own_api, worker, 2 * MANY):
        claimed += more
    assert claimed == ids[:started]
    if "customer" in want or "key" in want:  # each for itself
        other = add(own_api, 1, queue.replace("42", "7"))
        assert claim(own_api, worker) == other


def test_the_rows_about_rates_hold_for_a_time_and_the_last_one_takes_turns(own_api: Api) -> None:
    turns = "no customer to wait for another one's 20,000 jobs"
    for want in ("at most 3 at once, and 10 starts a minute", turns):
        own_api.rows(f"select {TABLE[want].strip('`')}")
    worker = own_api.register_worker()
    add(own_api, 20, "api")
    started = 0
    while jobs := claim(own_api, worker):
        own_api.finish(*jobs)
        started += len(jobs)
    assert started == 10
    add(own_api, 20, "customer:1")
    add(own_api, 1, "customer:2")
    assert "customer:2" in [job.queue_name for job in own_api.claim_jobs(worker, 2)]
