"""explain_job on workers: no worker, no worker that takes the job, the worker that runs it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.explain import NAMES, explain, reasons, run, the
from tests.support.explain import idle as idle


def test_no_worker(api: Any) -> None:
    job = api.add_job("t")
    (row,) = explain(api, job)
    assert (row.reason, row.detail) == ("no worker", "no worker is alive")
    api.register_worker()
    assert reasons(api, job) == ["waits for a worker"]


@pytest.mark.parametrize("how", ["unregistered", "swept", "silent"])
def test_a_worker_that_is_gone_is_no_worker(api: Any, clock: Any, how: str) -> None:
    who = api.register_worker()
    job = api.add_job("t")
    assert reasons(api, job) == ["waits for a worker"]
    if how == "unregistered":
        api.unregister_worker(who)
    else:
        clock.advance(minutes=5)
        if how == "swept":
            api.maintain()
    assert reasons(api, job) == ["no worker"]


ALL = {"task_identifiers": ["t"], "queue_names": ["q"], "forbidden_flags": ["f"]}

TASK = "no live worker (of {n}) knows the task t"

QUEUE = "no live worker (of {n}) serves the queue q"

FLAGS = "every live worker (of {n}) forbids one of the job's flags: f, g"

MIXED = "each live worker (of {n}) lacks something: the task t, the queue q, or it forbids a flag of the job"

NO_WORKER: dict[str, tuple[list[dict[str, Any]], str]] = {
    "task": ([{"task_identifiers": ["u"]}, {"task_identifiers": []}], TASK),
    "task and queue": ([{"task_identifiers": ["u"], "queue_names": ["r"]}], TASK),
    "queue": ([{"queue_names": ["r", "default"]}, {"queue_names": [], "task_identifiers": ["t"]}], QUEUE),
    "flags": ([{"forbidden_flags": ["f"]}, {"forbidden_flags": ["x", "g"], "queue_names": ["q"]}], FLAGS),
    "combination": (
        [
            {"task_identifiers": ["u"]},
            {"queue_names": ["r"]},
            {"forbidden_flags": ["g"], "queue_names": ["q"]},
        ],
        MIXED,
    ),
}


@pytest.mark.parametrize("how", NO_WORKER)
def test_no_worker_takes_it(api: Any, how: str) -> None:
    infos, detail = NO_WORKER[how]
    job = api.add_job("t", queue_name="q", flags=["g", "f"])
    api.promote_jobs()
    for info in infos:
        who = api.register_worker()
        api.update_worker(who, info)
        # explain_job is right: this worker really claims nothing.
        assert (
            api.claim_jobs(
                who, 1, *(info.get(k) for k in ("task_identifiers", "queue_names", "forbidden_flags"))
            )
            == []
        )
    (row,) = explain(api, job)
    assert (row.reason, row.detail) == ("no worker takes it", detail.format(n=len(infos)))
    assert row.remedy
    api.register_worker({**ALL, "forbidden_flags": ["x"]})
    assert reasons(api, job) == ["waits for a worker"]


def test_jobs_without_a_queue_are_those_of_default(api: Any) -> None:
    job = api.add_job("t")
    api.register_worker({"queue_names": ["q"]})
    assert the(api, job, "no worker takes it").detail == "no live worker (of 1) serves the queue default"
    api.register_worker({"queue_names": ["default"]})
    assert reasons(api, job) == ["waits for a worker"]


@pytest.mark.parametrize("value", [None, 5, "x", {"t": 1}, True])
def test_what_a_worker_says_in_another_form_is_not_understood_and_does_no_harm(api: Any, value: Any) -> None:
    job = api.add_job("t", queue_name="q", flags=["f"])
    api.promote_jobs()
    api.register_worker(dict.fromkeys(ALL, value))
    assert reasons(api, job) == ["waits for a worker"]


@pytest.mark.parametrize("name", NAMES)
def test_odd_task_names_do_no_harm(api: Any, name: str) -> None:
    job = api.add_job(name)
    api.register_worker({"task_identifiers": ["t"]})
    assert the(api, job, "no worker takes it").detail == f"no live worker (of 1) knows the task {name}"
    who = api.register_worker({"task_identifiers": [name]})
    assert reasons(api, job) == ["waits for a worker"]
    api.fail(api.claim(who, name), f"{name}: {name}\n")
    assert name.splitlines()[-1] in the(api, job, "waits for its retry").detail


def test_waits_for_a_worker(api: Any, idle: int) -> None:
    api.register_worker({"task_identifiers": []})
    first, *_, last = api.add_jobs([{"identifier": "t", "priority": -7}] + [{"identifier": "t"}] * 9)
    (row,) = explain(api, last)
    assert row.reason == "waits for a worker"
    assert row.detail == "available jobs that come first: 9; live workers that take it: 1 of 2"
    run(api, row.remedy)
    (row,) = explain(api, last)
    assert row.detail == "available jobs that come first: 0; live workers that take it: 1 of 2"
    assert row.remedy.startswith("it is next")
    assert the(api, first, "waits for a worker").detail.startswith("available jobs that come first: 1;")
    assert api.claim(idle).id == last.id


def test_no_priority_is_before_the_first(api: Any, idle: int) -> None:
    _, job = api.add_jobs([{"identifier": "t", "priority": -32768}] * 2)
    assert the(api, job, "waits for a worker").remedy == "start more workers"


def test_it_does_not_count_millions(api: Any, idle: int) -> None:
    api.add_jobs([{"identifier": "t"}] * 10_001)
    job = api.add_job("t")
    assert the(api, job, "waits for a worker").detail.startswith(
        "available jobs that come first: 10000 or more;"
    )


# It runs, or has run ------------------------------------------------------------------------------


def test_running(api: Any, idle: int) -> None:
    job = api.add_job("t", max_attempts=3)
    api.claim(idle)
    (row,) = explain(api, job)
    assert (row.reason, row.remedy) == ("running", None)
    assert re.fullmatch(rf"since \S+ \S+ on worker {idle}, attempt 1 of 3", row.detail)


def test_running_on_a_silent_worker(api: Any, idle: int, clock: Any) -> None:
    job = api.add_job("t")
    api.claim(idle)
    clock.advance(seconds=30)
    (row,) = explain(api, job)
    assert row.reason == "running"
    assert f" on worker {idle}, which has been silent since " in row.detail
    run(api, row.remedy)
    assert reasons(api, job) == ["no worker"]


def test_running_on_a_dead_worker(api: Any, idle: int, actor: Any) -> None:
    """A sweep has declared the worker dead, and another session had the job locked just then."""
    job = api.add_job("t")
    api.claim(idle)
    other = actor()
    other.begin()
    other.rows("select from pyworker.live_jobs where id = %s for update", [job.id])
    api.rows("select set_config('pyworker.clock_offset', '5 min', false)")
    api.maintain()
    other.rollback()
    (row,) = explain(api, job)
    assert row.reason == "running"
    assert f" on worker {idle}, which is dead, attempt 1 of 25" in row.detail
    run(api, row.remedy)
    assert reasons(api, job) == ["no worker"]


def test_cancel_requested(api: Any, idle: int) -> None:
    job = api.add_job("t")
    api.claim(idle)
    api.cancel_job(job.id)
    row, running = explain(api, job)
    assert (row.reason, running.reason) == ("cancel requested", "running")
    run(api, row.remedy)
    assert reasons(api, job) == ["cancelled"]


@pytest.mark.parametrize("state", ["completed", "cancelled", "discarded"])
def test_a_job_that_has_ended(api: Any, worker: int, job_in: Any, state: str) -> None:
    job = job_in(state)
    (row,) = explain(api, job)
    assert row.reason == state
    when = api.value("select %s::text", [job.finished_at])
    assert (
        row.detail
        == {
            "completed": f"completed at {when}",
            "cancelled": f"cancelled at {when}",
            "discarded": f"discarded by its handler at {when}, after 1 of 25 attempts: boom",
        }[state]
    )
    run(api, row.remedy)
    assert reasons(api, job) == ["waits for a worker"]


def test_completed_by_hand_and_out_of_attempts(api: Any, worker: int) -> None:
    done, failed = api.add_job("t"), api.add_job("u", max_attempts=1)
    api.complete_jobs([done.id])
    assert the(api, done, "completed").detail.endswith(": completed by hand")
    api.fail(api.claim(worker), "first\nlast")
    assert re.fullmatch(
        r"out of attempts at .*, after 1 of 1 attempts: last", the(api, failed, "discarded").detail
    )


@pytest.mark.parametrize("job_id", [0, -1, 4711, 2**63 - 1, None])
def test_an_unknown_job_is_refused(api: Any, job_id: int | None) -> None:
    with api.refusal("PW004", f"^explain_job: there is no job {'NULL' if job_id is None else job_id}$"):
        explain(api, job_id)


# update_worker ------------------------------------------------------------------------------------


def test_a_worker_adds_to_what_it_has_said_of_itself(api: Any) -> None:
    who = api.register_worker({"host": "a", "queue_names": ["q"]})
    api.update_worker(who, {"queue_names": ["r"], "pid": 1})
    (row,) = api.rows("select info from pyworker.live_workers")
    assert row.info == {"host": "a", "queue_names": ["r"], "pid": 1}


@pytest.mark.parametrize("info", ["[]", "5", "null", None])
def test_a_description_must_be_an_object(api: Any, worker: int, info: str | None) -> None:
    with api.refusal("PW001", "update_worker: info", "NULL" if info is None else "object"):
        api.update_worker(worker, info)


def test_nothing_is_said_of_a_worker_that_is_dead_or_unknown(api: Any, worker: int, clock: Any) -> None:
    clock.advance(minutes=5)
    api.maintain()
    api.update_worker(worker, {"host": "a"})
    api.update_worker(None, {"host": "a"})
    api.update_worker(4711, {"host": "a"})
    assert api.rows("select info from pyworker.workers where info <> '{}'") == []
