"""Promises about what becomes of one job."""

from __future__ import annotations

from typing import Any

from .broken import hold
from .promise import promise
from .stage import TIMED, Played, Stage

RESULTS: list[Any] = ["a", "ä € 𝄞", 1, 1.5, 0, True, False, "", [], {}, {"a": [1, None, {"b": "c"}]}]


def _ends(stage: Stage, state: str, payload: dict[str, Any], attempts: int, **options: Any) -> Played:
    """A job with this payload comes to this state after one run, and after so many attempts."""
    job = stage.add(payload, **options)
    stage.start()
    stage.until_state(state, job, seconds=8)
    row, begun = stage.job(job), stage.notes.count("begin", job)
    hold(row.attempts == attempts, f"the job is {state} after {row.attempts} attempts, not {attempts}")
    hold(begun == 1, f"its handler began {begun} times")
    if error := payload.get("error"):
        hold(error in (row.last_error or ""), f"its last error is {row.last_error!r}, without {error!r}")
    return job


@promise("What to report", "**The handler returned**: `done_ids` and `done_runs`")
def complete(stage: Stage) -> str:
    """A job whose handler returns is completed. Each handler begins once."""
    jobs = stage.add_many(10)
    stage.start()
    jobs += stage.add_many(5) + stage.add_many(5, delivery="at_most_once")
    stage.until_state("completed", *jobs)
    stage.notes.hold_once(jobs)
    hold(len(stage.notes.begun(jobs)) == 20, "jobs were completed whose handlers did not begin")
    return "20 jobs are completed, each handler began once"


@promise("What to report", "`done_results` (null: none) are kept in history")
def results(stage: Stage) -> str:
    """What a handler returned is the job's result, any JSON."""
    jobs = [stage.add({"result": result}) for result in RESULTS]
    stage.start()
    stage.until_state("completed", *jobs)
    for job, result in zip(jobs, RESULTS, strict=True):
        got = stage.job(job).result
        hold(got == result and type(got) is type(result), f"{result!r} was returned, {got!r} was kept")
    return f"{len(jobs)} results are as they were returned"


@promise("work: report, then claim", "Replace U+0000 and half surrogate pairs by U+FFFD")
def unstorable(stage: Stage) -> str:
    """Results and errors that jsonb cannot hold, or that are long, stop no other job."""
    payloads: list[dict[str, Any]] = []
    for text in ("a\0b", "a\ud800b", "a\udc00b"):
        payloads += [{"result": text}, {"do": "fail", "error": text}]
    payloads.append({"do": "fail", "error": "long " * 40000})
    odd = [stage.add(payload) for payload in payloads]
    others = stage.add_many(10)
    stage.start()
    stage.until_state("completed", *others)
    stage.until_each(odd, "completed", "retryable")
    stage.notes.hold_once(odd)
    return f"10 jobs are completed beside {len(odd)} with such texts, which are reported, too"


@promise("What to report", "**It raised**: `fail`")
def fail(stage: Stage) -> str:
    """A job whose handler raises is tried again while attempts are left, then it is discarded."""
    job = stage.add({"do": "fail", "error": "boom ä"}, max_attempts=2)
    stage.start()
    stage.until_state("discarded", job)
    row, begun = stage.job(job), stage.notes.count("begin", job)
    hold((row.attempts, begun) == (2, 2), f"{row.attempts} attempts, its handler began {begun} times")
    hold("boom ä" in (row.last_error or ""), f"its last error is {row.last_error!r}")
    return "discarded after 2 attempts, with the error of its handler"


@promise("Effects that must not happen twice", "From then on no worker runs the job again by itself")
def fail_at_most_once(stage: Stage) -> str:
    """A job with delivery at_most_once whose handler raises is discarded."""
    _ends(stage, "discarded", {"do": "fail", "error": "boom"}, 1, delivery="at_most_once")
    return "discarded after its first attempt"


@promise("What to report", "`discard` when trying again is useless")
def discard(stage: Stage) -> str:
    """A handler can discard its job, though attempts are left."""
    _ends(stage, "discarded", {"do": "discard", "error": "no use"}, 1)
    return "discarded after its first attempt"


@promise("What to report", "`cancel` when it gives the job up")
def cancel(stage: Stage) -> str:
    """A handler can cancel its job."""
    _ends(stage, "cancelled", {"do": "cancel", "error": "not wanted"}, 1)
    return "cancelled after its first attempt"


@promise("What to report", "`snooze` when it wants the job later")
def snooze(stage: Stage) -> str:
    """A handler can put its job off; the attempt does not count."""
    _ends(stage, "scheduled", {"do": "snooze", "delay_s": 60}, 0)
    return "scheduled, with its attempt given back"


@promise("work: report, then claim", "also an `at_most_once` job is retried")
def not_started(stage: Stage) -> str:
    """A handler of an at_most_once job can say that it has done nothing yet."""
    payload = {"do": "not_started", "error": "terminal is off"}
    _ends(stage, "retryable", payload, 1, delivery="at_most_once")
    return "retryable after its first attempt"


@promise("What to report", 'stop the handler, then `fail` with "timed out after 60 s"')
def timeout(stage: Stage) -> str:
    """A handler that runs longer than its task's timeout is stopped, and its job fails."""
    stage.ready(supervised=True)
    stage.db.define_task(TIMED, {"timeout": "2 seconds"})
    job = stage.add({"ms": 20000}, TIMED, max_attempts=1)
    beside = stage.add({"ms": 3000})
    stage.until_state("discarded", job, seconds=15)
    hold(stage.is_stopped(job), "its handler still runs")
    last = stage.notes.count("tick", job)
    hold(last < 200, f"its handler ran for more than {last / 20:g} s, its timeout is 2 s")
    stage.until_state("completed", beside)
    error = stage.job(job).last_error or ""
    hold("timed out" in error, f"its last error is {error.splitlines()[:1]}, without 'timed out'")
    return "its handler was stopped, and its last error says that it timed out"
