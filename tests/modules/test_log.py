"""log_job, log_jobs, job_log: what the runs of a job say is kept with it, within bounds."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.support.waits import again, claimed


def messages(api: Any, job_id: int) -> list[str]:
    return [line.message for line in api.job_log(job_id)]


def test_the_log_has_the_lines_of_all_attempts_in_order(api: Any, worker: int) -> None:
    job = claimed(api, worker)
    assert api.job_log(job.id) == []
    api.log_job(job.id, job.run, "begun")
    api.log_job(job.id, job.run, "no paper", "warning")
    api.fail_jobs([{"id": job.id, "run": job.run, "error": "e", "delay": 0}])
    later = again(api, worker, job)
    api.log_job(job.id, later.run, "again", level="debug")
    assert [(line.run, line.attempt, line.level, line.message) for line in api.job_log(job.id)] == [
        (job.run, 1, "info", "begun"),
        (job.run, 1, "warning", "no paper"),
        (later.run, 2, "debug", "again"),
    ]
    api.finish(job.id)
    assert messages(api, job.id) == ["begun", "no paper", "again"]  # in history


def test_the_newest_lines_are_kept_and_the_first_part_of_a_long_one(api: Any, worker: int) -> None:
    job, other = claimed(api, worker), claimed(api, worker)
    api.log_job(other.id, other.run, "other")
    for n in range(3):
        api.log_job(job.id, job.run, f"single {n}")
    lines = [{"id": job.id, "run": job.run, "message": f"line {n}"} for n in range(199)]
    assert api.log_jobs(lines) == 199
    assert messages(api, job.id) == ["single 2", *(f"line {n}" for n in range(199))]
    api.log_job(job.id, job.run, "ü" * 2001)
    api.log_job(job.id, job.run, "ü" * 2000)
    assert messages(api, job.id)[-2:] == ["ü" * 1999 + "…", "ü" * 2000]
    assert len(api.job_log(job.id)) == 200
    assert messages(api, other.id) == ["other"]


def test_many_lines_of_many_jobs_are_one_call(api: Any, worker: int) -> None:
    a, b = claimed(api, worker), claimed(api, worker)
    lines = [
        {"id": str(a.id), "run": str(a.run), "message": "first", "level": "error", "ago_s": 60},
        {"id": b.id, "run": b.run, "message": "other"},
        {"id": a.id, "run": a.run, "message": "second", "level": None, "ago_s": 0.5},
    ]
    assert api.log_jobs(lines) == 3
    first, second = api.job_log(a.id)
    assert (first.level, first.message, second.level, second.message) == ("error", "first", "info", "second")
    assert second.at - first.at == timedelta(seconds=59.5)
    assert messages(api, b.id) == ["other"]
    assert api.value("select pyworker.log_jobs('[]')") == 0


def test_a_run_may_log_until_the_next_one_begins(api: Any, worker: int) -> None:
    job = claimed(api, worker)
    api.release_jobs([job.id], [job.run])
    api.log_job(job.id, job.run, "the last word")
    later = again(api, worker, job)
    for run in (job.run, None, later.run + 1):
        with api.refusal("PW002", f"log_job: job {job.id} is not held by run"):
            api.log_job(job.id, run, "stale")
    stale = {"id": job.id, "run": job.run, "message": "stale"}
    assert api.log_jobs([stale, {**stale, "run": later.run, "message": "mine"}, {**stale, "id": 99}]) == 1
    api.finish(job.id)
    api.log_job(job.id, later.run, "after the end")
    with api.refusal("PW002"):
        api.log_job(job.id, job.run, "stale")
    assert messages(api, job.id) == ["the last word", "mine", "after the end"]


@pytest.mark.parametrize("level", [None, "critical", "INFO"])
def test_what_is_no_line_is_refused(api: Any, worker: int, level: str | None) -> None:
    job = claimed(api, worker)
    with api.refusal("PW001", "log_job: message must not be null"):
        api.log_job(job.id, job.run, None)
    with api.refusal("PW001", "log_job: level must be debug, info, warning or error, got"):
        api.log_job(job.id, job.run, "m", level)
    for lines in (None, "{}", "1"):
        with api.refusal("PW001", "log_jobs: lines must be a JSON array of objects, got"):
            api.log_jobs(lines)


def test_a_malformed_line_is_left_out_with_a_warning_and_loses_no_other(api: Any, worker: int) -> None:
    job = claimed(api, worker)
    right = {"id": job.id, "run": job.run, "message": "m"}
    wrong: dict[str, Any] = {
        "id must be an integer": {**right, "id": "x"},
        "run must be an integer": {**right, "run": 1.5},
        "message must not be null": {**right, "message": None},
        "level must be debug, info, warning or error, got 'loud'": {**right, "level": "loud"},
        "ago_s must be a number of seconds": {**right, "ago_s": "1"},
        "it must be an object": 5,
    }
    heard: list[str] = []
    api.conn.add_notice_handler(lambda note: heard.append(note.message_primary or ""))
    assert api.log_jobs([right, *wrong.values()]) == 1
    problems = "; ".join(f"item {n}: {problem}" for n, problem in enumerate(wrong, 2))
    assert heard == [f"log_jobs: malformed items are left out: {problems}"]


ENDS = {
    "deleted": lambda api, job: (api.finish(job.id), api.delete_job(job.id)),
    "deleted while it waited": lambda api, job: (
        api.release_jobs([job.id], [job.run]), api.delete_job(job.id),
    ),
    "pruned from history": lambda api, job: (
        api.finish(job.id), api.rows("select pyworker.advance_clock('3 days')"), api.prune(),
    ),
    "pruned when discarded": lambda api, job: (
        api.fail(job, discard=True), api.rows("select pyworker.advance_clock('30 days')"), api.prune(),
    ),
    "not kept": lambda api, job: (api.configure(completed_retention="0"), api.finish(job.id)),
}  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
def test_the_log_goes_with_its_job(api: Any, worker: int, end: str) -> None:
    job = claimed(api, worker)
    api.log_job(job.id, job.run, "m")
    ENDS[end](api, job)
    assert api.get_job(job.id).id is None
    assert api.rows("select from pyworker.log_lines") == []


def test_a_line_waits_for_no_other_session_and_delays_none(api: Any, actor: Any, worker: int) -> None:
    job = claimed(api, worker)
    full = [{"id": job.id, "run": job.run, "message": f"{n}"} for n in range(200)]
    api.log_jobs(full)
    a, b = actor(), actor()
    a.begin()
    a.log_job(job.id, job.run, "of an open transaction")  # which drops the oldest line
    b.begin()
    b.rows("select from pyworker.live_jobs where id = %s for update", [job.id])
    api.log_job(job.id, job.run, "beside both")
    b.commit()
    api.finish_job(job.id, job.run)
    a.commit()
    assert messages(api, job.id)[-2:] == ["of an open transaction", "beside both"]
    api.log_job(job.id, job.run, "the next one drops what the others had locked")
    assert len(api.job_log(job.id)) == 200
