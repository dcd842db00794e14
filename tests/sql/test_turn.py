"""work, one call a turn: reports, then promotion, then claim, all or nothing."""

from __future__ import annotations

import json
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

WORK = "select * from pyworker.work(%s, %s::bigint[], %s::bigint[], %s::jsonb[], %s, %s, %s, %s, %s)"


@dataclass
class Turn:
    jobs: list[Any]
    refused: list[tuple[int | None, int | None, str]]
    again: float


def arguments(
    worker: Any,
    done: Any = (),
    reports: Any = None,
    room: Any = 10,
    results: Any = None,
    tasks: Any = None,
    queues: Any = None,
    flags: Any = None,
) -> list[Any]:
    ids, runs = ([job[at] for job in done] for at in (0, 1))
    return [
        worker,
        ids,
        runs,
        results,
        None if reports is None else Jsonb(reports),
        room,
        tasks,
        queues,
        flags,
    ]


def turn_of(rows: list[Any]) -> Turn:
    *before, last = rows
    assert last.kind == "turn"
    assert 0 <= last.again_in_s <= 2.5
    assert {row.kind for row in before} <= {"job", "refused"}
    return Turn(
        [row for row in before if row.kind == "job"],
        [(row.id, row.run, row.why) for row in before if row.kind == "refused"],
        last.again_in_s,
    )


def work(api: Any, *args: Any, **named: Any) -> Turn:
    return turn_of(api.rows(WORK, arguments(*args, **named)))


def later(actor: Any, *args: Any, **named: Any) -> Future[Any]:
    return actor.session.start(WORK, arguments(*args, **named))


def claimed(api: Any, worker: int, *tasks: str, **options: Any) -> list[Any]:
    """Running jobs of these tasks, one of each."""
    for task in tasks:
        api.add_job(task, **options)
    jobs = work(api, worker, room=len(tasks)).jobs
    assert sorted(job.task_identifier for job in jobs) == sorted(tasks)
    return sorted(jobs, key=lambda job: job.task_identifier)


def word(job: Any, do: str, **more: Any) -> dict[str, Any]:
    return {"id": job.id, "run": job.run, "do": do, **more}


def test_a_turn_hands_out_what_its_own_reports_made_available(api: Any, worker: int) -> None:
    first, second = (api.add_job("t", {"n": n}, queue_name="serial").id for n in range(2))
    (job,) = work(api, worker).jobs
    assert (job.id, job.payload) == (first, {"n": 0})
    turn = work(api, worker, [(job.id, job.run)])
    assert ([job.id for job in turn.jobs], turn.refused) == ([second], [])
    assert api.get_job(first).state == "completed"


def test_a_job_comes_with_all_that_a_handler_needs(api: Any, worker: int) -> None:
    api.define_task("t", timeout="90 seconds")
    added = api.add_job(
        "t", {"a": 1}, queue_name="q", job_key="k", flags=["f"], meta={"m": 2}, priority=3, max_attempts=7,
        delivery="at_most_once", sequence_policy={"key": "s"},
    )  # fmt: skip
    (job,) = work(api, worker).jobs
    assert job.run == api.get_job(added.id).run
    assert (job.task_identifier, job.payload, job.attempts, job.max_attempts) == ("t", {"a": 1}, 1, 7)
    assert (job.queue_name, job.key, job.flags, job.meta) == ("q", "k", {"f": True}, {"m": 2})
    assert (job.sequence_key, job.delivery, job.crashes) == (added.sequence_key, "at_most_once", 0)
    assert job.timeout_s == 90
    assert (job.run_at_s, job.created_at_s) == (added.run_at.timestamp(), added.created_at.timestamp())


def test_a_task_without_a_timeout_has_none(api: Any, worker: int) -> None:
    assert claimed(api, worker, "t")[0].timeout_s is None


