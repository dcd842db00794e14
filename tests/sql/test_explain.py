"""explain_job: every reason in a real situation, in order, each with a remedy that works when it is run as it stands."""

from __future__ import annotations

import re
from typing import Any

import pytest

CALL = re.compile(r"select \* from pyworker\.\w+\((?:[^()']|'(?:[^']|'')*'|\([^)]*\))*\)")


def explain(api: Any, job: Any) -> list[Any]:
    rows = api.rows("select * from pyworker.explain_job(%s)", [getattr(job, "id", job)])
    assert [row.position for row in rows] == list(range(1, len(rows) + 1))
    for row in rows:
        assert row.reason
        assert row.detail
    return rows


def reasons(api: Any, job: Any) -> list[str]:
    return [row.reason for row in explain(api, job)]


def the(api: Any, job: Any, reason: str) -> Any:
    """The one row with this reason."""
    (row,) = [row for row in explain(api, job) if row.reason == reason]
    return row


def calls(remedy: str) -> list[str]:
    """The statements in a remedy: it begins with the first, and what is around them is prose."""
    assert remedy.startswith("select * from pyworker.")
    return [match.group() for match in CALL.finditer(remedy)]


def run(api: Any, remedy: str, which: int = 0) -> Any:
    return api.rows(calls(remedy)[which].replace("%", "%%"), [])


@pytest.fixture
def idle(api: Any) -> int:
    """A worker that lives and would claim anything; so that nothing but the job itself is in its way."""
    return api.register_worker()


# Its time ------------------------------------------------------------------------------------------------------------


def test_not_due(api: Any, idle: int) -> None:
    job = api.add_job("t", run_at=api.at("1 hour"))
    (row,) = explain(api, job)
    assert (row.reason, row.detail) == ("not due", f"not before {api.value('select %s::text', [job.run_at])}")
    assert [job.id for job in run(api, row.remedy)] == [job.id]
    assert "not due" not in reasons(api, job)
    assert api.claim(idle).id == job.id


def test_waits_for_its_retry(api: Any, idle: int) -> None:
    job = api.add_job("t")
    api.fail(api.claim(idle), "Traceback (most recent call last):\n  File …\nValueError: 100% 'wrong'\n")
    (row,) = explain(api, job)
    assert row.reason == "waits for its retry"
    assert row.detail.endswith("; attempt 1 of 25 failed: ValueError: 100% 'wrong'")
    run(api, row.remedy)
    assert reasons(api, job) == ["waits for a worker"]
    assert api.claim(idle).id == job.id


def test_promotion_of_a_job_that_has_been_due(api: Any, idle: int, clock: Any) -> None:
    job = api.add_job("t", run_at=api.at("1 hour"))
    clock.advance(hours=2)
    api.heartbeat(idle)
    (row,) = explain(api, job)
    assert (row.reason, row.detail[:22]) == ("promotion", "it has been due since ")
    run(api, row.remedy)
    assert reasons(api, job) == ["waits for a worker"]


def test_promotion_of_a_retry_that_has_been_due(api: Any, idle: int, clock: Any) -> None:
    job = api.add_job("t")
    api.fail(api.claim(idle))
    clock.advance(hours=2)
    api.heartbeat(idle)
    run(api, the(api, job, "promotion").remedy)
    assert reasons(api, job) == ["waits for a worker"]


# Its sequence --------------------------------------------------------------------------------------------------------


def sequence(api: Any, count: int, key: str = "s", **named: Any) -> list[Any]:
    return [api.add_job("t", sequence_policy={"key": key}, **named) for _ in range(count)]


def test_sequence(api: Any, idle: int) -> None:
    first, second, third = sequence(api, 3)
    api.claim(idle)
    (row,) = explain(api, third)
    assert row.reason == "sequence"
    assert (
        row.detail == f"waits for job {first.id} (running) in sequence s; jobs that wait before this one: 1"
    )
    (answer,) = run(api, row.remedy)  # it leads to the job that all wait for
    assert answer.reason == "running"
    api.finish(first.id)
    assert reasons(api, second) == ["waits for a worker"]
    assert the(api, third, "sequence").detail.startswith(f"waits for job {second.id} (available) ")


def test_a_sequence_waits_for_the_retry_of_its_head(api: Any, idle: int) -> None:
    first, second = sequence(api, 2)
    api.fail(api.claim(idle))
    row = the(api, second, "sequence")
    assert re.search(rf"waits for job {first.id} \(retryable until \d{{4}}-", row.detail)
    (answer,) = run(api, row.remedy)
    assert answer.reason == "waits for its retry"


def test_promotion_of_the_first_of_a_sequence(api: Any, idle: int) -> None:
    first, second = sequence(api, 2)
    (row,) = explain(api, first)
    assert (row.reason, row.detail) == ("promotion", "its turn in sequence s has come")
    assert the(api, second, "sequence").detail == "jobs that wait before this one in sequence s: 1"
    run(api, row.remedy)
    assert reasons(api, first) == ["waits for a worker"]


