"""Every state and every verb: what happens, and that the invariants hold after each."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

# A state: the job's new one. =: returned or accepted, unchanged. -: left out, unchanged. PW…:
# refused, unchanged.
WAITING_OR_RUNNING = """
                    scheduled  pending    queued     available  running
claim               -          -          -          running    -
promote             -          -          -          -          -
maintain            -          -          -          -          -
finish_jobs         -          -          -          -          completed
finish_job          PW002      PW002      PW002      PW002      completed
fail                -          -          -          -          retryable
fail_for_good       -          -          -          -          discarded
fail_cancel         -          -          -          -          cancelled
snooze              PW002      PW002      PW002      PW002      scheduled
release             -          -          -          -          available
reconcile           -          -          -          -          available
unregister          -          -          -          -          available
force_unlock        -          -          -          -          available
sweep               -          -          -          -          available
cancel              cancelled  cancelled  cancelled  cancelled  =
cancel_by_force     cancelled  cancelled  cancelled  cancelled  cancelled
retry               available  pending    =          =          PW005
retry_jobs          available  pending    =          =          -
delete              gone       gone       gone       gone       PW005
complete_jobs       completed  completed  completed  completed  -
permanently_fail    discarded  discarded  discarded  discarded  -
reschedule_later    scheduled  pending    scheduled  scheduled  -
reschedule_earlier  available  pending    available  available  -
reschedule_used_up  discarded  discarded  discarded  discarded  -
remove_job          gone       gone       gone       gone       running
replace             available  available  available  available  running
preserve_run_at     scheduled  available  available  available  running
unsafe_dedupe       =          =          =          =          =
"""
FAILED_OR_ENDED = """
                    retryable  due        discarded  completed  cancelled
