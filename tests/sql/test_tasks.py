"""define_task: the defaults of a task."""

from __future__ import annotations

from typing import Any

import pytest


def test_a_task_gives_its_defaults_to_bare_adds_and_each_argument_replaces_one(api: Any) -> None:
    api.define_task("t", max_attempts=3, priority=-5, queue_name="q")
    for job in (api.add_job("t"), api.add_job("t", job_key="k"), *api.add_jobs([{"identifier": "t"}])):
        assert (job.max_attempts, job.priority, job.queue_name, job.state) == (3, -5, "q", "available")
    given = {"max_attempts": 9, "priority": 0, "queue_name": "other"}
    for job in (
        api.add_job("t", **given), api.add_job("t", job_key="k", **given),
        *api.add_jobs([{"identifier": "t", **given}]),
    ):  # fmt: skip
        assert (job.max_attempts, job.priority, job.queue_name) == (9, 0, "other")
    assert api.add_job("another").max_attempts == 25


def test_defining_a_task_again_replaces_all_of_it(api: Any) -> None:
    api.define_task("t", max_attempts=3, priority=-5, queue_name="q")
    api.define_task("t", priority=2)
    job = api.add_job("t")
    assert (job.max_attempts, job.priority, job.queue_name) == (25, 2, None)


def test_defining_a_task_unchanged_waits_for_no_session(api: Any, actor: Any) -> None:
    api.define_task("t", priority=2, backoff='["1 s"]')
    other = actor()
    other.begin()
    other.rows("select from pyworker.tasks for update")
    api.define_task("t", priority=2, backoff='["1 s"]')


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"identifier": ""}, ("identifier", "''")),
        ({"max_attempts": 0}, ("max_attempts", "0")),
        ({"priority": 40000}, ("priority", "40000")),
        ({"queue_name": ""}, ("queue_name", "''")),
        ({"delivery": "x"}, ("delivery", "x")),
        ({"timeout": "0 s"}, ("timeout", "00:00:00")),
        ({"timeout": "-1 s"}, ("timeout", "-00:00:01")),
        ({"retention": "-1 s"}, ("retention", "-00:00:01")),
        ({"backoff": "[]"}, ("backoff", "empty")),
        ({"backoff": '["soon"]'}, ("backoff", "soon")),
        ({"backoff": "[-1]"}, ("backoff", "-1")),
        ({"backoff": '["infinity"]'}, ("backoff", "infinity")),
        ({"backoff": "[null]"}, ("backoff", "null")),
        ({"backoff": "5"}, ("backoff", "array")),
        ({"backoff": {"strategy": "random"}}, ("backoff", "strategy", "random")),
        ({"backoff": {"strategy": None}}, ("backoff", "strategy", "null")),
        ({"backoff": {"initial": "x"}}, ("backoff", "initial", "x")),
        ({"backoff": {"max": -1}}, ("backoff", "max", "-1")),
        ({"backoff": {"factor": 0}}, ("backoff", "factor", "0")),
        ({"backoff": {"factor": "2"}}, ("backoff", "factor", "2")),
        ({"backoff": {"jitter": 1.1}}, ("backoff", "jitter", "1.1")),
        ({"backoff": {"base": 1}}, ("backoff", "base")),
    ],
    ids=str,
)
def test_a_bad_task_definition_is_refused(api: Any, change: dict[str, Any], words: tuple[str, ...]) -> None:
    with api.refusal("PW001", "^define_task: ", *words):
        api.define_task(**{"identifier": "t", **change})
    assert api.value("select count(*) from pyworker.tasks") == 0
