"""Failed(elements), outcomes in exception groups, and texts that PostgreSQL cannot hold."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.tasks import failing
from tests.support.workers import one_worker


@pytest.fixture(scope="module")
def one_handler(pg_template: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    directory = tmp_path_factory.mktemp("failing")
    with one_worker(pg_template, "failing", directory, modules="failing") as queue:
        queue.workers[0].until_ready()  # it has defined its tasks
        yield queue


def settled(queue: Any, identifier: str, payload: Any) -> Any:
    """The job when it has ended, or waits for an hour."""
    job = queue.add(identifier, payload)
    ends = "j.state in ('completed', 'cancelled', 'discarded')"
    waits = "j.state in ('retryable', 'scheduled') and j.run_at > now() + interval '10 min'"
    queue.until(f"select {ends} or {waits} from pyworker.get_job(%s) j", job)
    return queue.job(job)


@pytest.mark.parametrize("kind", ["", "_async", "_batch"])
@pytest.mark.parametrize("name", failing.TYPES)
def test_only_the_elements_that_failed_run_again(one_handler: Any, name: str, kind: str) -> None:
    elements = failing.TYPES[name][1]
    job = settled(one_handler, f"{name}{kind}", elements)
    assert job.state == "completed", job.last_error
    runs = [row.told for row in one_handler.seen(job.id)]
    if name == "sets":
        assert [len(run) for run in runs] == [3, 2, 1]
        assert sorted(run[0] for run in runs) == sorted(runs[0])
    else:
        assert runs == [runs[0][n:] for n in range(len(elements))]


def test_elements_never_grow_beyond_the_limit_of_their_payload(one_handler: Any) -> None:
    """É is six characters where JSON escapes it."""
    elements = ["a", "é" * 500_000]
    job = one_handler.value(
        "select (pyworker.add_job('as_long_as_before', %s::text::json)).id",
        json.dumps(elements, ensure_ascii=False),
    )
    one_handler.until_state("completed", job)
    assert [row.told for row in one_handler.seen(job)] == [2, 1]


# State, attempts, what the error holds.
ENDS = {
    "cancel": ("cancelled", 1, "not wanted"),
    "two cancels": ("cancelled", 1, "not wanted"),
    "discard": ("discarded", 1, "bad"),
    "snooze": ("scheduled", 0, None),
    "not started": ("retryable", 1, "no network"),
    "failed": ("retryable", 1, "1 elements of the batch failed"),
    "nested": ("cancelled", 1, "not wanted"),
    "a failure too": ("retryable", 1, "ValueError: the failure"),
    "mixed": ("retryable", 1, "Snooze"),
}


@pytest.mark.parametrize("kind", ["", "_async", "_batch"])
@pytest.mark.parametrize("which", failing.GROUPS)
def test_a_group_counts_as_the_outcome_that_all_of_its_members_are(
    one_handler: Any, which: str, kind: str
) -> None:
    state, attempts, error = ENDS[which]
    job = settled(one_handler, f"group{kind}", [which, 1, 2, 3])
    assert (job.state, job.attempts) == (state, attempts), job.last_error
    assert error is None or error in job.last_error
    assert ("Traceback" in (job.last_error or "")) == (which in ("a failure too", "mixed"))
    if which == "failed":
        assert job.payload == [1, 2, 3]
    if which == "snooze":
        assert one_handler.value("select %s - now() > interval '1 hour'", job.run_at)


@pytest.mark.parametrize(
    ("which", "state"), [("not started", "retryable"), ("a failure too", "discarded"), ("mixed", "discarded")]
)
def test_a_group_of_a_job_that_must_not_run_twice(one_handler: Any, which: str, state: str) -> None:
    assert settled(one_handler, "group_once", [which]).state == state


@pytest.mark.parametrize("kind", ["", "_async"])
def test_texts_are_stored_with_what_cannot_be_replaced_and_names_are_refused_by_argument(
    one_handler: Any, kind: str
) -> None:
    job = settled(one_handler, f"texts{kind}", {})
    assert job.state == "completed", job.last_error
    kept, told = job.result
    assert kept == {"a\ufffdb": "a\ufffd"}
    assert job.progress_message.startswith("a\ufffdb a")
    log = one_handler.value("select message from pyworker.job_log(%s)", job.id)
    assert log.startswith("a\ufffdb a")
    for refusal in told:
        assert re.match(r"job[.]|add_job: |set_progress: ", refusal)
        assert " got " in refusal
    assert sum(refusal.startswith("job.once(): key must") for refusal in told) == 4
    assert sum(": name must" in refusal for refusal in told) == 12
