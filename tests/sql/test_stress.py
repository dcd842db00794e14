"""Many sessions at once: no keyed add is ever lost, and a queue never runs two jobs nor forgets one.

The long versions: pytest -m torture, with PYWORKER_TORTURE_SECONDS (30 by default) for each.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

SECONDS = float(os.environ.get("PYWORKER_TORTURE_SECONDS", "30"))
LONG = pytest.param(None, marks=pytest.mark.torture, id="long")


class Crowd:
    """Threads with a session each. rounds: how often each does its work, or None for as long as SECONDS."""

    def __init__(self, api: Any, dsn: str, rounds: int | None) -> None:
        self.api, self.dsn, self.rounds = api, dsn, rounds
        self.until = time.monotonic() + SECONDS
        self.adding = threading.Event()
        self.adding.set()

    def again(self) -> Iterator[int]:
        i = 0
        while i < self.rounds if self.rounds else time.monotonic() < self.until:
            yield i
            i += 1

    def run(
        self,
        adders: list[Callable[[Any, random.Random], Any]],
        workers: list[Callable[[Any, random.Random], Any]],
    ) -> list[Any]:
        def one(work: Callable[[Any, random.Random], Any], seed: int) -> Any:
            with psycopg.connect(self.dsn, autocommit=True) as conn:
                return work(type(self.api)(conn), random.Random(seed))

        with ThreadPoolExecutor(len(adders) + len(workers)) as threads:
            working = [threads.submit(one, work, 100 + i) for i, work in enumerate(workers)]
            adding = [threads.submit(one, work, i) for i, work in enumerate(adders)]
            try:
                added = [future.result() for future in adding]
            finally:
                self.adding.clear()
            for future in working:
                future.result()
        return added


@pytest.mark.parametrize("failing", [False, True], ids=["all succeed", "some fail"])
@pytest.mark.parametrize("rounds", [150, LONG])
def test_no_keyed_add_is_lost_between_adders_and_workers(
    api: Any, dsn: str, rounds: int | None, failing: bool, record_property: Any
) -> None:
    """Graphile Worker loses 16.5 % of the adds here."""
    crowd = Crowd(api, dsn, rounds)
    keys = [f"k{i}" for i in range(5)]

    def adder(api: Any, rng: random.Random) -> list[str]:
        added = []
        me = threading.get_ident()
        for i in crowd.again():
            count = rng.choice([1, 1, 1, 3])
            specs = [
                {
                    "identifier": "t",
                    "payload": [f"{me}/{i}/{n}"],
                    "job_key": rng.choice(keys),
                    "job_key_mode": rng.choice(["replace", "preserve_run_at"]),
                }
                for n in range(count)
            ]
            level = rng.choice(["read committed", "read committed", "repeatable read", "serializable"])
            while True:
                try:
                    with api.conn.transaction():
                        api.rows(f"set transaction isolation level {level}")
                        if count > 1:
                            jobs = api.add_jobs(specs)
                        else:
                            jobs = [api.add_job(**{**specs[0], "payload": json.dumps(specs[0]["payload"])})]
                    break
                except psycopg.errors.SerializationFailure:
                    assert level != "read committed"
            assert [job.payload[-1] for job in jobs] == [spec["payload"][0] for spec in specs]
            added += [spec["payload"][0] for spec in specs]
        return added

    def worker(api: Any, rng: random.Random) -> None:
        me = api.register_worker()
        while crowd.adding.is_set():
            for job in api.claim_jobs(me, rng.choice([1, 2, 5])):
                end = rng.random() if failing else 1
                if end < 0.15:
                    api.fail(job, delay=0)
                elif end < 0.25:
                    api.release_jobs([job.id], [job.run])
                elif end < 0.3:
                    api.snooze_job(job.id, job.run, "0")
                else:
                    assert api.finish_jobs([job.id], [job.run]) == [job.id]
        api.unregister_worker(me)

    added = [element for elements in crowd.run([adder] * 4, [worker] * 3) for element in elements]
    rows = api.rows(
        "select state, reason, payload from pyworker.live_jobs union all"
        " select state, reason, payload from pyworker.finished_jobs".replace(
            "payload from", "payload::jsonb from"
        )
    )
    seen = Counter(element for row in rows for element in row.payload)
    fate = Counter(row.reason or row.state for row in rows)
    record_property(
        "figures", f"{len(added)} elements added, {len(set(added) - set(seen))} lost, jobs: {dict(fate)}"
    )
    print(
        f"\n4 adders x 3 workers: {len(added)} elements added, {len(set(added) - set(seen))} lost, jobs: {dict(fate)}"
    )
    assert seen == Counter(added), "each element is in exactly one job"
    assert set(fate) <= ({"completed", "available", "superseded"} if failing else {"completed", "available"})


@pytest.mark.parametrize("rounds", [60, LONG])
def test_claims_reports_and_bulk_adds_onto_the_same_jobs_do_not_deadlock(
    api: Any, dsn: str, rounds: int | None, record_property: Any
) -> None:
    """A worker reports and claims in one transaction; SKIP LOCKED itself may wait, for a row that has just changed."""
    crowd = Crowd(api, dsn, rounds)
    specs = [{"identifier": "t", "job_key": f"k{n}"} for n in range(12)]

    def adder(api: Any, rng: random.Random) -> int:
        return sum(len(api.add_jobs(rng.sample(specs, 12))) for _ in crowd.again())

    def worker(api: Any, rng: random.Random) -> None:
        me = api.register_worker()
        jobs: list[Any] = []
        while crowd.adding.is_set():
            with api.conn.transaction():
                match rng.randrange(3):
                    case 0:
                        api.finish_jobs([job.id for job in jobs], [job.run for job in jobs])
                    case 1:
                        api.fail_jobs(Jsonb([{"id": job.id, "run": job.run, "delay": "0"} for job in jobs]))
                    case _:
                        api.release_jobs([job.id for job in jobs], [job.run for job in jobs])
                jobs = api.claim_jobs(me, 10)
        api.unregister_worker(me)

    added = sum(crowd.run([adder] * 5, [worker] * 2))
    record_property("figures", f"{added} keyed adds in bulk, no deadlock")


@pytest.mark.parametrize("rounds", [100, LONG])
def test_queues_stay_serial_and_forget_nobody(
    api: Any, dsn: str, rounds: int | None, invariants: Any, record_property: Any
) -> None:
    crowd = Crowd(api, dsn, rounds)
    running: dict[str, int] = {}
    guard = threading.Lock()
    api.define_task("t", backoff="[0]", max_attempts=32767)

    def adder(api: Any, rng: random.Random) -> int:
        for _ in crowd.again():
            queue = f"q{rng.randrange(10)}"
            with api.conn.transaction(force_rollback=rng.random() < 0.1):
                if rng.random() < 0.3:
                    api.add_job("t", queue_name=queue, job_key=f"k{rng.randrange(4)}")
                else:
                    api.add_jobs(
                        [{"identifier": "t", "queue_name": queue, "priority": rng.randrange(3)}]
                        * rng.randrange(1, 4)
                    )
        return 0

    def worker(api: Any, rng: random.Random) -> None:
        me = api.register_worker()
        idle = 0
        while crowd.adding.is_set() or api.rows("select from pyworker.jobs limit 1"):
            api.heartbeat(me)
            jobs = api.claim_jobs(me, rng.choice([1, 3, 10]))
            idle = 0 if jobs or crowd.adding.is_set() else idle + 1
            assert idle < 2000, "jobs are left that nobody can claim"
            for job in jobs:
                with guard:
                    assert job.queue_name not in running, "two jobs of one queue at once"
                    running[job.queue_name] = job.id
            for job in jobs:
                with guard:  # from here on the next one may start
                    del running[job.queue_name]
                end = rng.random()
                if end < 0.1:
                    api.fail(job)
                elif end < 0.15:
                    api.snooze_job(job.id, job.run, "0")
                elif end < 0.2:
                    api.release_jobs([job.id], [job.run])
                elif end < 0.5:
                    with api.conn.transaction(force_rollback=end < 0.25):
                        api.finish_job(job.id, job.run)
                    if end < 0.25:
                        api.finish_jobs([job.id], [job.run])
                else:
                    api.finish_jobs([job.id], [job.run])

    def watcher(api: Any, rng: random.Random) -> None:
        while crowd.adding.is_set():
            invariants(api.conn)

    crowd.run([adder] * 3, [worker] * 4 + [watcher])
    (ends,) = api.rows("select count(*) as jobs, sum(run) as runs from pyworker.history")
    record_property("figures", f"{ends.jobs} jobs in 10 queues, {ends.runs} runs")
    print(
        f"\n3 adders x 4 workers: {ends.jobs} jobs in 10 queues, {ends.runs} runs, none overlapping, none stranded"
    )
    assert api.rows("select from pyworker.jobs") == []


@pytest.mark.parametrize("rounds", [60, LONG])
def test_sequences_run_one_job_at_a_time_in_order_and_forget_nobody(
    api: Any, dsn: str, rounds: int | None, invariants: Any, record_property: Any
) -> None:
    """Twenty sequences, eight workers that fail, snooze, release, cancel and die, adders that commit late or roll back."""
    crowd = Crowd(api, dsn, rounds)
    keys = [f"s{i}" for i in range(20)]
    guard = threading.Lock()
    running: dict[str, int] = {}
    resumed: dict[str, list[list[float]]] = {key: [] for key in keys}  # from, to
    # Per sequence, in the order in which they happened: (start, id, when), then (end, id, when its last call began, what it was)
    story: dict[str, list[tuple[Any, ...]]] = {key: [] for key in keys}
    known: dict[int, float] = {}  # from when on everybody can see that this job is to run
    goes_on: dict[int, dict[str, bool]] = {}
    touched: set[int] = set()  # somebody decided about it by hand: it may leave its place
    counts: Counter[str] = Counter()
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
        while crowd.adding.is_set() or api.rows(
            "select from pyworker.jobs where state <> 'discarded' limit 1"
        ):
            jobs = api.claim_jobs(me, rng.choice([1, 2, 4]))
            idle = 0 if jobs or crowd.adding.is_set() else idle + 1
            assert idle < 5000, "jobs are left that nobody can claim"
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
        """Resumes what is halted in one way or another, and calls off what waits."""
        while crowd.adding.is_set() or api.rows(
            "select from pyworker.jobs where state <> 'discarded' limit 1"
        ):
            for row in api.rows("select * from pyworker.sequences where halted_by is not null"):
                how = rng.choice(["retry", "retry", "resume", "delete"])
                counts[how] += 1
                with guard:
                    touched.add(row.halted_by)
                try:
                    if how == "resume":  # at whatever job it is halted by now
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
                        counts["called off"] += 1
                        try:
                            with api.conn.transaction(force_rollback=rng.random() < 0.3):
                                if rng.random() < 0.5:
                                    api.cancel_job(row.id)
                                else:
                                    api.complete_jobs([row.id])
                        except psycopg.Error as error:  # deleted by the other operator
                            if error.sqlstate != "PW004":
                                raise

    def watcher(api: Any, rng: random.Random) -> None:
        while crowd.adding.is_set():
            invariants(api.conn)

    begun = time.monotonic()
    added = crowd.run([adder] * 4, [worker] * 8 + [operator] * 2 + [watcher])
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
            # Whoever was in sight before the last run ended, with a lower id, came before this one.
            for other in {e[1] for e in events[n + 1 :] if e[0] == "start"}:
                if other < job and other not in touched and job not in touched:
                    assert known.get(other, ended) >= ended, f"{job} overtook {other}"
    committed = {job for jobs in added for job in jobs}
    ran = {event[1] for events in story.values() for event in events}
    assert ran <= committed, "nothing ran that was rolled back"
    assert committed - ran <= touched, "everything that was added ran, or was called off by hand"
    assert {row.state for row in api.rows("select distinct state from pyworker.jobs")} <= {"discarded"}
    assert api.rows("select from pyworker.sequences where waiting > 0 or running is not null") == []
    figures = f"{starts} starts of {len(committed)} jobs in 20 sequences in {seconds:.1f} s, {late} committed late; {dict(counts)}"
    record_property("figures", figures)
    print(f"\n4 adders x 8 workers: {figures}")
