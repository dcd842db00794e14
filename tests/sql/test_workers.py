"""Workers: a lease each; when it ends, however it ends, their jobs go on elsewhere."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest


def test_a_worker_registers_with_an_id_never_used_before(api: Any) -> None:
    first = api.register_worker({"host": "a"})
    api.unregister_worker(first)
    second = api.register_worker()
    assert second > first
    before = api.at()
    assert api.heartbeat(second)
    (row,) = api.rows("select * from pyworker.live_workers")
    assert (row.id, row.info) == (second, {})
    assert row.started_at <= before <= row.beat_at <= row.expires_at


@pytest.mark.parametrize("info", ["[]", "5", None])
def test_info_must_be_an_object(api: Any, info: str | None) -> None:
    with api.refusal("PW001", "register_worker", "info", "NULL" if info is None else "object"):
        api.register_worker(info)


@pytest.mark.parametrize("who", [0, 4711, None])
def test_the_heartbeat_of_an_unknown_worker_is_false(api: Any, who: int | None) -> None:
    assert api.heartbeat(who) is False


def test_a_worker_is_on_the_disk_when_its_registration_has_committed(api: Any, actor: Any) -> None:
    """Else a crash of the server could forget it, and keep its claims."""
    a = actor()
    a.rows("set synchronous_commit = off")
    a.begin()
    a.register_worker()
    assert a.value("show synchronous_commit") == "on"


def test_heartbeats_keep_a_worker_and_its_jobs(api: Any, job_in: Any, worker: int, clock: Any) -> None:
    job = job_in("running")
    for _ in range(5):
        clock.advance(seconds=15)
        assert api.heartbeat(worker)
        api.maintain()
    assert api.get_job(job.id) == job


def test_a_lease_that_ran_out_is_still_good_until_workers_are_swept(
    api: Any, job_in: Any, worker: int, clock: Any
) -> None:
    job = job_in("running")
    clock.advance(minutes=5)
    assert api.finish_jobs([job.id], [job.run]) == [job.id]
    assert api.heartbeat(worker)


def test_the_jobs_of_a_dead_worker_are_handed_on_with_their_attempt_counted(
    api: Any, job_in: Any, worker: int, clock: Any
) -> None:
    job = job_in("running", payload="[1]", job_key="k")
    clock.advance(seconds=21)
    assert api.maintain()["rescued"] == 1
    again = api.get_job(job.id)
    assert (again.state, again.attempts, again.run, again.run_at, again.key) == (
        "available",
        1,
        job.run,
        job.run_at,
        "k",
    )
    assert again.last_error
    assert [(error.run, error.worker) for error in api.job_errors(job.id)] == [(job.run, str(worker))]
    claimed = api.claim(api.register_worker())
    assert (claimed.id, claimed.run > job.run, claimed.attempts, claimed.payload) == (job.id, True, 2, [1])


def test_a_dead_workers_late_word_is_refused(api: Any, job_in: Any, worker: int, clock: Any) -> None:
    job = job_in("running")
    clock.advance(minutes=5)
    api.maintain()
    other = api.register_worker()
    for _ in range(2):  # before and after another worker has taken the job
        now = api.get_job(job.id)
        assert api.heartbeat(worker) is False
        assert api.finish_jobs([job.id], [job.run]) == []
        assert api.fail(job) == []
        assert api.release_jobs([job.id], [job.run]) == []
        with api.refusal("PW002"):
            api.snooze_job(job.id, job.run, "1 s")
        with api.refusal("PW002"):
            api.finish_job(job.id, job.run)
        assert api.get_job(job.id) == now
        api.claim(other)


def test_the_job_that_killed_its_worker_once_too_often_is_discarded(
    api: Any, worker: int, clock: Any
) -> None:
    job = api.add_job("t", max_attempts=2, job_key="k")
    for attempt in (1, 2):
        assert api.claim(api.register_worker()).attempts == attempt
        clock.advance(minutes=5)
        api.maintain()
    dead = api.get_job(job.id)
    assert (dead.state, dead.attempts, dead.key) == ("discarded", 2, "k")
    assert "died" in dead.last_error
    assert dead.reason
    assert len(api.job_errors(job.id)) == 2


def test_only_the_dead_workers_jobs_are_handed_on(api: Any, worker: int, clock: Any) -> None:
    api.add_jobs([{"identifier": "t"}] * 4)
    dead = api.claim_jobs(worker, 2)
    clock.advance(seconds=15)
    alive = api.register_worker()
    kept = api.claim_jobs(alive, 2)
    clock.advance(seconds=15)
    assert api.maintain()["rescued"] == 2
    assert [api.get_job(job.id).state for job in dead + kept] == [
        "available",
        "available",
        "running",
        "running",
    ]
    assert api.rows("select id from pyworker.live_workers") == [(alive,)]


def test_the_lease_can_be_configured(api: Any, job_in: Any, clock: Any) -> None:
    api.configure(worker_ttl="1 min")
    worker = api.register_worker()
    api.add_job("x")
    job = api.claim(worker)
    clock.advance(seconds=59)
    assert api.maintain()["rescued"] == 0
    clock.advance(seconds=2)
    assert api.maintain()["rescued"] == 1
    assert api.get_job(job.id).state == "available"
    with api.refusal("PW001", "worker_ttl", "00:00:11"):
        api.configure(worker_ttl="11 s")


def test_a_worker_that_leaves_in_good_order_hands_its_jobs_back_with_their_attempts(
    api: Any, worker: int
) -> None:
    jobs = api.add_jobs([{"identifier": "t", "max_attempts": 1}] * 3)
    api.claim_jobs(worker, 2)
    api.unregister_worker(worker)
    assert [(job.state, job.attempts) for job in map(api.get_job, [job.id for job in jobs])] == [
        ("available", 0)
    ] * 3
    assert api.rows("select from pyworker.live_workers") == []
    assert api.heartbeat(worker) is False
    with api.refusal("PW004"):
        api.claim_jobs(worker)
    assert len(api.claim_jobs(api.register_worker(), 5)) == 3


def test_leaving_twice_or_unknown_does_no_harm(api: Any, job_in: Any, worker: int) -> None:
    job = job_in("running")
    for who in (4711, None):
        api.unregister_worker(who)
    assert api.get_job(job.id) == job
    api.unregister_worker(worker)
    api.unregister_worker(worker)


def test_force_unlock_hands_on_the_jobs_of_just_these_workers(api: Any, worker: int) -> None:
    jobs = api.add_jobs([{"identifier": "t", "max_attempts": n} for n in (1, 5, 5, 5)])
    other = api.register_worker()
    last_try, mine, *theirs = api.claim_jobs(worker, 2) + api.claim_jobs(other, 1)
    api.force_unlock_workers([str(worker), "no number", "", None, "-1", "99999999999999999999", "4711"])
    states = [api.get_job(job.id).state for job in jobs]
    assert states == ["discarded", "available", "running", "available"]
    unlocked = api.get_job(mine.id)
    assert (unlocked.attempts, unlocked.run_at) == (1, mine.run_at)
    assert api.get_job(last_try.id).last_error
    assert api.finish_jobs([mine.id, last_try.id], [mine.run, last_try.run]) == []
    assert api.finish_jobs([theirs[0].id], [theirs[0].run]) == [theirs[0].id]
    assert api.heartbeat(worker)
    api.force_unlock_workers(None)
    api.force_unlock_workers([])


def test_jobs_of_a_worker_that_is_not_there_at_all_are_handed_on(api: Any, job_in: Any, worker: int) -> None:
    job = job_in("running")
    api.rows("delete from pyworker.workers")
    assert api.maintain()["rescued"] == 1
    assert api.get_job(job.id).state == "available"


def test_dead_workers_are_forgotten_after_a_day(api: Any, worker: int, clock: Any) -> None:
    clock.advance(minutes=5)
    api.maintain()
    assert api.value("select count(*) from pyworker.workers") == 1
    clock.advance(days=1, minutes=1)
    api.maintain()
    assert api.value("select count(*) from pyworker.workers") == 0


def test_after_a_lost_connection_worker_and_database_agree_again(api: Any, worker: int) -> None:
    jobs = api.add_jobs([{"identifier": "t"}] * 4)
    known, unheard, finished = api.claim_jobs(worker, 3)
    theirs = api.claim(api.register_worker())
    api.finish_job(finished.id, finished.run)
    named = [known.id, finished.id, theirs.id, 4711]
    assert api.reconcile(worker, named, [known.run, finished.run, theirs.run, 1]) == [known.id]
    states = [(job.state, job.attempts) for job in map(api.get_job, [job.id for job in jobs])]
    assert states == [("running", 1), ("available", 0), ("completed", 1), ("running", 1)]
    assert api.finish_jobs([unheard.id], [unheard.run]) == []
    assert api.reconcile(worker, [known.id], [known.run + 1]) == []
    assert api.reconcile(worker, None, None) == []
    assert api.get_job(known.id).state == "available"


def test_a_dead_worker_has_nothing_to_reconcile(api: Any, job_in: Any, worker: int, clock: Any) -> None:
    job = job_in("running")
    clock.advance(minutes=5)
    api.maintain()
    for who in (worker, 4711, None):
        with api.refusal("PW004", "reconcile"):
            api.reconcile(who, [job.id], [job.run])


# Which jobs it takes

FILTERS = ("task_identifiers", "queue_names", "forbidden_flags")
TASKS = [None, [], ["t"], ["u", 'it\'s "odd"'], ["T"], ["u", None]]
QUEUES = [None, [], ["default"], ["q", "r"], ["q", "default"], [None]]
FLAGS = [None, [], ["slow"], ["red", "slow"], ["none such"], ["red", None]]


def test_a_claim_and_takes_agree_on_the_jobs_that_a_worker_takes(api: Any, actor: Any, worker: int) -> None:
    for queue in "qr":
        api.set_queue(queue, None)
    for task, queue, flags in product(("t", 'it\'s "odd"'), (None, "q", "r"), (None, ["slow"], ["red", "x"])):
        api.add_job(task, queue_name=queue, flags=flags)
    a = actor()
    sizes: set[int] = set()
    for given in product(TASKS, QUEUES, FLAGS):
        a.begin()
        claimed = {job.id for job in a.claim_jobs(worker, 100, *given)}
        a.rollback()
        api.update_worker(worker, dict(zip(FILTERS, given, strict=True)))
        taken = api.rows("""
            select j.id from pyworker.jobs j, pyworker.workers w
            where pyworker._takes(w, j.task_identifier, coalesce(j.queue_name, 'default'), j.flags)
        """)
        assert claimed == {job_id for (job_id,) in taken}, given
        sizes.add(len(claimed))
    assert {0, 1, 18} <= sizes


@pytest.mark.parametrize(
    ("task", "queue", "flags", "expected"),
    [
        ("t", None, None, True), ("u", None, None, False),
        (None, "q", None, True), (None, "default", None, False),
        (None, None, '{"x": true}', True), (None, None, '{"slow": true}', False),
        (None, None, None, True),
    ],
)  # fmt: skip
def test_what_is_null_is_not_compared(
    api: Any, worker: int, task: str | None, queue: str | None, flags: str | None, expected: bool
) -> None:
    api.update_worker(worker, dict(zip(FILTERS, (["t"], ["q"], ["slow"]), strict=True)))
    takes = "select pyworker._takes(w, %s, %s, %s) from pyworker.workers w"
    assert api.value(takes, [task, queue, flags]) is expected


@pytest.mark.parametrize(
    "rule", ["_is_registered(w)", "_is_live(w, clock())", "_has_lock(w, '{1}')", "_takes(w, 't', 'q', '{}')"]
)
def test_the_rules_about_workers_are_inlined(actor: Any, rule: str) -> None:
    a = actor()
    a.rows("set search_path = pyworker")
    plan = "\n".join(line for (line,) in a.rows(f"explain (verbose) select from workers w where {rule}"))
    assert "Filter: " in plan
    assert rule.partition("(")[0] not in plan