@pytest.mark.parametrize(
    ("report", "state", "attempts"),
    [
        ({"do": "fail", "error": "boom"}, "retryable", 1),
        ({"do": "fail", "error": "boom", "delay_s": 60}, "retryable", 1),
        ({"do": "discard", "error": "boom"}, "discarded", 1),
        ({"do": "cancel", "error": "boom"}, "cancelled", 1),
        ({"do": "not_started", "error": "boom"}, "retryable", 1),
        ({"do": "snooze", "delay_s": 60}, "scheduled", 0),
        ({"do": "release"}, "available", 0),
    ],
)
def test_each_report_ends_its_run(api: Any, worker: int, report: Any, state: str, attempts: int) -> None:
    (job,) = claimed(api, worker, "t")
    turn = work(api, worker, (), [{"id": job.id, "run": job.run, **report}], 0)
    assert (turn.jobs, turn.refused) == ([], [])
    after = api.get_job(job.id)
    assert (after.state, after.attempts) == (state, attempts)
    assert after.last_error == report.get("error")


def test_a_failure_may_change_the_payload_and_say_when(api: Any, worker: int) -> None:
    (job,) = claimed(api, worker, "t")
    work(api, worker, (), [word(job, "fail", error="boom", delay_s=90.5, payload=[2])], 0)
    after = api.get_job(job.id)
    assert after.payload == [2]
    assert 89 < (after.run_at - api.at()).total_seconds() <= 90.5


@pytest.mark.parametrize(
    "report", [{"do": "release"}, {"do": "fail", "delay_s": 0}, {"do": "snooze", "delay_s": 0}]
)
def test_the_same_turn_may_claim_what_it_gave_back(api: Any, worker: int, report: Any) -> None:
    (job,) = claimed(api, worker, "t")
    (again,) = work(api, worker, (), [{"id": job.id, "run": job.run, **report}]).jobs
    assert again.id == job.id
    assert again.run > job.run


def test_a_mixture_of_reports_is_settled_by_one_call(api: Any, worker: int) -> None:
    a, b, c, d, e, f = claimed(api, worker, *"abcdef")
    turn = work(
        api, worker, [(a.id, a.run), (f.id, f.run)],
        [word(e, "release"), word(d, "snooze", delay_s=5), word(c, "cancel"), word(b, "fail")],
        0, results=[Jsonb({"sum": 3}), None],
    )  # fmt: skip
    assert turn.refused == []
    states = [api.get_job(job.id).state for job in (a, b, c, d, e, f)]
    assert states == ["completed", "retryable", "cancelled", "scheduled", "available", "completed"]
    assert api.value("select result from pyworker.finished_jobs where id = %s", [a.id]) == {"sum": 3}


def test_ids_and_runs_may_be_strings(api: Any, worker: int) -> None:
    (job,) = claimed(api, worker, "t")
    report = {"id": str(job.id), "run": str(job.run), "do": "discard"}
    assert work(api, worker, (), [report], 0).refused == []
    assert api.get_job(job.id).state == "discarded"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"id": None}, "id must be a bigint, got null"),
        ({"id": "x"}, 'id must be a bigint, got "x"'),
        ({"id": 1.5}, "id must be a bigint, got 1.5"),
        ({"id": 2**63}, f"id must be a bigint, got {2**63}"),
        ({"id": True}, "id must be a bigint, got true"),
        ({"run": None}, "run must be a bigint, got null"),
        ({"run": [1]}, "run must be a bigint, got [1]"),
        ({"do": None}, "do must be fail, cancel, discard, snooze, release or not_started, got null"),
        ({"do": "Fail"}, 'do must be fail, cancel, discard, snooze, release or not_started, got "Fail"'),
        ({"do": "done"}, 'do must be fail, cancel, discard, snooze, release or not_started, got "done"'),
        ({"do": "snooze"}, "snooze needs delay_s"),
        ({"do": "snooze", "delay_s": None}, "snooze needs delay_s"),
        ({"delay_s": -1}, "delay_s must be a number of seconds from 0 to 1000 years, got -1"),
        ({"delay_s": "5"}, 'delay_s must be a number of seconds from 0 to 1000 years, got "5"'),
        ({"delay_s": 1e12}, "delay_s must be a number of seconds from 0 to 1000 years, got 1000000000000"),
        ({"delay_s": 1e300}, "delay_s must be a number of seconds from 0 to 1000 years, got 1"),
    ],
)
def test_a_malformed_report_is_refused_and_spoils_no_other(
    api: Any, worker: int, change: Any, words: str
) -> None:
    a, b = claimed(api, worker, "a", "b")
    report = {**word(a, "fail"), **change}
    turn = work(api, worker, [(b.id, b.run)], [report], 0)
    ((job_id, run, why),) = turn.refused
    assert why.startswith(f"malformed: {words}")
    assert job_id == (None if "id" in change else a.id)
    assert run == (None if "run" in change else a.run)
    assert (api.get_job(a.id).state, api.get_job(b.id).state) == ("running", "completed")


