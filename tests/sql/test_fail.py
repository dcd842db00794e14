"""fail_jobs: running -> retryable | discarded | cancelled, and how long a retry waits."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from psycopg.types.json import Jsonb


@pytest.fixture
def delay_after(api: Any, worker: int, clock: Any) -> Callable[..., float]:
    """delay_after(n) fails the n-th attempt of a job whose run_at is ahead of the clock; the
    backoff is then exact."""

    def measure(attempt: int, task: str = "t", **failure: Any) -> float:
        job = api.add_job(task, run_at=api.at("1 hour"), max_attempts=32767)
        api.reschedule_jobs([job.id], attempts=attempt - 1)
        clock.advance(hours=2)
        claimed = api.claim(worker, task)
        assert (claimed.id, claimed.attempts) == (job.id, attempt)
        clock.advance(hours=-2)
        assert api.fail(claimed, **failure) == [job.id]
        failed = api.get_job(job.id)
        assert (failed.state, failed.attempts) == ("retryable", attempt)
        api.delete_job(job.id)
        return (failed.run_at - job.run_at).total_seconds()

    return measure


@pytest.mark.parametrize("attempt", [1, 2, 3, 9, 10, 11, 25, 32766])
def test_without_a_policy_the_backoff_is_graphile_workers(delay_after: Any, attempt: int) -> None:
    assert delay_after(attempt) == pytest.approx(math.exp(min(attempt, 10)), abs=2e-6)


DAY = 86400


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        (["10 s", "5 min", 3600], {1: 10, 2: 300, 3: 3600, 4: 3600, 30000: 3600}),
        ([0], {1: 0, 2: 0}),
        ([0.25], {1: 0.25}),
        ({}, {1: 1, 2: 2, 3: 4, 10: 512, 17: 65536, 18: DAY, 32766: DAY}),
        ({"strategy": "exponential", "initial": "10 s", "factor": 3}, {1: 10, 2: 30, 3: 90, 20: DAY}),
        ({"initial": 5, "factor": 1}, {1: 5, 32766: 5}),
        ({"initial": 0}, {1: 0, 32766: 0}),
        ({"initial": 2, "factor": 100, "max": "1 hour"}, {1: 2, 2: 200, 3: 3600, 32766: 3600}),
        ({"strategy": "constant", "initial": "7 s"}, {1: 7, 2: 7, 32766: 7}),
        ({"strategy": "constant", "initial": "3 days"}, {1: DAY}),
        ({"strategy": "constant", "initial": "3 days", "max": "2 days"}, {1: 2 * DAY}),
        ({"strategy": "linear", "initial": "1 min"}, {1: 60, 2: 120, 100: 6000, 32766: DAY}),
        ({"strategy": "linear", "initial": "1 min", "max": 90}, {1: 60, 2: 90, 3: 90}),
        (
            {"strategy": "linear", "initial": "360000 days", "max": 30_000_000_000},
            {1: 3e10, 9: 3e10, 32766: 3e10},
        ),
        ({"strategy": "linear", "initial": 31_104_000_000, "max": "9 days"}, {1: 9 * DAY, 32766: 9 * DAY}),
    ],
    ids=lambda v: json.dumps(v)[:60] if isinstance(v, (list, dict)) else "",
)
def test_a_task_sets_its_own_backoff(
    api: Any, delay_after: Any, backoff: Any, delays: dict[int, float]
) -> None:
    api.define_task("t", backoff=Jsonb(backoff))
    assert {attempt: delay_after(attempt) for attempt in delays} == pytest.approx(delays, abs=2e-6)


def test_jitter_spreads_the_delay_within_its_bounds(api: Any, delay_after: Any) -> None:
    api.define_task("t", backoff={"strategy": "constant", "initial": 100, "jitter": 0.3})
    delays = [delay_after(1) for _ in range(25)]
    assert all(70 <= delay <= 130 for delay in delays)
    assert max(delays) - min(delays) > 5  # all within 5 s of each other: once in 10^26 runs


def test_the_backoff_counts_from_now_where_run_at_is_past(api: Any, worker: int, clock: Any) -> None:
    api.add_job("t", run_at=api.at("-1 day"))
    job = api.claim(worker)
    before = api.at()
    api.fail(job)
    assert before <= api.get_job(job.id).run_at - timedelta(seconds=math.e) <= api.at()


@pytest.mark.parametrize(
    ("delay", "seconds"), [(90, 90), ("90 s", 90), ("1 hour 5 min", 3900), (0.5, 0.5), (0, 0), ("0", 0)]
)
def test_a_delay_given_with_the_failure_wins_and_counts_from_now(
    api: Any, job_in: Any, delay: Any, seconds: float
) -> None:
    api.define_task("t", backoff="[7]")
    job = job_in("running")
    before = api.at()
    api.fail(job, delay=delay)
    assert before <= api.get_job(job.id).run_at - timedelta(seconds=seconds) <= api.at()


def test_a_failed_job_waits_and_keeps_all_but_the_outcome(api: Any, worker: int) -> None:
    api.add_job("t", "[1]", job_key="k", queue_name="q", priority=3, flags=["f"], meta={"m": 1})
    claimed = api.claim(worker)
    running = api.get_job(claimed.id)
    assert api.fail(claimed, "boom") == [claimed.id]
    job = api.get_job(claimed.id)
    assert (job.state, job.last_error, job.locked_by, job.attempts, job.finished_at) == (
        "retryable",
        "boom",
        None,
        1,
        None,
    )
    changed = {"state", "last_error", "run_at", "updated_at", "locked_at", "locked_by"}
    for name, value in running._asdict().items():
        assert name in changed or getattr(job, name) == value, name


@pytest.mark.parametrize("more", [{}, {"delay": "1 s"}, {"discard": True}, {"cancel": True}])
def test_a_replaced_payload_is_what_remains_to_do(api: Any, job_in: Any, more: dict[str, Any]) -> None:
    job = job_in("running", payload="[1,2,3]")
    api.fail(job, payload=[2], **more)
    assert api.get_job(job.id).payload == ([1, 2, 3] if "cancel" in more else [2])


def test_a_null_member_is_the_same_as_none(api: Any, job_in: Any) -> None:
    job = job_in("running", payload="[1]")
    assert api.fail(job, None, payload=None, discard=None, cancel=None, delay=None) == [job.id]
    failed = api.get_job(job.id)
    assert (failed.state, failed.payload, failed.last_error) == ("retryable", [1], "failed without a message")


@pytest.mark.parametrize(
    ("error", "kept"),
    [("", "failed without a message"), ("ünï\ncode", "ünï\ncode"), (5, "5"), ({"a": 1}, '{"a": 1}')],
)
def test_the_error_is_kept_as_text(api: Any, job_in: Any, error: Any, kept: str) -> None:
    job = job_in("running")
    api.fail(job, error)
    assert api.get_job(job.id).last_error == kept
    assert api.job_errors(job.id)[0].error == kept


def test_a_job_out_of_attempts_is_discarded_and_keeps_its_key_for_a_decision(api: Any, worker: int) -> None:
    api.define_task("t", backoff="[0]")
    first = api.add_job("t", "[1]", job_key="k", max_attempts=2)
    for error in ("one", "two"):
        assert api.get_job(first.id).state == "available" or api.promote_jobs() == 1
        api.fail(api.claim(worker), error)
    job = api.get_job(first.id)
    assert (job.state, job.attempts, job.last_error, job.key) == ("discarded", 2, "two", "k")
    assert job.reason
    assert job.finished_at == job.updated_at
    assert api.claim_jobs(worker) == []
    assert [error.error for error in api.job_errors(first.id)] == ["one", "two"]
    again = api.add_job("t", "[2]", job_key="k")
    assert (again.id, again.payload, again.attempts, again.last_error, again.state) == (
        first.id,
        [1, 2],
        0,
        None,
        "available",
    )


def test_a_handler_may_give_up_at_once_or_call_the_job_off(api: Any, job_in: Any) -> None:
    given_up, cancelled_runs = job_in("running", job_key="a"), job_in("running", job_key="b")
    api.fail(given_up, "hopeless", discard=True)
    api.fail(cancelled_runs, "not wanted", cancel=True)
    job = api.get_job(given_up.id)
    assert (job.state, job.key, job.last_error, job.attempts) == ("discarded", "a", "hopeless", 1)
    job = api.get_job(cancelled_runs.id)
    assert (job.state, job.key, job.last_error) == ("cancelled", "b", "not wanted")
    assert api.add_job("t", job_key="b").id > cancelled_runs.id


@pytest.mark.parametrize(
    "item",
    [
        "5", "null", "[]", '"x"', "{{}}", '{{"id": {id}}}', '{{"run": {run}}}',
        '{{"id": "{id}.0", "run": {run}}}',
        '{{"id": {id}, "run": "0x1"}}', '{{"id": {id}.4, "run": {run}}}', '{{"id": {id}, "run": {run}.4}}',
        '{{"id": 1e30, "run": 1}}', '{{"id": {id}, "run": 1e30}}', '{{"id": null, "run": null}}',
        '{{"id": {id}, "run": {run}, "discard": "yes"}}', '{{"id": {id}, "run": {run}, "cancel": 1}}',
        '{{"id": {id}, "run": {run}, "delay": "soon"}}', '{{"id": {id}, "run": {run}, "delay": -1}}',
        '{{"id": {id}, "run": {run}, "delay": "-1 s"}}', '{{"id": {id}, "run": {run}, "delay": []}}',
        '{{"id": {id}, "run": {run}, "delay": 1e300}}', '{{"id": {id}, "run": {run}, "delay": "infinity"}}',
        '{{"id": {id}, "run": {run}, "delay": "300000 years"}}', '{{"id": {id}, "run": {stale}}}',
        '{{"id": 4711, "run": 1}}',
    ],
)  # fmt: skip
def test_a_malformed_or_stale_item_is_left_out_and_harms_no_other(api: Any, job_in: Any, item: str) -> None:
    left_out, good = job_in("running"), job_in("running")
    item = item.format(id=left_out.id, run=left_out.run, stale=left_out.run - 1)
    assert api.fail_jobs(f'[{item}, {{"id": {good.id}, "run": {good.run}, "error": "boom"}}, {item}]') == [
        good.id
    ]
    assert api.get_job(good.id).state == "retryable"
    assert api.get_job(left_out.id) == left_out
    assert api.job_errors(left_out.id) == []


@pytest.mark.parametrize("failures", [None, "{}", "5", '"x"'])
def test_failures_must_be_an_array(api: Any, failures: str | None) -> None:
    with api.refusal("PW001", "fail_jobs", "array"):
        api.fail_jobs(failures)
    assert api.fail_jobs("[]") == []


def test_a_job_named_twice_fails_once(api: Any, job_in: Any) -> None:
    job = job_in("running")
    item = {"id": job.id, "run": job.run, "error": "boom"}
    assert api.fail_jobs([item, item]) == [job.id]
    assert len(api.job_errors(job.id)) == 1


def test_the_errors_of_all_attempts_are_kept_oldest_first(
    api: Any, job_in: Any, worker: int, clock: Any
) -> None:
    api.define_task("t", backoff="[0]")
    job = job_in("running")
    before = api.at()
    api.fail(job, "one")
    again = api.claim(worker)
    api.fail(again, "two")
    api.permanently_fail_jobs([job.id], "by hand")
    api.retry_job(job.id)
    done = api.claim(worker)
    api.finish_job(done.id, done.run)
    errors = api.job_errors(job.id)
    assert [(e.run, e.worker, e.error) for e in errors] == [
        (job.run, str(worker), "one"),
        (again.run, str(worker), "two"),
        (again.run, None, "by hand"),
    ]
    assert before <= errors[0].at <= errors[1].at <= errors[2].at <= api.at()
    api.delete_job(job.id)
    assert api.job_errors(job.id) == []


def test_ids_and_runs_may_be_strings_as_javascript_sends_large_numbers(api: Any, job_in: Any) -> None:
    job = job_in("running")
    assert api.fail_jobs([{"id": str(job.id), "run": str(job.run), "error": "boom"}]) == [job.id]
    assert api.get_job(job.id).state == "retryable"


def test_a_malformed_item_is_told_in_a_warning_without_what_it_carries(api: Any, job_in: Any) -> None:
    job = job_in("running")
    told: list[tuple[Any, str]] = []

    def hear(notice: Any) -> None:
        told.append((notice.severity, notice.message_primary))

    api.conn.add_notice_handler(hear)
    try:
        assert (
            api.fail_jobs(
                [
                    {"id": "x", "run": job.run, "error": "secret"},
                    {"id": job.id, "run": job.run, "delay": "soon"},
                ]
            )
            == []
        )
    finally:
        api.conn.remove_notice_handler(hear)
    ((severity, warning),) = told
    assert severity == "WARNING"
    for words in ("fail_jobs", "item 1: id must be an integer", 'item 2: delay .* got "soon"'):
        assert re.search(words, warning), warning
    assert "secret" not in warning


AS_TEXT = {
    "NUL": r'["a\u0000", 2]',
    "half a surrogate pair": r'["\ud83d"]',
    "as it is written": '{"b":1, "a" : 1.50, "b":2}',
}


@pytest.mark.parametrize("turn", [False, True], ids=["fail_jobs", "work"])
@pytest.mark.parametrize("text", AS_TEXT.values(), ids=AS_TEXT)
def test_a_payload_that_replaces_as_text_is_exactly_that_text(
    api: Any, db: Any, worker: int, job_in: Any, text: str, turn: bool
) -> None:
    job = job_in("running", payload="[1,2,3]")
    item = {"id": job.id, "run": job.run, "error": "boom", "payload_text": text}
    if turn:
        reports = Jsonb([{**item, "do": "fail"}])
        kinds = db.execute("select kind from pyworker.work(%s, null, null, null, %s, 0)", [worker, reports])
        assert [row[0] for row in kinds.fetchall()] == ["turn"]
    else:
        assert api.fail_jobs([item]) == [job.id]
    stored = db.execute("select payload::text from pyworker.get_job(%s)", [job.id]).fetchone()[0]
    assert stored == text


@pytest.mark.parametrize("text", ["", "[1", "[1] 2", "nul", r'"\ud8"'])
def test_a_payload_text_that_is_no_json_is_left_out_and_the_job_fails_with_its_own(
    api: Any, job_in: Any, text: str
) -> None:
    job = job_in("running", payload={"n": 1})
    assert api.fail_jobs([{"id": job.id, "run": job.run, "error": "boom", "payload_text": text}]) == [job.id]
    failed = api.get_job(job.id)
    assert failed.payload == {"n": 1}
    assert re.search("^boom\n.*was left out: payload_text must be a string of JSON", failed.last_error)


@pytest.mark.parametrize("payload", ["x" * 1_048_576, 101], ids=["too large", "too deep"])
@pytest.mark.parametrize("how", [{}, {"discard": True}, {"delay": 0}], ids=["retry", "discard", "at once"])
def test_a_payload_beyond_the_limits_is_left_out_and_the_job_fails_with_its_own(
    api: Any, job_in: Any, payload: Any, how: dict[str, Any]
) -> None:
    job = job_in("running", payload={"n": 1})
    if isinstance(payload, int):
        payload = json.loads("[" * payload + "]" * payload)
    assert api.fail_jobs([{"id": job.id, "run": job.run, "error": "boom", "payload": payload, **how}]) == [
        job.id
    ]
    failed = api.get_job(job.id)
    assert failed.state != "running"
    assert failed.payload == {"n": 1}
    assert re.search("^boom\n.*payload .* was left out: payload must not be", failed.last_error)


def test_a_batch_ends_each_job_in_its_own_way(api: Any, worker: int) -> None:
    """Retried by its task's backoff or the given delay, discarded, cancelled, superseded: all in
    one call, in queues and sequences."""
    api.define_task("slow", backoff='["1 hour"]')
    api.set_queue("q", 9)
    api.add_jobs([{"identifier": "t", "queue_name": "q"}, {"identifier": "slow"}, {"identifier": "t"}])
    api.add_jobs(
        [
            {"identifier": "t", "max_attempts": 1, "sequence_policy": {"key": "s"}},
            {"identifier": "t", "job_key": "k"},
        ]
    )
    api.add_jobs([{"identifier": "t"}, {"identifier": "t", "queue_name": "q", "max_attempts": 1}])
    behind = api.add_job("t", sequence_policy={"key": "s"})
    api.promote_jobs()
    plain, slow, delayed, last, superseded, cancelled, queued = sorted(
        api.claim_jobs(worker, 9), key=lambda job: job.id
    )
    api.add_job("t", job_key="k")
    before = api.at()
    how: dict[int, dict[str, Any]] = {delayed.id: {"delay": "1 day"}, cancelled.id: {"cancel": True}}
    batch = [plain, slow, delayed, last, superseded, cancelled, queued]
    failures = [
        {"id": job.id, "run": job.run, "error": f"error {job.id}", **how.get(job.id, {})}
        for job in batch[::-1]
    ]
    assert api.fail_jobs(failures) == [job.id for job in batch]
    ended = [api.get_job(job.id) for job in batch]
    assert [(job.state, job.reason) for job in ended] == [
        ("retryable", None), ("retryable", None), ("retryable", None), ("discarded", "out of attempts"),
        ("cancelled", "superseded"), ("cancelled", "error 6"), ("discarded", "out of attempts"),
    ]  # fmt: skip
    waits = [(job.run_at - before).total_seconds() for job in ended[:3]]
    assert waits == [pytest.approx(wanted, abs=5) for wanted in (math.e, 3600, DAY)]
    assert [api.job_errors(job.id)[0].error for job in batch] == [f"error {job.id}" for job in batch]
    assert api.get_job(behind.id).sequence_halted_by == last.id
