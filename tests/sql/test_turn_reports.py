"""The reports of a turn: each counts once, or is refused with a reason, and spoils no other."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.support.turns import WORK, arguments, claimed, turn_of, word, work


def test_a_turn_hands_out_what_its_own_reports_made_available(api: Any, worker: int) -> None:
    first, second = (api.add_job("t", {"n": n}, queue_name="serial").id for n in range(2))
    (job,) = work(api, worker).jobs
    assert (job.id, job.payload) == (first, {"n": 0})
    turn = work(api, worker, [(job.id, job.run)])
    assert ([job.id for job in turn.jobs], turn.refused) == ([second], [])
    assert api.get_job(first).state == "completed"


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
    assert 60 < (after.run_at - api.at()).total_seconds() <= 90.5


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


def test_results_are_told_by_their_place_whatever_the_bounds_of_their_array(api: Any, worker: int) -> None:
    """PostgreSQL's arrays may begin at any number: '[0:1]={7,8}'."""
    first, second, third = claimed(api, worker, *"tuv")
    api.rows(
        "select * from pyworker.work(%s, %s::text::bigint[], %s::text::bigint[], %s::text::jsonb[], %s, 0)",
        [
            worker,
            f"[0:1]={{{first.id},{second.id}}}",
            f"[-1:0]={{{first.run},{second.run}}}",
            "[0:1]={7,8}",
            Jsonb([word(third, "release")]),
        ],
    )
    assert [api.get_job(job.id).result for job in (first, second)] == [7, 8]


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


def test_a_turn_without_room_only_reports(api: Any, worker: int) -> None:
    api.add_job("t")
    turn = work(api, worker, room=0)
    assert (turn.jobs, turn.again) == ([], 2.5)


def test_a_cancellation_without_an_error_says_who_cancelled(api: Any, worker: int) -> None:
    (job,) = claimed(api, worker, "t")
    work(api, worker, (), [word(job, "cancel")], 0)
    assert api.get_job(job.id).last_error == "cancelled by its handler"


def said(job: Any, message: Any = "m", **more: Any) -> dict[str, Any]:
    return {"id": job.id, "run": job.run, "do": "log", "message": message, **more}


def test_a_turn_keeps_lines_of_jobs_that_run_on_and_of_jobs_that_end(api: Any, worker: int) -> None:
    done, failed, snoozed, running = claimed(api, worker, *"abcd")
    reports = [
        word(failed, "fail", error="boom"), word(snoozed, "snooze", delay_s=5),
        *(said(job) for job in (done, failed, snoozed)), said(running, "page 4", level="warning", ago_s=60),
    ]  # fmt: skip
    assert work(api, worker, [(done.id, done.run)], reports, 0).refused == []
    states = [api.get_job(job.id).state for job in (done, failed, snoozed, running)]
    assert states == ["completed", "retryable", "scheduled", "running"]
    for job in (done, failed, snoozed):
        assert [(line.run, line.attempt, line.message) for line in api.job_log(job.id)] == [(job.run, 1, "m")]
    (line,) = api.job_log(running.id)
    assert (line.level, line.message) == ("warning", "page 4")
    assert 60 <= (api.at() - line.at).total_seconds() < 70


def test_lines_of_an_earlier_run_are_left_out(api: Any, worker: int) -> None:
    (job,) = claimed(api, worker, "t")
    work(api, worker, (), [word(job, "release")], 0)
    (later,) = work(api, worker).jobs
    assert work(api, worker, (), [said(job, "zombie"), said(later, "mine")], 0).refused == []
    assert [line.message for line in api.job_log(job.id)] == ["mine"]


def test_of_many_lines_a_turn_keeps_the_newest_200(api: Any, worker: int) -> None:
    (job,) = claimed(api, worker, "t")
    reports = [said(job, f"{n}") for n in range(300)]
    assert work(api, worker, [(job.id, job.run)], reports, 0).refused == []
    assert [line.message for line in api.job_log(job.id)] == [f"{n}" for n in range(100, 300)]


def test_a_malformed_line_spoils_no_report(api: Any, worker: int) -> None:
    job, other = claimed(api, worker, "t", "t")
    heard: list[str] = []
    api.conn.add_notice_handler(lambda note: heard.append(note.message_primary or ""))
    wrong = [said(job, None), said(job, level="loud"), said(job, ago_s="x"), {**said(job), "id": "x"}]
    reports = [*wrong, 5, word(other, "fail", error="boom"), said(job)]
    turn = work(api, worker, [(job.id, job.run)], reports, 0)
    assert [why for _, _, why in turn.refused] == ["malformed: it must be an object, got number"]
    assert [api.get_job(each.id).state for each in (job, other)] == ["completed", "retryable"]
    assert [line.message for line in api.job_log(job.id)] == ["m"]
    (warning,) = heard
    assert warning.startswith(
        "work: malformed items are left out: item 1: message must not be null; item 2: level must be"
    )
