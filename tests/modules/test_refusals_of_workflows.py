"""Input that means nothing: what jobs that wait for others or for signals say of it, and what to do then."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.support.dependencies import child, running

UNKNOWN = (
    "List jobs by `pyworker jobs`, or by the views jobs and history. History keeps a job for its "
    "retention; a job whose add is not committed is not there yet."
)
A_REF = "Refs name jobs of one add_jobs call. A job that was added before is named by its id, a number."
EXTEND = 'select * from pyworker.extend_batch(%s, \'[{"identifier": "t"}]\')'


def refused(api: Any, sql: str, *values: Any) -> tuple[str, str, str | None]:
    """SQLSTATE, message and hint. Nothing is changed."""
    before = api.rows("select id, state, revision from pyworker.live_jobs order by id")
    with pytest.raises(psycopg.Error) as caught:
        api.rows(sql, values)
    assert api.rows("select id, state, revision from pyworker.live_jobs order by id") == before
    diag = caught.value.diag
    return str(diag.sqlstate), str(diag.message_primary), diag.message_hint


@pytest.mark.parametrize(
    "verb",
    ["cancel_job", "delete_job", "retry_job", "explain_job", "extend_batch", "send_signal", "await_job"],
)
def test_each_verb_on_a_job_that_is_not_there_says_where_jobs_are(api: Any, verb: str) -> None:
    more = {"extend_batch": ", '[]'", "send_signal": ", 'go'", "await_job": ", 1"}.get(verb, "")
    call = f"select * from pyworker.{verb}(99999{more})"
    assert refused(api, call) == ("PW004", f"{verb}: there is no job 99999", UNKNOWN)


@pytest.mark.parametrize(
    ("specs", "sqlstate", "message", "hint"),
    [
        (
            [{"depends_on": [99999]}],
            "PW004", "add_jobs: specs[1]: depends_on: there is no job 99999", UNKNOWN,
        ),
        (
            [{"ref": "a"}, {"depends_on": ["b"]}],
            "PW001", "add_jobs: specs[2]: depends_on: no job of the call has the ref 'b'", A_REF,
        ),
        (
            [{"ref": "a"}, {"ref": "b", "depends_on": ["a", "b"]}],
            "PW001", "add_jobs: specs[2]: depends_on: the job would wait for itself: 'b' is its own ref",
            "Name the refs of other jobs.",
        ),
        (
            [{"ref": "a", "depends_on": ["b"]}, {"ref": "b", "depends_on": ["a"]}],
            "PW001",
            "add_jobs: specs[1]: depends_on: jobs wait for each other in a circle, "
            "of which the ref 'a' is part",
            "Take one of the dependencies of these jobs away.",
        ),
    ],
)  # fmt: skip
def test_a_dependency_that_means_nothing_says_what_to_write(
    api: Any, specs: list[dict[str, Any]], sqlstate: str, message: str, hint: str
) -> None:
    call = "select * from pyworker.add_jobs(%s::jsonb)"
    told = refused(api, call, Jsonb([{"identifier": "t", **spec} for spec in specs]))
    assert told == (sqlstate, message, hint)


def test_an_id_that_only_this_call_gives_out_is_the_id_of_no_job(api: Any) -> None:
    own = api.add_job("t").id + 1
    call = "select * from pyworker.add_job('t', depends_on := jsonb_build_array(%s::bigint))"
    hint = "That is an id which this call gives to a new job. Jobs of one call name each other by their refs."
    assert refused(api, call, own) == ("PW004", f"add_job: depends_on: there is no job {own}", hint)


def test_a_job_that_would_wait_for_itself_says_where_to_look(api: Any) -> None:
    job = api.add_job("t", job_key="k").id
    hint = "Leave out its own id, and jobs that wait for it: see the view dependencies."
    call = "select * from pyworker.add_job('t', job_key := 'k', depends_on := jsonb_build_array(%s::bigint))"
    for parent in (job, child(api, [job]), child(api, [child(api, [job])])):
        told = refused(api, call, parent)
        assert told == ("PW001", f"depends_on: job {job} would wait for itself", hint)


def test_a_job_that_is_no_callback_cannot_be_extended(api: Any, worker: int) -> None:
    job = api.add_job("t").id
    hint = (
        "Extend the last job that add_batch returned, before the other jobs have ended, or from one of them."
    )
    message = f"extend_batch: job {job} waits for no other job: it is available"
    assert refused(api, EXTEND, job) == ("PW005", message, hint)
    parent = running(api, worker)
    late = child(api, [parent])
    api.finish(parent)
    api.promote_jobs()
    message = f"extend_batch: job {late} waits for no other job: it is available"
    assert refused(api, EXTEND, late) == ("PW005", message, hint)


def test_a_signal_of_another_name_than_the_job_waits_for_is_kept_and_remarked(api: Any, worker: int) -> None:
    job = running(api, worker)
    told: list[Any] = []
    api.conn.add_notice_handler(lambda d: told.append((d.message_primary, d.message_hint)))
    api.send_signal(job, "aproved")  # it does not wait yet
    api.wait_for_signal(job, api.get_job(job).run, "approved")
    assert told == []
    for name in ("aproved", "it's"):  # the first of them is a second one of this name
        api.send_signal(job, name)
    hint = f"If you meant that one: send_signal({job}, 'approved')."
    assert told == [
        (f"send_signal: job {job} waits for the signal 'approved', and keeps {name} for a later wait", hint)
        for name in ("'aproved'", "'it''s'")
    ]
    api.send_signal(job, "approved")
    api.send_signal(job, "other")  # the wait is answered, though the job is still pending
    assert api.get_job(job).state == "pending"
    assert len(told) == 2
    assert api.value("select count(*) from pyworker.signals") == 4