@pytest.fixture
def halted(api: Any, idle: int) -> list[Any]:
    """Four jobs of a sequence, halted by the first."""
    jobs = sequence(api, 4, 'it\'s 100% "s"\n;')
    api.fail(api.claim(idle), discard=True)
    return jobs


def test_sequence_halted(api: Any, halted: list[Any]) -> None:
    first, second, third, _ = halted
    (row,) = explain(api, second)
    assert row.reason == "sequence halted"
    assert row.detail.startswith(f'sequence it\'s 100% "s"\n; is halted by job {first.id}, discarded at ')
    assert reasons(api, third) == ["sequence halted", "sequence"]
    assert len(calls(row.remedy)) == 3


@pytest.mark.parametrize(
    "which", [0, 1, 2], ids=["run the halting job", "go on without it", "go on with this one"]
)
def test_each_remedy_of_a_halt_lets_the_sequence_go_on(
    api: Any, idle: int, halted: list[Any], which: int
) -> None:
    target = halted[2]
    run(api, the(api, target, "sequence halted").remedy, which)
    assert "sequence halted" not in reasons(api, target)
    order = []
    while claimed := api.claim(idle):
        order.append(claimed.id)
        api.finish_job(claimed.id, claimed.run)
    first, second, third, fourth = (job.id for job in halted)
    assert order == [[first, second, third, fourth], [second, third, fourth], [third, second, fourth]][which]


def test_a_sequence_halted_by_a_cancelled_job(api: Any, idle: int) -> None:
    first, second = sequence(api, 2)
    api.cancel_job(first.id)
    api.promote_jobs()
    row = the(api, second, "sequence halted")
    assert f"is halted by job {first.id}, cancelled at " in row.detail
    run(api, row.remedy, 1)
    assert reasons(api, second) == ["promotion"]


# Its queue -----------------------------------------------------------------------------------------------------------

NAMES = ["q", "it's", "100%", "%s %I", "a\nb", 'q"', "q\\", "q); drop table jobs; --", "c:1"]


@pytest.mark.parametrize("name", NAMES)
def test_queue_paused(api: Any, idle: int, name: str) -> None:
    api.set_queue("c:*", 1)
    job = api.add_job("t", queue_name=name)
    api.pause_queue(name)
    (row,) = explain(api, job)
    assert (row.reason, row.detail) == ("queue paused", f"queue {name} is paused")
    run(api, row.remedy)
    assert reasons(api, job) == ["promotion"]
    assert api.claim(idle).id == job.id


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("limit", [1, 2, 6])
def test_queue_full(api: Any, idle: int, name: str, limit: int) -> None:
    api.set_queue(name, limit)
    for _ in range(limit + 1):
        job = api.add_job("t", queue_name=name)
    holders = [job.id for job in api.claim_jobs(idle, 10)]
    (row,) = explain(api, job)
    assert row.reason == "queue full"
    shown = ", ".join(map(str, holders[:5])) + (", …" if limit > 5 else "")
    assert row.detail == f"queue {name} runs {limit} at once; now taken by job {shown}"
    run(api, row.remedy)
    assert reasons(api, job) == ["promotion"]
    assert api.claim(idle).id == job.id


def test_a_job_behind_another_one_that_no_worker_has_claimed_yet(api: Any, idle: int) -> None:
    first, second = api.add_job("t", queue_name="q"), api.add_job("t", queue_name="q")
    api.promote_jobs()
    assert reasons(api, first) == ["waits for a worker"]
    row = the(api, second, "waits for a worker")
    assert row.detail == "queue q has room; jobs of its task that come before it: 1"
    assert api.claim(idle).id == first.id
    assert the(api, second, "queue full").detail == f"queue q runs 1 at once; now taken by job {first.id}"


def test_a_queue_that_is_full_now_is_no_reason_for_a_job_whose_turn_has_not_come(api: Any, idle: int) -> None:
    first, second = sequence(api, 2, queue_name="q")
    later = api.add_job("t", queue_name="q", run_at=api.at("1 day"))
    assert api.claim(idle).id == first.id
    assert reasons(api, second) == ["sequence"]
    assert reasons(api, later) == ["not due"]
    run(api, the(api, later, "not due").remedy)
    assert reasons(api, later) == ["queue full"]


@pytest.mark.parametrize("limit", [1, 3])
def test_promotion_where_the_queue_has_room(api: Any, idle: int, limit: int) -> None:
    api.set_queue("q", limit)
    first, second = api.add_job("t", queue_name="q"), api.add_job("t", queue_name="q")
    row = the(api, first, "promotion")
    assert row.detail == "queue q has room; jobs of its task that come before it: 0"
    assert the(api, second, "promotion").detail == "queue q has room; jobs of its task that come before it: 1"
    run(api, row.remedy)
    assert reasons(api, first) == ["waits for a worker"]


def test_a_job_of_a_queue_without_a_limit_waits_for_workers(api: Any, idle: int) -> None:
    api.set_queue("q", None)
    last = api.add_jobs([{"identifier": "t", "queue_name": "q"}] * 1500)[-1]
    (row,) = explain(api, last)
    assert (row.reason, row.detail[:36]) == ("waits for a worker", "available jobs that come first: 1499")


