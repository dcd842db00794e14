"""Verbs and options as other queues name them: an error says what to write."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest

import pyworker
from pyworker import cron, task, tasks


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_registry", {})


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("delay", r"task\.add\(conn, payload\)$"),
        ("send", r"task\.add\(conn, payload\)$"),
        ("enqueue", r"task\.add\(conn, payload\)$"),
        ("apply_async", r"task\.add\(conn, payload, delay=…, run_at=…\)$"),
        ("s", r"flow\.add\(task, payload, after=…\)$"),
    ],
)
def test_a_verb_of_another_queue_says_what_to_write(verb: str, words: str) -> None:
    @task
    def handler(payload: Any) -> None: ...

    with pytest.raises(AttributeError, match=rf"^a pyworker task has no attribute '{verb}': write {words}"):
        getattr(handler, verb)
    with pytest.raises(AttributeError, match=r"^a pyworker task has no attribute 'unknown'$"):
        _ = handler.unknown  # type: ignore[attr-defined]
    assert not hasattr(handler, verb)
    assert copy.copy(handler).name == "handler"


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ({"countdown": 5}, "delay"),
        ({"eta": 5}, "run_at"),
        ({"queue": "q"}, "queue_name"),
        ({"args": [1]}, "payload, one value"),
        ({"max_retries": 3}, "max_attempts"),
        ({"timeout": 3}, "timeout, an option of @task"),
    ],
)
def test_an_option_of_another_queue_says_what_to_write(option: Any, instead: str) -> None:
    name = next(iter(option))
    with pytest.raises(TypeError, match=rf"^add_job has no argument '{name}' .*\): write {instead}$"):
        pyworker.add_job(None, "t", **option)  # type: ignore[arg-type]
    if name != "timeout":
        with pytest.raises(TypeError, match=rf"^task has no option '{name}' .*\): write {instead}$"):
            task(**option)


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 1e300])
@pytest.mark.parametrize("name", ["timeout", "retention", "backfill"])
def test_a_time_that_is_not_finite_is_refused_by_its_name(name: str, seconds: float) -> None:
    decorate: Any = functools.partial(cron, "0 4 * * *") if name == "backfill" else task
    with pytest.raises(ValueError, match=rf"^(task|cron): {name} must be a time that is finite, got "):
        decorate(**{name: seconds})
    with pytest.raises(ValueError, match=r"^Snooze: delay must be a time that is finite, got "):
        pyworker.Snooze(seconds)
