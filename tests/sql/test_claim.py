"""claim_jobs: who gets what, in which order."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.support.api import ids
from tests.support.notify import calm, wait


def test_jobs_come_in_the_order_priority_run_at_id(api: Any, worker: int) -> None:
    now = api.at("-1 hour")
    rng = random.Random(1)
    specs = [
        {
            "identifier": "t",
            "priority": rng.choice([-2, 0, 7]),
            "run_at": str(now + timedelta(seconds=rng.randrange(5))),
        }
        for _ in range(100)
    ]
    jobs = api.add_jobs(specs)
    expected = ids(sorted(jobs, key=lambda job: (job.priority, job.run_at, job.id)))
    assert ids(api.claim_jobs(worker, 30)) == expected[:30]
    assert [api.claim(worker).id for _ in range(5)] == expected[30:35]
    assert ids(api.claim_jobs(worker, 1000)) == expected[35:]


def test_jobs_of_the_same_time_are_first_in_first_out_even_after_a_vacuum(api: Any, worker: int) -> None:
    """Graphile Worker runs 11 to 20 before 1 to 10 here."""
    at = str(api.at("-1 hour"))
    first = api.add_jobs([{"identifier": "t", "run_at": at, "payload": {"pad": "x" * 500}}] * 20)
    api.permanently_fail_jobs(ids(first[:10]))
    for job in first[:10]:
        api.delete_job(job.id)
    api.rows("vacuum pyworker.live_jobs")
    more = api.add_jobs([{"identifier": "t", "run_at": at}] * 20)
    assert ids(api.claim_jobs(worker, 100)) == ids(first[10:] + more)


def test_a_claim_hands_over_all_that_a_handler_needs(api: Any, worker: int) -> None:
    job = api.add_job(
        "t", '{"a": 1}', job_key="k", priority=3, max_attempts=4, flags=["f"], meta={"m": 1}, queue_name="q"
    )  # fmt: skip
    before = api.at()
    got = api.claim(worker)
    for name in ("id", "task_identifier", "payload", "max_attempts", "priority", "run_at", "queue_name",
        "key", "flags", "meta",
                 "delivery", "sequence_key", "created_at", "revision"):  # fmt: skip
        assert getattr(got, name) == getattr(job, name), name
    assert (got.run > 0, got.attempts) == (True, 1)
    now = api.get_job(job.id)
    assert (now.state, now.locked_by, now.run, now.attempts) == ("running", str(worker), got.run, 1)
    assert before <= now.locked_at <= api.at()


def test_the_run_grows_with_each_claim_even_where_the_attempt_is_given_back(api: Any, worker: int) -> None:
    api.add_job("t")
    runs = [0]
    for _ in range(3):
        job = api.claim(worker)
        assert job.attempts == 1
        runs.append(job.run)
        api.release_jobs([job.id], [job.run])
    job = api.claim(worker)
    api.finish_job(job.id, job.run)
    api.retry_job(job.id)
    runs += [job.run, api.claim(worker).run]
    assert runs == sorted(set(runs))
    assert runs[-1] < 2**53  # what JavaScript can read


def test_the_run_grows_even_if_the_servers_clock_was_set_back(api: Any, worker: int) -> None:
    """By a random step, as a claim that a crash made the server forget may have made the step before."""
    jobs = api.add_jobs([{"identifier": "t"}] * 3)
    ahead = api.value("select (date_part('epoch', now()) * 1000000)::bigint + 3600 * 1000000::bigint")
    api.rows("update pyworker.live_jobs set run = %s", [ahead])
    runs = [job.run for job in api.claim_jobs(worker, 3)]
    assert all(run > ahead for run in runs)
    assert len(set(runs)) == len(jobs)


@pytest.mark.parametrize(
    "state", ["scheduled", "pending", "running", "retryable", "discarded", "completed", "cancelled"]
)
def test_only_available_jobs_are_claimed(api: Any, job_in: Any, worker: int, state: str) -> None:
    job_in(state)
    assert api.claim_jobs(worker, 10) == []


@pytest.mark.parametrize("state", ["scheduled", "retryable"])
def test_what_falls_due_is_claimed_without_another_session_having_to_act(
    api: Any, job_in: Any, worker: int, clock: Any, state: str
) -> None:
    job = job_in(state)
    assert api.claim_jobs(worker) == []  # the worker listens from now on
    clock.advance(hours=2)
    assert api.claim(worker).id == job.id


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, "abcd"),
        ({"task_identifiers": None, "queue_names": None, "forbidden_flags": None}, "abcd"),
        ({"task_identifiers": ["t"]}, "abc"),
        ({"task_identifiers": ["u", "v"]}, "d"),
        ({"task_identifiers": []}, ""),
        ({"task_identifiers": ["T"]}, ""),
        ({"queue_names": ["default"]}, "abd"),
        ({"queue_names": ["q"]}, "c"),
        ({"queue_names": ["q", "default"]}, "abcd"),
        ({"queue_names": []}, ""),
        ({"forbidden_flags": ["slow"]}, "acd"),
        ({"forbidden_flags": ["slow", "red"]}, "ac"),
        ({"forbidden_flags": ["none such"]}, "abcd"),
        ({"forbidden_flags": []}, "abcd"),
        ({"task_identifiers": ["t"], "queue_names": ["default"], "forbidden_flags": ["slow"]}, "a"),
    ],
)
def test_a_claim_takes_only_what_it_asks_for(
    api: Any, worker: int, filters: dict[str, Any], expected: str
) -> None:
    jobs = {
        api.add_job("t").id: "a",
        api.add_job("t", flags=["slow", "x"]).id: "b",
        api.add_job("t", queue_name="q").id: "c",
    }
    api.promote_jobs()  # that one is ready from now on
    jobs[api.add_job("u", flags=["red"]).id] = "d"
    assert "".join(jobs[job.id] for job in api.claim_jobs(worker, 10, **filters)) == expected


def test_a_passed_over_job_keeps_its_attempts_and_its_place(api: Any, worker: int) -> None:
    first, second = api.add_job("t", flags=["slow"]), api.add_job("t")
    assert api.claim_jobs(worker, 1, forbidden_flags=["slow"])[0].id == second.id
    assert api.get_job(first.id) == first
    assert api.claim(worker).id == first.id


@pytest.mark.parametrize("max_jobs", [0, -1, None])
def test_a_claim_of_no_jobs_is_refused(api: Any, worker: int, max_jobs: int | None) -> None:
    with api.refusal("PW001", "max_jobs", "NULL" if max_jobs is None else str(max_jobs)):
        api.claim_jobs(worker, max_jobs)


def test_a_claim_never_takes_more_than_it_asked_for(api: Any, worker: int) -> None:
    api.add_jobs([{"identifier": "t"}] * 50)
    for wanted in (1, 7, 20):
        assert len(api.claim_jobs(worker, wanted)) == wanted
    assert len(api.claim_jobs(worker, 2147483647)) == 22


@pytest.mark.parametrize("who", [0, 12345, None])
def test_an_unknown_worker_is_told_to_register(api: Any, who: int | None) -> None:
    api.add_job("t")
    with api.refusal("PW004", "worker", "NULL" if who is None else str(who)):
        api.claim_jobs(who)


def test_a_worker_declared_dead_claims_nothing_more(api: Any, worker: int, clock: Any) -> None:
    clock.advance(minutes=5)
    api.maintain()
    api.add_job("t")
    with api.refusal("PW004", "worker"):
        api.claim_jobs(worker)
    assert api.claim(api.register_worker())


def test_no_count_of_attempts_stops_the_others_from_being_claimed(api: Any, worker: int) -> None:
    """The budget is a smallint: a job at its very end, tried once more by hand, must not break
    every claim."""
    worn = api.add_job("t", max_attempts=32767)
    api.permanently_fail_jobs([worn.id])
    api.retry_job(worn.id)
    other = api.add_job("t")
    assert ids(api.claim_jobs(worker, 10)) == [worn.id, other.id]
    job = api.get_job(worn.id)
    api.fail(job)
    assert api.get_job(worn.id).state == "discarded"


def test_the_payload_travels_as_text_so_that_no_payload_can_spoil_a_batch(api: Any, worker: int) -> None:
    payloads = ['{"a":1e5000}', '"\\u0000"', '{"a":1,"a":2}', "1.0", '"\\ud800"', "[" * 100 + "]" * 100]
    for payload in payloads:
        api.add_job("t", payload)
    rows = api.rows("select payload::text from pyworker.claim_jobs(%s, 10)", [worker])
    assert [row.payload for row in rows] == payloads


def test_a_worker_knows_how_long_nothing_falls_due(api: Any, worker: int, clock: Any) -> None:
    api.add_job("t")
    api.add_jobs([{"identifier": "t", "queue_name": "q"}] * 2)
    assert 0 < api.seconds_until_due() <= 0.25  # their turns in the queue are to be looked at
    assert len(api.claim_jobs(worker, 10)) == 2
    assert 0 < api.seconds_until_due() <= 0.25  # adds do not notify yet: the next claim sees to that
    wait(api, worker)
    calm(api)
    api.add_job("t", run_at=api.at("2 hours"))
    api.add_job("t", run_at=api.at("1 hour"), queue_name="q")
    assert 0 < api.seconds_until_due() <= 1  # at most: after an hour, too
    clock.advance(hours=1, minutes=30)
    assert 0 < api.seconds_until_due() <= 0.25
    api.promote_jobs()
    assert 0 < api.seconds_until_due() <= 1


@pytest.fixture
def commits(actor: Callable[[], Any]) -> Iterator[Callable[..., str]]:
    """commits(session, call): what synchronous_commit says while the call's transaction commits."""
    admin = actor()
    admin.rows(
        "create table public.how (setting text); grant all on public.how to public;"
        "create function public.note_setting() returns trigger language plpgsql as $$ begin"
        "  insert into public.how values (current_setting('synchronous_commit')); return null; end $$;"
        "create constraint trigger how after update on pyworker.live_jobs deferrable initially deferred"
        "  for each row execute function public.note_setting()"
    )

    def commits(call: Callable[[], Any]) -> str:
        admin.rows("truncate public.how")
        call()
        return admin.value("select string_agg(distinct setting, ' ') from public.how")

    yield commits
    admin.rows(
        "drop trigger how on pyworker.live_jobs; drop function public.note_setting; drop table public.how"
    )


def test_a_claim_need_not_wait_for_the_disk_unless_its_jobs_take_turns(
    api: Any, actor: Any, worker: int, commits: Any
) -> None:
    a = actor()
    for wanted in ("off", "on", "local"):
        a.rows(f"set synchronous_commit = {wanted}")
        for named, setting in (
            ({}, wanted),
            ({"delivery": "at_most_once"}, wanted),
            ({"queue_name": "q"}, "on"),
            ({"sequence_policy": {"key": "s"}}, "on"),
        ):
            api.add_job("t", **named)
            api.promote_jobs()
            assert (
                commits(lambda: [api.finish_job(job.id, job.run) for job in a.claim_jobs(worker, 5)])
                == setting
            ), named
        assert a.value("show synchronous_commit") == wanted