claim               -          running    -          -          -
promote             -          -          -          -          -
maintain            -          -          -          -          -
finish_jobs         -          -          -          -          -
finish_job          PW002      PW002      PW002      PW002      PW002
fail                -          -          -          -          -
fail_for_good       -          -          -          -          -
fail_cancel         -          -          -          -          -
snooze              PW002      PW002      PW002      PW002      PW002
release             -          -          -          -          -
reconcile           -          -          -          -          -
unregister          -          -          -          -          -
force_unlock        -          -          -          -          -
sweep               -          -          -          -          -
cancel              cancelled  cancelled  =          =          =
cancel_by_force     cancelled  cancelled  =          =          =
retry               available  =          available  available  available
retry_jobs          available  =          available  available  available
delete              gone       gone       gone       gone       gone
complete_jobs       completed  completed  completed  -          -
permanently_fail    discarded  discarded  discarded  -          -
reschedule_later    retryable  retryable  retryable  -          -
reschedule_earlier  available  available  available  -          -
reschedule_used_up  discarded  discarded  discarded  -          -
remove_job          gone       gone       gone       -          -
replace             available  available  available  -          -
preserve_run_at     available  available  available  -          -
unsafe_dedupe       =          =          =          -          -
"""


def fail(api: Any, job: Any, **more: Any) -> Any:
    return api.fail(job, "boom", **more)


def add(api: Any, job: Any, mode: str) -> bool:
    return api.add_job(job.task_identifier, job_key=job.key, job_key_mode=mode).id == job.id


def unless_empty(rows: list[Any]) -> Any:
    return [row for row in rows if row.id is not None]


VERBS: dict[str, Callable[[Any, Any, int, Any], Any]] = {
    "claim": lambda api, job, worker, clock: api.claim(worker, job.task_identifier),
    "promote": lambda api, job, worker, clock: api.promote_jobs(),
    "maintain": lambda api, job, worker, clock: api.maintain()["rescued"] or None,
    "finish_jobs": lambda api, job, worker, clock: api.finish_jobs([job.id], [job.run]),
    "finish_job": lambda api, job, worker, clock: api.finish_job(job.id, job.run),
    "fail": lambda api, job, worker, clock: fail(api, job),
    "fail_for_good": lambda api, job, worker, clock: fail(api, job, discard=True),
    "fail_cancel": lambda api, job, worker, clock: fail(api, job, cancel=True),
    "snooze": lambda api, job, worker, clock: api.snooze_job(job.id, job.run, "1 hour"),
    "release": lambda api, job, worker, clock: api.release_jobs([job.id], [job.run]),
    "reconcile": lambda api, job, worker, clock: api.reconcile(worker, [], []),
    "unregister": lambda api, job, worker, clock: [api.unregister_worker(worker)] and None,
    "force_unlock": lambda api, job, worker, clock: [api.force_unlock_workers([str(worker)])] and None,
    "sweep": lambda api, job, worker, clock: (clock.advance(seconds=21), api.maintain(), None)[-1],
    "cancel": lambda api, job, worker, clock: api.cancel_job(job.id),
    "cancel_by_force": lambda api, job, worker, clock: api.cancel_job(job.id, force=True),
    "retry": lambda api, job, worker, clock: api.retry_job(job.id),
    "retry_jobs": lambda api, job, worker, clock: api.retry_jobs([job.id]),
    "delete": lambda api, job, worker, clock: api.delete_job(job.id),
    "complete_jobs": lambda api, job, worker, clock: api.complete_jobs([job.id]),
    "permanently_fail": lambda api, job, worker, clock: api.permanently_fail_jobs([job.id], "by hand"),
    "reschedule_later": lambda api, job, worker, clock: api.reschedule_jobs([job.id], api.at("2 days")),
    "reschedule_earlier": lambda api, job, worker, clock: api.reschedule_jobs([job.id], api.at("-1 day")),
    "reschedule_used_up": lambda api, job, worker, clock: api.reschedule_jobs([job.id], attempts=25),
    "remove_job": lambda api, job, worker, clock: unless_empty([api.remove_job(job.key)]),
    "replace": lambda api, job, worker, clock: add(api, job, "replace"),
    "preserve_run_at": lambda api, job, worker, clock: add(api, job, "preserve_run_at"),
    "unsafe_dedupe": lambda api, job, worker, clock: add(api, job, "unsafe_dedupe"),
}

TABLES = (
    [line.split() for line in table.strip().splitlines()] for table in (WAITING_OR_RUNNING, FAILED_OR_ENDED)
)
(STATES, *ROWS), (more_states, *more_rows) = TABLES
STATES += more_states
for row, more in zip(ROWS, more_rows, strict=True):
    assert row[0] == more[0], "the tables have the same verbs"
    row += more[1:]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_each_verb_does_to_each_state_what_the_table_says(
    api: Any, job_in: Any, worker: int, clock: Any, row: list[str]
) -> None:
    verb, *expected = row
    # The one that moves the clock comes first.
    jobs = {
        state: job_in(state, f"task {state}", job_key=f"key {state}")
        for state in sorted(STATES, key="due".__ne__)
    }
    found = {}
    for state in STATES:
        before = jobs[state]
        try:
            result: Any = VERBS[verb](api, before, worker, clock)
        except psycopg.Error as error:
            result = error.sqlstate
        job = api.get_job(before.id)
        changed = job.state or "gone"
        found[state] = (
            changed
            if job != before
            else result
            if isinstance(result, str) and result
            else "="
            if result
            else "-"
        )
    assert found == dict(zip(STATES, expected, strict=True))


def test_time_goes_on_within_a_transaction(actor: Any, worker: int) -> None:
    a = actor()
    a.begin()
    begun = a.value("select clock_timestamp()")
    job = a.add_job("t")
    assert job.created_at > begun
    assert a.claim(worker).id == job.id
    assert a.get_job(job.id).locked_at > job.created_at
    assert a.heartbeat(worker) is True
    beat_at = a.value("select beat_at from pyworker.workers")
    assert beat_at > job.created_at
    a.finish(job.id)
    assert a.get_job(job.id).finished_at > beat_at
    soon = a.add_job("t", run_at=a.at("10 ms"))
    until = time.monotonic() + 5
    while a.get_job(soon.id).state == "scheduled":
        a.promote_jobs()
        assert time.monotonic() < until
    a.commit()


def test_every_verb_is_in_the_table() -> None:
    assert sorted(VERBS) == sorted(row[0] for row in ROWS)


class Walk:
    """Random verbs on a few jobs, keys, queues and workers; nothing may break, in any order."""

    def __init__(self, api: Any, clock: Any, rng: random.Random) -> None:
        self.api, self.clock, self.rng = api, clock, rng
        self.workers = [api.register_worker() for _ in range(3)]
        self.claims: list[Any] = []  # also long after they were lost
        self.runs: dict[int, int] = {}

    def job_id(self) -> int:
        return self.rng.randrange(1, 40)

    def add(self) -> Any:
        rng = self.rng
        return {
            "identifier": rng.choice("tu"),
            "job_key": rng.choice([None, "a", "b", "c"]),
            "queue_name": rng.choice([None, None, "p", "q"]),
            "job_key_mode": rng.choice(["replace", "preserve_run_at", "unsafe_dedupe"]),
            "run_at": str(self.api.at(rng.choice(["0", "0", "1 hour", "-1 hour"]))),
            "priority": rng.choice([-1, 0, 1]),
            "max_attempts": rng.choice([1, 2, 25]),
            "payload": [rng.randrange(10)] if rng.random() < 0.5 else {"a": 1},
        }

    def step(self) -> None:
        api, rng = self.api, self.rng
        claim = rng.choice(self.claims) if self.claims else None
        worker = rng.choice(self.workers)
        verbs: list[Callable[[], Any]] = [
            lambda: api.add_job(
                **{**(spec := self.add()), "payload": str(spec["payload"]).replace("'", '"')}
            ),
            lambda: api.add_jobs([self.add() for _ in range(rng.randrange(1, 6))]),
            lambda: self.claims.extend(self.seen(api.claim_jobs(worker, rng.randrange(1, 4)))),
            lambda: self.claims.extend(self.seen(api.claim_jobs(worker, rng.randrange(1, 4)))),
            lambda: api.remove_job(rng.choice("abc")),
            lambda: api.cancel_job(self.job_id(), rng.random() < 0.3),
            lambda: api.retry_job(self.job_id()),
            lambda: api.retry_jobs([self.job_id() for _ in range(3)]),
            lambda: api.delete_job(self.job_id()),
            lambda: api.complete_jobs([self.job_id()]),
            lambda: api.permanently_fail_jobs([self.job_id()]),
            lambda: api.reschedule_jobs(
                [self.job_id(), self.job_id()],
                rng.choice([None, api.at("1 hour"), api.at("-1 hour")]),
                rng.choice([None, 2]),
                rng.choice([None, 0]),
                rng.choice([None, 1, 3]),
            ),
            lambda: api.configure(
                completed_retention=rng.choice(["0", "1 day"]), discarded_retention=rng.choice(["0", "1 day"])
            ),
            lambda: self.clock.advance(seconds=rng.choice([1, 15, 4000])),
            lambda: [api.heartbeat(w) for w in self.workers],
            lambda: api.maintain(),
            lambda: api.prune(),
            lambda: self.renew(worker, api.unregister_worker),
            lambda: api.force_unlock_workers([str(worker)]),
            lambda: api.reconcile(
                worker, [c.id for c in self.claims[-3:]], [c.run for c in self.claims[-3:]]
            ),
        ]
        if claim:
            verbs += [
                lambda: api.finish_jobs([claim.id], [claim.run]),
                lambda: api.finish_jobs([c.id for c in self.claims[-5:]], [c.run for c in self.claims[-5:]]),
                lambda: api.finish_job(claim.id, claim.run),
                lambda: api.fail(claim),
                lambda: api.fail(claim, delay=0),
                lambda: api.fail(claim, discard=True),
                lambda: api.fail(claim, cancel=True),
                lambda: api.snooze_job(claim.id, claim.run, rng.choice(["0", "1 hour"])),
                lambda: api.release_jobs([claim.id], [claim.run]),
            ] * 2
        try:
            rng.choice(verbs)()
        except psycopg.Error as error:
            if error.sqlstate not in ("PW002", "PW003", "PW004", "PW005"):
                raise
            if error.sqlstate == "PW004" and not api.heartbeat(worker):
                self.renew(worker)

    def renew(self, worker: int, *goodbye: Callable[[int], Any]) -> None:
        for say in goodbye:
            say(worker)
        self.workers[self.workers.index(worker)] = self.api.register_worker()

    def seen(self, jobs: list[Any]) -> list[Any]:
        for job in jobs:
            assert job.run > self.runs.get(job.id, 0), "a run number was given out twice"
            assert job.attempts <= job.max_attempts, "more attempts than allowed"
            self.runs[job.id] = job.run
        return jobs


@pytest.mark.parametrize("seed", range(int(os.environ.get("PYWORKER_WALKS", "4"))))
def test_no_order_of_events_breaks_an_invariant(api: Any, clock: Any, invariants: Any, seed: int) -> None:
    walk = Walk(api, clock, random.Random(seed))
    for _ in range(150):
        walk.step()
        invariants(api.conn)
    # What is left can be worked off: nothing is stranded.
    clock.advance(days=2)
    worker = api.register_worker()
    left = "select * from pyworker.jobs where state <> 'discarded'"
    for _ in range(200):
        api.maintain()
        jobs = api.claim_jobs(worker, 10)
        api.finish_jobs([job.id for job in jobs], [job.run for job in jobs])
        api.heartbeat(worker)
        if not api.rows(left):
            break
    assert api.rows(left) == []


def test_advance_clock_moves_the_time_of_every_session_for_good(api: Any, actor: Any, worker: int) -> None:
    other = actor()
    job = api.add_job("t", run_at=api.at("3 hours"))
    assert other.claim_jobs(worker) == []
    told = api.advance_clock("3 hours 1 second")
    assert other.at() >= told >= job.run_at
    other.heartbeat(worker)
    assert [claimed.id for claimed in other.claim_jobs(worker)] == [job.id]
    back = api.advance_clock("-3 hours -1 second")
    assert back < job.run_at
    for by in (None, "101 years", "-101 years"):
        with api.refusal("PW001", "advance_clock: by must be"):
            api.advance_clock(by)


def test_all_that_goes_by_time_follows_advance_clock_in_other_sessions(
    api: Any, actor: Any, worker: int
) -> None:
    other = actor()
    policy = {
        "keys": ["type"],
        "period": "PT1H",
        "states": ["available", "completed"],
        "on_conflict": "ignore",
    }
    retried = other.add_job("retried")
    first = other.add_job("kept", unique_policy=policy)
    kept = other.claim(worker, "kept")
    other.finish_job(kept.id, kept.run)
    other.fail(other.claim(worker, "retried"), delay="30 min")
    assert other.add_job("kept", unique_policy=policy).id == first.id
    held = other.add_job("held")
    other.claim(worker, "held")
    other.add_schedule("hourly", "0 * * * *", "ticked")
    api.advance_clock(api.value("select make_interval(secs => pyworker.seconds_until_tick() + 1)"))
    assert other.run_schedules() == 1  # schedules
    api.advance_clock("1 hour")
    other.maintain()
    other.maintain()  # after a gap in which no worker could beat, each has a new lease
    api.advance_clock("30 seconds")
    other.maintain()
    assert other.get_job(held.id).state == "available"  # leases
    assert other.get_job(retried.id).state == "available"  # backoff
    assert other.add_job("kept", unique_policy=policy).id != first.id  # periods
    assert other.get_job(first.id).id == first.id
    api.advance_clock("3 days")
    other.maintain()
    assert other.get_job(first.id).id is None  # retention