@pytest.mark.parametrize("other", ["task", "flag"])
def test_a_job_that_no_worker_takes_is_no_reason_for_those_behind_it(api: Any, idle: int, other: str) -> None:
    api.update_worker(idle, {"task_identifiers": ["t"], "forbidden_flags": ["gpu"]})
    first = api.add_job(
        **({"identifier": "unknown"} if other == "task" else {"identifier": "t", "flags": ["gpu"]}),
        queue_name="q",
    )
    second = api.add_job("t", queue_name="q")
    api.promote_jobs()
    assert reasons(api, first) == ["no worker takes it"]
    assert reasons(api, second) == ["waits for a worker"]


# Somebody to do it ---------------------------------------------------------------------------------------------------


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
NOBODY: dict[str, tuple[list[dict[str, Any]], str]] = {
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


@pytest.mark.parametrize("how", NOBODY)
def test_no_worker_takes_it(api: Any, how: str) -> None:
    infos, detail = NOBODY[how]
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
def test_what_a_worker_says_in_another_form_is_not_understood_and_harms_nobody(api: Any, value: Any) -> None:
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


# It runs, or has run -------------------------------------------------------------------------------------------------


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
    """A sweep has declared the worker dead, and somebody had the job in hand just then."""
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


# Several at once -----------------------------------------------------------------------------------------------------


def test_the_reasons_come_in_the_order_in_which_they_have_to_go_away(api: Any, clock: Any) -> None:
    job = api.add_job("t", queue_name="q", run_at=api.at("1 hour"))
    api.pause_queue("q")
    who = api.register_worker({"task_identifiers": ["u"]})
    expected = ["not due", "queue paused", "no worker takes it"]
    assert reasons(api, job) == expected
    clock.advance(hours=2)
    api.heartbeat(who)
    assert reasons(api, job) == ["promotion", *expected[1:]]
    run(api, the(api, job, "promotion").remedy)
    assert reasons(api, job) == expected[1:]
    run(api, the(api, job, "queue paused").remedy)
    assert reasons(api, job) == ["promotion", "no worker takes it"]
    run(api, the(api, job, "promotion").remedy)
    assert reasons(api, job) == ["no worker takes it"]
    other = api.register_worker({"task_identifiers": ["t"]})
    assert reasons(api, job) == ["waits for a worker"]
    api.claim(other)
    assert reasons(api, job) == ["running"]


def test_a_job_behind_a_halt_that_is_not_due_in_a_full_queue_with_nobody_to_do_it(
    api: Any, clock: Any
) -> None:
    who = api.register_worker()
    first, _ = sequence(api, 2, queue_name="q")
    last = api.add_job("t", queue_name="q", sequence_policy={"key": "s"}, run_at=api.at("10 min"))
    api.fail(api.claim(who), discard=True)
    holder = api.add_job("u", queue_name="q")
    assert api.claim(who).id == holder.id
    api.update_worker(who, {"task_identifiers": ["u"]})
    # That its queue is full now is no reason yet.
    assert reasons(api, last) == ["sequence halted", "sequence", "not due", "no worker takes it"]
    run(api, the(api, last, "sequence halted").remedy, 2)  # with this job first: at once
    assert reasons(api, last) == ["promotion", "queue full", "no worker takes it"]
    api.promote_jobs()
    assert reasons(api, last) == ["queue full", "no worker takes it"]
    run(api, the(api, last, "queue full").remedy)
    api.promote_jobs()
    assert reasons(api, last) == ["no worker takes it"]
    assert first.id < last.id


def test_a_job_that_runs_has_no_other_reason_whatever_its_queue_and_its_time(api: Any, idle: int) -> None:
    job = api.add_job("t", queue_name="q", sequence_policy={"key": "s"})
    api.claim(idle)
    api.pause_queue("q")
    api.update_worker(idle, {"task_identifiers": []})
    assert reasons(api, job) == ["running"]


def test_a_job_that_can_start_has_one_reason(api: Any, idle: int, job_in: Any) -> None:
    for state in ("available", "due"):
        assert reasons(api, job_in(state, state)) == ["waits for a worker"]


def test_each_message_is_short(api: Any, idle: int, job_in: Any) -> None:
    made = [
        job_in(state, f"t-{state}")
        for state in ("scheduled", "pending", "queued", "available", "retryable", "discarded")
    ]
    for job in made:
        for row in explain(api, job):
            assert len(row.detail) < 140
            assert len(row.remedy or "") < 140


def test_a_job_whose_end_is_not_committed_is_still_what_it_was(api: Any, idle: int, actor: Any) -> None:
    first, second = api.add_job("t", queue_name="q"), api.add_job("t", queue_name="q")
    api.claim(idle)
    handler = actor()
    handler.begin()
    handler.finish(first.id)
    assert reasons(api, second) == ["queue full"]
    handler.commit()
    assert reasons(api, second) == ["waits for a worker"]


# update_worker -----------------------------------------------------------------------------------------------------


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