@pytest.mark.parametrize("report", [7, "x", None, [], [[]]])
def test_a_report_that_is_no_object_is_refused(api: Any, worker: int, report: Any) -> None:
    (refused,) = work(api, worker, (), [report], 0).refused
    assert refused[:2] == (None, None)
    assert refused[2].startswith("malformed: it must be an object, got ")


def test_a_null_among_the_completed_jobs_is_refused_and_spoils_no_other(api: Any, worker: int) -> None:
    a, b, c = claimed(api, worker, *"abc")
    turn = work(api, worker, [(a.id, a.run), (b.id, None), (None, c.run)], None, 0)
    why = "malformed: done_ids and done_runs must not be null"
    assert turn.refused == [(b.id, None, why), (None, c.run, why)]
    assert [api.get_job(job.id).state for job in (a, b, c)] == ["completed", "running", "running"]


def test_the_last_bigint_is_a_bigint(api: Any, worker: int) -> None:
    last = 2**63 - 1
    assert work(api, worker, (), [{"id": last, "run": -last, "do": "fail"}], 0).refused == [
        (last, -last, "stale")
    ]


@pytest.mark.parametrize("do", ["fail", "cancel", "discard", "not_started", "snooze", "release"])
def test_a_report_of_an_earlier_run_is_stale(api: Any, worker: int, do: str) -> None:
    (old,) = claimed(api, worker, "t")
    work(api, worker, (), [word(old, "release")], 0)
    (new,) = work(api, worker).jobs
    turn = work(api, worker, (), [word(old, do, delay_s=1)], 0)
    assert turn.refused == [(old.id, old.run, "stale")]
    assert work(api, worker, [(old.id, old.run)], None, 0).refused == [(old.id, old.run, "stale")]
    assert (api.get_job(old.id).state, api.get_job(old.id).run) == ("running", new.run)


def test_a_second_report_about_a_run_is_stale(api: Any, worker: int) -> None:
    a, b, c = claimed(api, worker, *"abc")
    turn = work(
        api, worker, [(a.id, a.run), (b.id, b.run), (b.id, b.run)],
        [word(a, "fail"), word(c, "snooze", delay_s=1), word(c, "discard")], 0,
    )  # fmt: skip
    assert turn.refused == [(b.id, b.run, "stale"), (a.id, a.run, "stale"), (c.id, c.run, "stale")]
    assert [api.get_job(job.id).state for job in (a, b, c)] == ["completed", "completed", "scheduled"]


@pytest.mark.parametrize("beside", [-1, 1])
@pytest.mark.parametrize("do", ["done", "fail"])
def test_of_two_runs_of_a_job_only_the_running_one_counts(
    api: Any, worker: int, do: str, beside: int
) -> None:
    (job,) = claimed(api, worker, "t")
    done = [(job.id, job.run + beside), (job.id, job.run)] if do == "done" else []
    reports = [{"id": job.id, "run": run, "do": do} for run in (job.run, job.run + beside) if do != "done"]
    assert work(api, worker, done, reports, 0).refused == [(job.id, job.run + beside, "stale")]
    assert api.get_job(job.id).state == ("completed" if do == "done" else "retryable")


def test_a_malformed_report_does_not_make_the_next_one_about_its_run_stale(api: Any, worker: int) -> None:
    (job,) = claimed(api, worker, "t")
    turn = work(api, worker, (), [word(job, "snooze"), word(job, "discard")], 0)
    assert [why for _, _, why in turn.refused] == ["malformed: snooze needs delay_s"]
    assert api.get_job(job.id).state == "discarded"


