"""read_reports: a runner sends what its JSON library wrote, and no report is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.turns import Turn, claimed, turn_of

TURN = """
    select w.* from pyworker.read_reports(%s::bigint[], %s::bigint[], %s) r,
        pyworker.work(%s, r.done_ids, r.done_runs, r.done_results, r.reports, %s) w"""


def report(api: Any, worker: int, *reports: tuple[Any, Any], room: int = 0) -> Turn:
    """A turn with these reports: a job, and a text or what a JSON library makes one of."""
    ids, runs = ([getattr(job, name) for job, _ in reports] for name in ("id", "run"))
    texts = [text if text is None or isinstance(text, str) else json.dumps(text) for _, text in reports]
    return turn_of(api.rows(TURN, [ids, runs, texts, worker, room]))


def result(api: Any, job: Any) -> Any:
    return api.value("select result from pyworker.finished_jobs where id = %s", [job.id])


DONE = {"do": "done"}


def test_each_end_of_a_run_is_one_text(api: Any, worker: int) -> None:
    ends = [
        DONE, {"do": "fail", "error": "boom"}, {"do": "discard"}, {"do": "cancel"}, {"do": "not_started"},
        {"do": "snooze", "delay_s": 60}, {"do": "release"},
    ]  # fmt: skip
    jobs = claimed(api, worker, *"abcdefg")
    assert report(api, worker, *zip(jobs, ends, strict=True)).refused == []
    assert [api.get_job(job.id).state for job in jobs] == [
        "completed", "retryable", "discarded", "cancelled", "retryable", "scheduled", "available"
    ]  # fmt: skip


def test_results_are_kept_and_null_is_none(api: Any, worker: int) -> None:
    kept = [{"a": [1, None]}, 0, False, "", []]
    jobs = claimed(api, worker, *"abcdefg")
    ends = [*({**DONE, "result": each} for each in kept), {**DONE, "result": None}, DONE]
    assert report(api, worker, *zip(jobs, ends, strict=True)).refused == []
    assert [result(api, job) for job in jobs] == [*kept, None, None]
    assert api.value("select count(*) from pyworker.finished_jobs where result is null") == 2


def test_a_turn_without_reports_claims(api: Any, worker: int) -> None:
    api.add_job("t")
    assert len(report(api, worker, room=5).jobs) == 1
    assert turn_of(api.rows(TURN, [None, None, None, worker, 0])).refused == []


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        (r"a\u0000b", "a\ufffdb"),
        (r"\u0000\u0000", "\ufffd\ufffd"),
        (r"\ud800", "\ufffd"),
        (r"\uDC00", "\ufffd"),
        (r"\ud83d\ude00", "😀"),
        (r"\uD83D\uDE00\ude00", "😀\ufffd"),
        (r"\ud83d\ud83d\ude00", "\ufffd😀"),
        (r"\ud83dx\ude00", "\ufffdx\ufffd"),
        (r"\\u0000", r"\u0000"),
        (r"\\\u0000", "\\\ufffd"),
        (r"\\\\ud800 \n", "\\\\ud800 \n"),
        (r"\\\\\ud800", "\\\\\ufffd"),
    ],
)
def test_what_jsonb_cannot_hold_is_replaced_and_nothing_else(
    api: Any, worker: int, written: str, stored: str
) -> None:
    done, failed, beside = claimed(api, worker, *"abc")
    ends = [
        (done, f'{{"do": "done", "result": ["{written}", "\\u0000"]}}'),
        (failed, f'{{"error": "{written}\\u0000", "do": "fail"}}'),
        (beside, DONE),
    ]
    assert report(api, worker, *ends).refused == []
    assert result(api, done) == [stored, "\ufffd"]
    assert api.get_job(failed.id).last_error == stored + "\ufffd"
    assert api.get_job(beside.id).state == "completed"


NO_OBJECT = "its report is malformed: it must be a JSON object"
NO_VERB = "its report is malformed: do must be fail, cancel, discard, snooze, release or not_started, got "


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"do": "done", "result": 1e400000}', "its report is refused: value overflows numeric format"),
        ('{"do": "done", "result": %s}' % ("[" * 20000 + "]" * 20000), "its report is refused: stack depth"),
        ('{"do": "done"', "its report is refused: invalid input syntax for type json"),
        ("", "its report is refused: invalid input syntax for type json"),
        (None, NO_OBJECT),
        ("null", NO_OBJECT),
        ("7", NO_OBJECT),
        ("[]", NO_OBJECT),
        ({}, f"{NO_VERB}none"),
        ({"do": None}, f"{NO_VERB}null"),
        ({"do": "Done"}, f'{NO_VERB}"Done"'),
        ({"do": "snooze"}, "its report is malformed: snooze needs delay_s"),
        (
            {"do": "fail", "delay_s": -1},
            "its report is malformed: delay_s must be a number of seconds from 0",
        ),
    ],
)
def test_a_report_that_cannot_count_fails_its_run_and_spoils_no_other(
    api: Any, worker: int, text: Any, why: str
) -> None:
    job, beside = claimed(api, worker, *"ab")
    assert report(api, worker, (job, text), (beside, {**DONE, "result": "\0"})).refused == []
    after = api.get_job(job.id)
    assert (after.state, after.attempts) == ("retryable", 1)
    assert after.last_error.startswith(why)
    assert result(api, beside) == "\ufffd"


def test_ids_and_runs_in_a_text_are_not_read(api: Any, worker: int) -> None:
    job, other = claimed(api, worker, *"ab")
    assert report(api, worker, (job, {**DONE, "id": other.id, "run": other.run})).refused == []
    assert [api.get_job(each.id).state for each in (job, other)] == ["completed", "running"]


def test_a_started_job_that_must_not_run_twice_cannot_be_snoozed_and_is_discarded(
    api: Any, worker: int
) -> None:
    (job,) = claimed(api, worker, "t", delivery="at_most_once")
    assert api.start_job(job.id, job.run) is True
    assert report(api, worker, (job, {"do": "snooze", "delay_s": 5})).refused == []
    after = api.get_job(job.id)
    assert after.state == "discarded"
    assert "was started and must not be run twice" in after.last_error


def test_before_it_is_started_such_a_job_can_be_snoozed(api: Any, worker: int) -> None:
    (job,) = claimed(api, worker, "t", delivery="at_most_once")
    assert report(api, worker, (job, {"do": "snooze", "delay_s": 5})).refused == []
    assert api.get_job(job.id).state == "scheduled"


def test_stale_reports_are_refused(api: Any, worker: int) -> None:
    (job,) = claimed(api, worker, "t")
    later = job._replace(run=job.run + 1)
    assert report(api, worker, (job, DONE), (later, DONE), (job, {"do": "fail"})).refused == [
        (job.id, job.run + 1, "stale"), (job.id, job.run, "stale")
    ]  # fmt: skip
    assert api.get_job(job.id).state == "completed"


def test_lines_of_logs_come_through(api: Any, worker: int) -> None:
    (job,) = claimed(api, worker, "t")
    line = {"do": "log", "message": "page \0", "level": "warning"}
    assert report(api, worker, (job, line), (job, DONE)).refused == []
    assert [(line.level, line.message) for line in api.job_log(job.id)] == [("warning", "page \ufffd")]


def test_lists_of_unequal_length_are_refused(api: Any) -> None:
    with api.refusal("PW001", "job_ids, runs and texts must be of one length, got 2, 1 and 0"):
        api.rows("select * from pyworker.read_reports('{1,2}', '{1}', '{}')")
