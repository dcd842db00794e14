"""Promises of middleware, kept by a real worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from pyworker import TaskError, _middleware, middleware
from tests.support.workers import one_worker

both = pytest.mark.parametrize("task", ["surrounded", "surrounded_async"])


@pytest.fixture(scope="module")
def served(pg_template: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A database with one worker that has two middlewares."""
    with one_worker(
        pg_template, "middleware", tmp_path_factory.mktemp("middleware"), modules="middlewares"
    ) as queue:
        yield queue


def ran(served: Any, task: str, state: str, payload: Any = None, **meta: Any) -> tuple[Any, list[Any]]:
    """The job when it is in this state, and what was told around it."""
    job_id = served.add(task, payload, meta=json.dumps(meta))
    served.until_state(state, job_id)
    return served.job(job_id), [seen.told for seen in served.seen(job_id)]


@both
def test_the_first_registered_is_the_outermost_and_sees_job_and_result(served: Any, task: str) -> None:
    job, told = ran(served, task, "completed", {"value": 7})
    assert told == [
        f"outer begins {task}",
        "inner begins",
        "handler in outer",
        "inner ends",
        ["outer ends", 7],
    ]
    assert job.result == 7


@both
@pytest.mark.parametrize(
    ("way", "answer", "state", "name"),
    [
        ("raise", ["error", "x"], "retryable", "Canary"),
        ("raise", ["exit", "x"], "retryable", "SystemExit"),
        ("raise", ["snooze", None], "scheduled", "Snooze"),
        ("return", ["snooze", None], "scheduled", "Snooze"),
        ("raise", ["cancel", "x"], "cancelled", "Cancel"),
        ("return", ["discard", "x"], "discarded", "Discard"),
        ("return", ["failed", [1]], "retryable", "Failed"),
    ],
)
def test_it_sees_how_the_handler_ended_and_changes_nothing(
    served: Any, task: str, way: str, answer: Any, state: str, name: str
) -> None:
    job, told = ran(served, task, state, {way: answer})
    assert told[3:] == [["outer ends", name]]
    assert not any(
        f", in {name}" in (job.last_error or "") for name in ("outer", "inner")
    )  # they are not in the way


@both
def test_an_exception_that_it_swallows_is_a_failed_attempt_all_the_same(served: Any, task: str) -> None:
    job, told = ran(served, task, "retryable", {"raise": ["error", "x"]}, swallow=True)
    assert told[3:] == ["inner ends", ["outer ends", "Canary"]]
    assert job.last_error.endswith("Canary: x\n")


@both
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("answer", "state", "error"),
    [
        (["snooze", None], "scheduled", None),
        (["cancel", "no"], "cancelled", "no"),
        (["discard", "no"], "discarded", "no"),
    ],
    ids=["Snooze", "Cancel", "Discard"],
)
def test_an_outcome_that_it_raises_is_the_jobs(
    served: Any, task: str, when: str, answer: Any, state: str, error: str | None
) -> None:
    job, told = ran(served, task, state, {"value": 1}, **{when: answer})
    assert job.last_error == error
    assert told[-1] == ["outer ends", answer[0].capitalize()]
    assert ("handler in outer" in told) == (when == "after")


@both
@pytest.mark.parametrize(
    ("meta", "words"),
    [
        ({"before": ["error", "why"]}, "inner failed before its yield: handlers.Canary: why"),
        ({"after": ["error", "why"]}, "inner failed after its yield: handlers.Canary: why"),
        ({"before": ["exit", "why"]}, "inner failed before its yield: SystemExit: why"),
        ({"never": True}, "inner has not come to its yield"),
        ({"twice": True}, "inner has more than one yield"),
    ],
    ids=["before", "after", "exit", "no yield", "two yields"],
)
def test_one_that_breaks_is_logged_and_the_job_goes_on_without_it(
    served: Any, task: str, meta: Any, words: str
) -> None:
    job, told = ran(served, task, "completed", {"value": 1}, **meta)
    assert job.result == 1
    assert told[-1] == ["outer ends", 1]
    assert words in served.workers[0].log


def test_a_handler_that_timed_out_is_seen_as_cancelled_and_fails_by_its_timeout(served: Any) -> None:
    job, told = ran(served, "surrounded_too_long", "retryable")
    assert told[2:] == [["outer ends", "CancelledError"]]
    assert "timed out after 0.5 s" in job.last_error


@pytest.fixture
def registry() -> Iterator[list[Any]]:
    known = list(_middleware.registered)
    _middleware.registered.clear()
    yield _middleware.registered
    _middleware.registered[:] = known


async def asynchronous(job):
    yield


def without_yield(job):
    pass


def without_argument():
    yield


@pytest.mark.parametrize("wrong", [asynchronous, without_yield, without_argument])
def test_what_could_not_surround_a_handler_is_refused_with_its_name(registry: list[Any], wrong: Any) -> None:
    with pytest.raises(TaskError, match=wrong.__name__):
        middleware(wrong)
    assert registry == []


def test_a_module_that_is_loaded_again_replaces_its_own_in_its_place(registry: list[Any]) -> None:
    def first(job):
        yield

    def second(job):
        yield

    again = type(first)(first.__code__, first.__globals__)
    again.__qualname__ = first.__qualname__
    for each in (first, second, again):
        middleware(each)
    assert registry == [again, second]


def test_the_testing_fixtures_run_it_too(
    registry: list[Any], dsn: str, db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyworker import task, tasks, testing

    monkeypatch.setattr(tasks, "_registry", {})
    told: list[Any] = []

    @middleware
    def listening(job):
        told.append(job.id)
        told.append((yield))

    @task
    def answers(payload):
        return payload

    db.execute("select pyworker.add_job('answers', '5')")
    (run,) = testing.Queue(dsn).drain()
    assert told == [run.job.id, 5]
