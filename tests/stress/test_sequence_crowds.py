"""Sequences under load from many sessions: one job at a time, in order, none forgotten."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from typing import Any

import psycopg
import pytest

from tests.support.crowd import LONG, Crowd

OPERATORS = 2


@pytest.mark.parametrize("rounds", [60, LONG])
def test_sequences_run_one_job_at_a_time_in_order_and_forget_no_job(
    api: Any, dsn: str, rounds: int | None, invariants: Any, record_property: Any
) -> None:
    """Twenty sequences, eight workers that fail, snooze, release, cancel and die, adders that
    commit late or roll back."""
    crowd = Crowd(api, dsn, rounds)
    keys = [f"s{i}" for i in range(20)]
    guard = threading.Lock()
    running: dict[str, int] = {}
    resumed: dict[str, list[list[float]]] = {key: [] for key in keys}  # from, to
    # Per sequence, in the order in which they happened: (start, id, when), then (end, id, when its
    # last call began, what it was)
    story: dict[str, list[tuple[Any, ...]]] = {key: [] for key in keys}
    known: dict[int, float] = {}  # from when on every session can see that this job is to run
    goes_on: dict[int, dict[str, bool]] = {}
    touched: set[int] = set()  # a session decided about it by hand: it may leave its place
    counts: Counter[str] = Counter()
    gone: list[bool] = []  # operators that have ended
    api.define_task("t", backoff="[0]", max_attempts=32767)

    def adder(api: Any, rng: random.Random) -> list[int]:
        committed = []
        for _ in crowd.again():
            policy = {
                "key": rng.choice(keys),
                "continue_on_cancelled": rng.random() < 0.5,
                "continue_on_discarded": rng.random() < 0.5,
            }
            more = rng.choice([{}, {}, {"queue_name": f"q{rng.randrange(3)}"}])
            spec = {"identifier": "t", "sequence_policy": policy, "priority": rng.randrange(3), **more}
            roll_back = rng.random() < 0.15
            with api.conn.transaction(force_rollback=roll_back):
                if rng.random() < 0.3:
                    jobs = api.add_jobs(
                        [{**spec, "sequence_policy": {**policy, "key": rng.choice(keys)}} for _ in "abc"]
                    )
                else:
                    jobs = [api.add_job(**spec)]
                for job in jobs:
                    goes_on[job.id] = {
                        "cancel": policy["continue_on_cancelled"],
                        "discard": policy["continue_on_discarded"],
                    }
                if rng.random() < 0.5:
                    api.rows("select pg_sleep(%s)", [rng.random() * 0.1])
            counts["rolled back" if roll_back else "added"] += len(jobs)
            if not roll_back:
                at = time.monotonic()
                for job in jobs:
                    known[job.id] = at
                committed += [job.id for job in jobs]
        return committed

    def note_start(job: Any) -> None:
        with guard:
            assert job.sequence_key not in running, f"{job.id} runs beside {running[job.sequence_key]}"
            running[job.sequence_key] = job.id
            story[job.sequence_key].append(("start", job.id, time.monotonic()))

    def note_end(job: Any, what: str) -> None:
        """Before the call that ends the run, as from then on the next one may start."""
        with guard:
            del running[job.sequence_key]
            story[job.sequence_key].append(("end", job.id, time.monotonic(), what))
            counts[what] += 1

    def finish(api: Any, job: Any, rng: random.Random) -> None:
        level = rng.choice(["read committed", "read committed", "repeatable read", "serializable"])
        try:
            with api.conn.transaction(force_rollback=rng.random() < 0.3):
                api.rows(f"set transaction isolation level {level}")
                api.finish_job(job.id, job.run)
                if rng.random() < 0.3:
                    api.rows("select pg_sleep(%s)", [rng.random() * 0.01])
        except psycopg.errors.SerializationFailure:
            assert level != "read committed"
        except psycopg.Error as error:
            if error.sqlstate != "PW002":
                raise
        api.finish_jobs([job.id], [job.run])

    def worker(api: Any, rng: random.Random) -> None:
        me = api.register_worker()
        idle = 0
        # An operator may retry a job after the last one has ended.
        while (
            crowd.adding.is_set()
            or len(gone) < OPERATORS
            or api.rows("select from pyworker.jobs where state <> 'discarded' limit 1")
        ):
            jobs = api.claim_jobs(me, rng.choice([1, 2, 4]))
            idle = 0 if jobs or crowd.adding.is_set() else idle + 1
            assert idle < 5000, "jobs are left that no worker can claim"
            for job in jobs:
                note_start(job)
            die = rng.random() < 0.03
            for job in jobs:
                what = "die" if die else rng.choices(
                    ["finish", "batch", "fail", "discard", "cancel", "snooze", "release", "request"],
                    [20, 30, 10, 4, 4, 6, 6, 3])[0]  # fmt: skip
                if what == "request":
                    touched.add(job.id)
                    api.cancel_job(job.id)
                note_end(job, what)
                if what == "finish":
                    finish(api, job, rng)
                elif what == "batch":
                    api.finish_jobs([job.id], [job.run])
                elif what == "snooze":
                    try:
                        api.snooze_job(job.id, job.run, "0")
                    except psycopg.Error as error:  # cancelled by force meanwhile
                        if error.sqlstate != "PW002":
                            raise
                elif what == "release":
                    api.release_jobs([job.id], [job.run])
                elif what != "die":
                    api.fail(job, discard=what == "discard", cancel=what == "cancel")
            if die:
                api.force_unlock_workers([str(me)])
                me = api.register_worker()
        api.unregister_worker(me)

    def operator(api: Any, rng: random.Random) -> None:
        """Resumes what is halted in one way or another, and cancels what waits."""
        while crowd.adding.is_set() or api.rows(
            "select from pyworker.jobs where state <> 'discarded' limit 1"
        ):
            for row in api.rows("select * from pyworker.sequences where halted_by is not null"):
                how = rng.choice(["retry", "retry", "resume", "delete"])
                counts[how] += 1
                with guard:
                    touched.add(row.halted_by)
                try:
                    if how == "resume":  # at the job that halts it by now
                        call = [time.monotonic(), float("inf")]
                        resumed[row.sequence_key].append(call)
                        api.resume_sequence(row.sequence_key)
                        call[1] = time.monotonic()
                    elif how == "delete":
                        api.delete_job(row.halted_by)
                    else:
                        api.retry_job(row.halted_by)
                except psycopg.Error as error:
                    if error.sqlstate not in ("PW004", "PW005"):
                        raise
            if crowd.adding.is_set() and rng.random() < 0.5:
                for row in api.rows(
                    "select id, state from pyworker.jobs where state <> 'discarded' order by random() limit 1"
                ):
                    with guard:
                        touched.add(row.id)
                    force = (
                        row.state != "running"
                    )  # a run that is cancelled by force ends without a word of its worker
                    if force:
                        counts["cancelled"] += 1
                        try:
                            with api.conn.transaction(force_rollback=rng.random() < 0.3):
                                if rng.random() < 0.5:
                                    api.cancel_job(row.id)
                                else:
                                    api.complete_jobs([row.id])
                        except psycopg.Error as error:  # deleted by the other operator
                            if error.sqlstate != "PW004":
                                raise

        gone.append(True)

    def watcher(api: Any, rng: random.Random) -> None:
        while crowd.adding.is_set():
            invariants(api.conn)

    begun = time.monotonic()
    added = crowd.run([adder] * 4, [worker] * 8 + [operator] * OPERATORS + [watcher])
    seconds = time.monotonic() - begun

    starts = late = 0
    for key, events in story.items():
        last: tuple[Any, ...] | None = None
        for n, event in enumerate(events):
            assert event[0] == ("start" if n % 2 == 0 else "end"), "intervals of one sequence overlap"
            if event[0] == "end":
                last = event
                continue
            starts += 1
            job = event[1]
            if last is None:
                continue
            _, before, ended, what = last
            if what not in ("finish", "batch", "discard", "cancel") and before not in touched:
                assert job == before, f"{job} overtook {before}, which was to run again ({what})"
            if job > before and not goes_on[before].get(what, True):
                by_hand = any(since <= event[2] and ended <= until for since, until in resumed[key])
                assert by_hand or before in touched, f"{job} ran though {before} had halted the sequence"
            if job < before and job not in touched:
                late += 1
            if job == before:
                continue  # put back, it keeps its place
            # A job that was in sight before the last run ended, with a lower id, came before this one.
            for other in {e[1] for e in events[n + 1 :] if e[0] == "start"}:
                if other < job and other not in touched and job not in touched:
                    assert known.get(other, ended) >= ended, f"{job} overtook {other}"
    committed = {job for jobs in added for job in jobs}
    ran = {event[1] for events in story.values() for event in events}
    assert ran <= committed, "nothing ran that was rolled back"
    assert committed - ran <= touched, "everything that was added ran, or was cancelled by hand"
    assert {row.state for row in api.rows("select distinct state from pyworker.jobs")} <= {"discarded"}
    assert api.rows("select from pyworker.sequences where waiting > 0 or running is not null") == []
    figures = (
        f"{starts} starts of {len(committed)} jobs in 20 sequences in {seconds:.1f} s, {late} committed "
        f"late; {dict(counts)}"
    )
    record_property("figures", figures)
    print(f"\n4 adders x 8 workers: {figures}")