def test_the_same_call_again_changes_nothing(api: Any, worker: int) -> None:
    a, b = claimed(api, worker, "a", "b")
    call = arguments(worker, [(a.id, a.run)], [word(b, "fail", delay_s=60)], 0)
    assert turn_of(api.rows(WORK, call)).refused == []
    before = [api.get_job(job.id) for job in (a, b)]
    assert [why for *_, why in turn_of(api.rows(WORK, call)).refused] == ["stale", "stale"]
    assert [api.get_job(job.id) for job in (a, b)] == before


def test_a_job_that_must_not_run_twice_is_not_snoozed_and_its_worker_is_told(api: Any, worker: int) -> None:
    (job,) = claimed(api, worker, "t", delivery="at_most_once")
    assert api.start_job(job.id, job.run) is True
    ((job_id, _, why),) = work(api, worker, (), [word(job, "snooze", delay_s=5)], 0).refused
    assert job_id == job.id
    assert why.startswith("malformed: the job was started and must not be run twice")
    assert api.get_job(job.id).state == "running"
    assert work(api, worker, [(job.id, job.run)], None, 0).refused == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"room": -1}, "max_jobs must not be negative, got -1"),
        ({"room": None}, "max_jobs must not be negative, got NULL"),
        ({"reports": {}}, "reports must be a JSON array of objects, got object"),
        ({"reports": "x"}, "reports must be a JSON array of objects, got string"),
        ({"results": [None]}, "must be of one length, got 2, 2 and 1"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused_as_a_whole(
    api: Any, worker: int, change: Any, words: str
) -> None:
    a, b = claimed(api, worker, "a", "b")
    with api.refusal("PW001", f"work: .*{words}"):
        work(api, worker, **{"done": [(a.id, a.run), (b.id, b.run)], **change})
    assert api.get_job(a.id).state == "running"


def test_reports_may_not_be_json_null(api: Any, worker: int) -> None:
    with api.refusal("PW001", "reports must be a JSON array of objects, got null"):
        api.rows("select * from pyworker.work(%s, null, null, null, 'null', 1)", [worker])


def test_arrays_of_unequal_length_are_refused(api: Any, worker: int) -> None:
    with api.refusal("PW001", "done_ids, done_runs and done_results must be of one length, got 2, 1 and 0"):
        api.rows("select * from pyworker.work(%s, '{1,2}', '{1}', null, null, 1)", [worker])


@pytest.mark.parametrize("end", ["close", "crash", "never was"])
@pytest.mark.parametrize("room", [0, 5])
def test_of_a_worker_that_has_ended_nothing_counts(api: Any, worker: int, end: str, room: int) -> None:
    (job,) = claimed(api, worker, "t")
    if end == "close":
        api.close_worker(worker)
    elif end == "crash":
        api.report_crash(worker, [job.id], [job.run])
    (again,) = (
        claimed(api, api.register_worker(), "t")
        if end == "never was"
        else work(api, api.register_worker()).jobs
    )
    me = 4711 if end == "never was" else worker
    with api.refusal("PW004", f"work: worker {me} is unknown, was closed or was declared dead"):
        work(api, me, [(again.id, again.run)], None, room)
    assert api.get_job(again.id).state == "running"


def test_a_turn_that_is_rolled_back_leaves_nothing(api: Any, worker: int) -> None:
    a, b = claimed(api, worker, "a", "b")
    added = api.add_job("c")
    with api.conn.transaction(force_rollback=True):
        assert len(work(api, worker, [(a.id, a.run)], [word(b, "release")]).jobs) == 2
    assert [api.get_job(job.id).state for job in (a, b, added)] == ["running", "running", "available"]
    assert work(api, worker, [(a.id, a.run)], [word(b, "release")], 0).refused == []


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_turn_works_at_any_isolation_level(api: Any, worker: int, level: str) -> None:
    a, b, c = claimed(api, worker, *"abc")
    api.add_job("d", queue_name="q")
    with api.conn.transaction():
        api.rows(f"set transaction isolation level {level}")
        turn = work(api, worker, [(a.id, a.run)], [word(b, "fail"), word(c, "release")])
    assert turn.refused == []
    taken = {job.task_identifier for job in [*turn.jobs, *work(api, worker).jobs]}
    assert taken == {"c", "d"}


def test_a_turn_takes_only_what_it_asks_for(api: Any, worker: int) -> None:
    for task, options in {"a": {}, "b": {"queue_name": "q"}, "c": {"flags": ["f"]}}.items():
        api.add_job(task, **options)
    assert [job.task_identifier for job in work(api, worker, tasks=["c"], flags=["f"]).jobs] == []
    assert [job.task_identifier for job in work(api, worker, queues=["q"]).jobs] == ["b"]
    assert [job.task_identifier for job in work(api, worker, flags=["f"]).jobs] == ["a"]
    assert [job.task_identifier for job in work(api, worker, room=1).jobs] == ["c"]


def test_a_turn_without_room_only_reports(api: Any, worker: int) -> None:
    api.add_job("t")
    turn = work(api, worker, room=0)
    assert (turn.jobs, turn.again) == ([], 2.5)


def test_after_a_full_turn_there_may_be_more(api: Any, worker: int) -> None:
    api.add_jobs([{"identifier": "t"}, {"identifier": "t"}])
    assert work(api, worker, room=1).again == 0
    assert work(api, worker, room=5).again > 0


def test_an_idle_worker_may_wait(api: Any, worker: int) -> None:
    assert max(work(api, worker).again for _ in range(2)) >= 0.5


def test_a_worker_comes_again_when_a_job_falls_due(api: Any, worker: int) -> None:
    work(api, worker)
    api.add_job("t", run_at=api.at("1 second"))
    assert 0.5 < work(api, worker).again <= 1


def test_a_worker_comes_again_soon_while_a_transaction_may_have_added_silently(
    api: Any, actor: Any, worker: int
) -> None:
    producer = actor()
    producer.begin()
    producer.add_job("t")  # no worker waits yet, so its commit notifies none
    assert work(api, worker).again <= 0.25
    producer.commit()
    assert len(work(api, worker).jobs) == 1


def test_of_two_turns_with_the_same_jobs_in_other_orders_none_deadlocks(
    api: Any, actor: Any, worker: int
) -> None:
    a, b, c, d = claimed(api, worker, *"abcd")
    gate, one, two = actor(), actor(), actor()
    gate.begin()
    gate.rows(f"select from pyworker.live_jobs where id = {b.id} for update")
    first = later(
        one, worker, [(d.id, d.run)], [word(c, "release"), word(b, "fail"), word(a, "snooze", delay_s=9)], 0
    )
    one.blocked(first)
    second = later(
        two, worker, [(a.id, a.run)], [word(d, "fail"), word(b, "cancel"), word(c, "snooze", delay_s=9)], 0
    )
    two.blocked(second)
    gate.rollback()
    assert turn_of(first.result(20)).refused == []
    assert {why for *_, why in turn_of(second.result(20)).refused} == {"stale"}
    assert [api.get_job(job.id).state for job in (a, b, c, d)] == [
        "scheduled",
        "retryable",
        "available",
        "completed",
    ]


@pytest.mark.parametrize("fate", ["commit", "rollback", "kill"])
def test_a_report_waits_for_an_open_turn_about_the_same_run(
    api: Any, actor: Any, worker: int, fate: str
) -> None:
    (job,) = claimed(api, worker, "t")
    other = actor()
    other.begin()
    work(other, worker, [(job.id, job.run)], None, 0)
    mine = actor()
    waiting = later(mine, worker, (), [word(job, "discard"), {"id": 0, "run": 0, "do": "release"}], 0)
    mine.blocked(waiting)
    getattr(other, fate)()
    refused = turn_of(waiting.result(20)).refused
    assert refused == ([(job.id, job.run, "stale")] if fate == "commit" else []) + [(0, 0, "stale")]
    assert api.get_job(job.id).state == ("completed" if fate == "commit" else "discarded")


@pytest.fixture
def ear(actor: Any) -> Any:
    """Call it for the number of notifications since the last call."""
    listener = actor()
    listener.rows("listen pyworker")

    def heard() -> int:
        listener.rows("select pg_notify('pyworker', 'end')")
        count = 0
        for notification in listener.conn.notifies(timeout=10):
            if notification.payload == "end":
                return count
            count += 1
        raise AssertionError("the listener did not receive its own notification")

    return heard


def test_a_turn_does_not_wake_its_own_worker_for_the_job_that_it_takes(
    api: Any, worker: int, ear: Any
) -> None:
    for key in ("queue_name", "sequence_policy"):
        for _ in range(3):
            api.add_job("t", **{key: "q" if key == "queue_name" else {"key": "s"}})
    jobs = work(api, worker).jobs
    ear()
    while jobs:
        jobs = work(api, worker, [(job.id, job.run) for job in jobs]).jobs
        assert ear() == 0


@pytest.mark.parametrize("room", [0, 1, 10])
def test_a_turn_wakes_others_for_the_jobs_that_it_leaves(api: Any, worker: int, ear: Any, room: int) -> None:
    for task in ("mine", "theirs"):
        api.add_job(task, queue_name="q")
    other = api.register_worker()
    (job,) = work(api, worker, tasks=["mine"]).jobs
    work(api, other, tasks=["theirs"])  # it waits
    if room == 1:
        api.add_job("mine")
    ear()
    work(api, worker, [(job.id, job.run)], None, room, tasks=["mine"])
    assert ear() >= 1
    assert len(work(api, other, tasks=["theirs"]).jobs) == 1


def test_a_session_that_notifies_nobody_may_prepare_its_turn(api: Any, worker: int, ear: Any) -> None:
    first = claimed(api, worker, "t")[0]
    for _ in range(2):
        api.add_job("t", queue_name="q")
    (second,) = work(api, worker).jobs
    work(api, api.register_worker())
    ear()
    api.rows("set pyworker.notify = off")
    work(api, worker, [(first.id, first.run), (second.id, second.run)], None, 0)
    assert ear() == 0
    api.rows("reset pyworker.notify")


def test_after_a_turn_adds_of_the_same_transaction_notify_as_ever(api: Any, worker: int, ear: Any) -> None:
    (job,) = claimed(api, worker, "t")
    work(api, worker)  # it waits
    ear()
    with api.conn.transaction():
        work(api, worker, [(job.id, job.run)], None, 0)
        api.add_job("t")
    assert ear() == 1


@pytest.mark.parametrize("reports", ["none", "done", "fail"])
def test_only_a_turn_with_reports_waits_for_the_disk(api: Any, worker: int, reports: str) -> None:
    (job,) = claimed(api, worker, "t")
    api.add_job("t")
    with api.conn.transaction():
        api.rows("set local synchronous_commit = off")
        work(
            api, worker, [(job.id, job.run)] if reports == "done" else (),
            [word(job, "fail")] if reports == "fail" else None,
        )  # fmt: skip
        assert api.value("show synchronous_commit") == ("off" if reports == "none" else "on")


def test_a_thousand_reports_are_one_call(api: Any, worker: int) -> None:
    api.add_jobs([{"identifier": "t"}] * 1000)
    jobs = work(api, worker, room=1000).jobs
    reports = [word(job, "fail", error=json.dumps({"n": n})) for n, job in enumerate(jobs[:500])]
    turn = work(api, worker, [(job.id, job.run) for job in jobs[500:]], reports, 0)
    assert turn.refused == []
    states = api.rows("select state, count(*) as n from pyworker.live_jobs group by 1")
    assert [(row.state, row.n) for row in states] == [("retryable", 500)]


def test_open_worker_says_how_to_go_on(api: Any) -> None:
    opened = api.open_worker({"host": "h"})
    assert opened == {
        "worker": opened["worker"],
        "channel": "pyworker",
        "ttl_s": 20,
        "beat_s": 1,
        "stop_after_s": 15,
    }
    assert api.value("select info from pyworker.live_workers where id = %s", [opened["worker"]]) == {
        "host": "h"
    }
    api.configure(worker_ttl="1 minute")
    assert api.open_worker()["stop_after_s"] == 45


@pytest.mark.parametrize("protocol", [0, 2, None])
def test_open_worker_refuses_a_protocol_that_it_does_not_speak(api: Any, protocol: int | None) -> None:
    with api.refusal("PW006", f"speaks protocol 1, got {'NULL' if protocol is None else protocol}"):
        api.open_worker({}, protocol)


@pytest.mark.parametrize("info", ["[]", "7", "null", None])
def test_open_worker_refuses_info_that_is_no_object(api: Any, info: str | None) -> None:
    with api.refusal("PW001", "open_worker: info must be a JSON object"):
        api.open_worker(info)


def test_close_worker_hands_back_and_may_be_called_twice(api: Any, worker: int) -> None:
    (job,) = claimed(api, worker, "t")
    api.close_worker(worker)
    api.close_worker(worker)
    api.close_worker(4711)
    assert (api.get_job(job.id).state, api.get_job(job.id).attempts) == ("available", 0)


def test_snooze_jobs_postpones_each_job_by_its_delay(api: Any, worker: int) -> None:
    a, b = claimed(api, worker, "a", "b")
    accepted = api.snooze_jobs([b.id, a.id, 77], [b.run, a.run, 1], ["2 hours", "1 hour", "1 s"])
    assert sorted(accepted) == sorted([a.id, b.id])
    ahead = [(api.get_job(job.id).run_at - api.at()).total_seconds() for job in (a, b)]
    assert ahead == pytest.approx([3600, 7200], abs=60)


@pytest.mark.parametrize("delay", ["-1 s", "1001 years", None])
def test_snooze_jobs_refuses_a_delay_that_is_none(api: Any, worker: int, delay: str | None) -> None:
    a, b = claimed(api, worker, "a", "b")
    with api.refusal("PW001", "snooze_jobs: each delay must be from 0 to 1000 years, got"):
        api.snooze_jobs([a.id, b.id], [a.run, b.run], ["1 s", delay])
    assert api.get_job(a.id).state == "running"


def test_snooze_jobs_refuses_arrays_of_unequal_length(api: Any) -> None:
    with api.refusal("PW001", "must be of one length, got 1, 1 and 2"):
        api.snooze_jobs([1], [1], ["1 s", "1 s"])


def test_once_is_true_once_for_each_job_and_name_over_all_runs(api: Any, worker: int) -> None:
    a, b = claimed(api, worker, "a", "b")
    assert api.once(a.id, a.run, "mail") is True
    assert api.once(a.id, a.run, "mail") is False
    assert api.once(a.id, a.run, "bill") is True
    assert api.once(b.id, b.run, "mail") is True
    work(api, worker, (), [word(a, "release")], 0)
    (again,) = work(api, worker).jobs
    assert api.once(again.id, again.run, "mail") is False
    with api.refusal("PW002", f"once: job {a.id} is not held by run {a.run} any more"):
        api.once(a.id, a.run, "other")


@pytest.mark.parametrize("name", ["", None, "x" * 401])
def test_once_of_a_job_refuses_a_name_that_is_none(api: Any, worker: int, name: str | None) -> None:
    (job,) = claimed(api, worker, "t")
    with api.refusal("PW001", "once: name must be 1 to 400 characters long"):
        api.once(job.id, job.run, name)


def test_once_keeps_its_claim_until_its_transaction_ends(api: Any, actor: Any, worker: int) -> None:
    (job,) = claimed(api, worker, "t")
    handler, other = actor(), actor()
    handler.begin()
    assert handler.once(job.id, job.run, "mail") is True
    waiting = other.later.cancel_job(job.id, True)
    other.blocked(waiting)
    handler.commit()
    waiting.result(20)
    with pytest.raises(psycopg.Error, match="is not held by run"):
        api.once(job.id, job.run, "bill")
