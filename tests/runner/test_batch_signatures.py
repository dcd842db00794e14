"""Promises of @task(batch=…) that need no worker: which numbers and which signatures it takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pyworker import AsyncJob, Job, TaskError, task, tasks


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_registry", {})


@dataclasses.dataclass
class Order:
    number: int


@pytest.mark.parametrize(
    ("batch", "error", "said"),
    [
        (0, ValueError, "task: batch must be from 1 to 10000, got 0"),
        (-1, ValueError, "task: batch must be from 1 to 10000, got -1"),
        (10_001, ValueError, "task: batch must be from 1 to 10000, got 10001"),
        (True, TypeError, "task: batch must be an integer, got True"),
        (1.0, TypeError, "task: batch must be an integer, got 1.0"),
        ("100", TypeError, "task: batch must be an integer, got '100'"),
    ],
)
def test_a_wrong_batch_is_refused_by_name_and_value(batch: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=f"^{said}$"):
        task(batch=batch)


def test_a_batch_is_no_option_for_the_database() -> None:
    @task(batch=100, priority=2)
    def handler(jobs: list[Job]) -> None: ...

    assert (handler.batch, handler.options) == (100, {"priority": 2})
    assert tasks.definitions(tasks.registered()) == {"handler": {"priority": 2}}


def untyped(jobs): ...  # type: ignore[no-untyped-def]
def plain_list(jobs: list) -> None: ...  # type: ignore[type-arg]
def of_jobs(jobs: list[Job]) -> None: ...
def a_sequence(documents: Sequence[AsyncJob]) -> None: ...
def named_job(job: list[Job]) -> None: ...
def with_default(jobs: list[Job[dict[str, Any]]], more: int = 1) -> None: ...
def typed(jobs: list[Job[Order]]) -> None: ...
async def typed_async(jobs: list[AsyncJob[Order]]) -> None: ...


@pytest.mark.parametrize("handler", [untyped, plain_list, of_jobs, a_sequence, named_job, with_default])
def test_a_list_of_jobs_is_passed_as_it_is(handler: Any) -> None:
    task(batch=1)(handler)
    (made,) = tasks.registered().values()
    assert made.convert is None
    made.invoke([])


@pytest.mark.parametrize("handler", [typed, typed_async])
def test_the_type_within_the_list_converts_payloads_both_ways(handler: Any) -> None:
    made = task(batch=10)(handler)
    assert made.encoded(Order(7)) == {"number": 7}
    convert = cast("Any", made.convert)
    assert convert({"number": 7}) == Order(7)
    with pytest.raises(ValueError, match="the payload does not fit"):
        convert({"number": "x"})


def nothing() -> None: ...
def keyword_only(*, jobs: list[Job]) -> None: ...
def two(jobs: list[Job], job: Job) -> None: ...
def one_payload(payload: Order) -> None: ...
def payloads(jobs: list[Order]) -> None: ...
def one_job(job: Job) -> None: ...


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (nothing, "a batch handler takes the list of its jobs, such as jobs: list.Job.; this one takes no"),
        (keyword_only, "parameter 'jobs' has nothing to fill it; a batch handler takes the list of its jobs"),
        (two, "parameter 'job' has nothing to fill it; a batch handler takes the list of its jobs"),
        (
            one_payload,
            "parameter 'payload' of a batch handler gets a list of jobs: annotate it list.Job., or",
        ),
        (payloads, "parameter 'jobs' of a batch handler gets a list of jobs: annotate it list.Job., or"),
        (one_job, "parameter 'job' of a batch handler gets a list of jobs"),
    ],
)
def test_a_handler_that_takes_no_list_of_jobs_is_refused_when_the_worker_loads_it(
    handler: Any, said: str
) -> None:
    task(batch=10)(handler)
    with pytest.raises(TaskError, match=f"<task {handler.__name__} .*>: {said}"):
        tasks.registered()


def test_a_plain_handler_annotates_its_payload_and_not_its_job() -> None:
    @task
    def handler(payload: Any, job: Job[Order]) -> None: ...

    with pytest.raises(TaskError, match=r"parameter 'job' is annotated .* which is for the jobs of a batch"):
        tasks.registered()


def test_a_batch_handler_is_still_its_function() -> None:
    @task(batch=10)
    def handler(jobs: list[Job]) -> int:
        return len(jobs)

    assert handler([cast("Any", SimpleNamespace(payload=1))]) == 1
