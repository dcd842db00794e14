"""Hundreds of kill -9 a minute, of bare workers, between hundreds of thousands of jobs (swarm.py). The record
is judged here: its words are about many jobs at once."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace as Row
from typing import Any

import psycopg
import pytest
from psycopg.rows import namedtuple_row

from tests.support import SECONDS
from tests.support.checker import read
from tests.support.databases import check_invariants
from tests.support.tasks.recorded_tasks import Recorder
from tests.torture import swarm

SEED = os.environ.get("PYWORKER_SEED", "3")
WORKERS, ADDERS = 10, 2
BACKLOG = 2000
FINAL = """
    select id, task_identifier as task, state, reason, run, queue_name as queue, sequence_key as sequence,
        delivery, array(select e.run from public.effects e where e.job_id = j.id) as effects
    from (select id, task_identifier, state, reason, run, queue_name, sequence_key, delivery
          from pyworker.live_jobs
          union all
          select id, task_identifier, state, reason, run, queue_name, sequence_key, delivery
          from pyworker.finished_jobs) j"""


class Swarm:
    def __init__(self, dsn: str) -> None:
        self._dsn, self._rng, self._record = dsn, random.Random(SEED), Recorder("swarm")
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.torture.swarm"])
        self.kills = 0
        self.adders = [self._start(swarm.add, f"{SEED}-{n}", BACKLOG) for n in range(ADDERS)]
        self.workers = [self._start(swarm.work, SEED) for _ in range(WORKERS)]

    def _start(self, what: Any, *arguments: Any) -> Any:
        process = self._context.Process(target=what, args=(self._dsn, *arguments), daemon=True)
        process.start()
        return process

    def kill_some(self) -> None:
        for at in self._rng.sample(range(WORKERS), self._rng.choice([1, 1, 2, 4])):
            pid = self.workers[at].pid
            self.workers[at].kill()
            self.workers[at].join()
            self._record("killed", pid=pid)
            self.kills += 1
            self.workers[at] = self._start(swarm.work, SEED)

    def freeze_one(self) -> None:
        pid = self._rng.choice(self.workers).pid
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self._rng.uniform(0.05, 0.5))
        os.kill(pid, signal.SIGCONT)

    def end(self, processes: list[Any]) -> None:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(30)
            assert process.exitcode == 0, process


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYWORKER_HISTORY", str(tmp_path))
    return tmp_path


@pytest.mark.torture
def test_a_swarm_that_is_killed_all_the_time_loses_nothing(fresh_queue: Any, history: Path) -> None:
    print(f"PYWORKER_SEED={SEED}")
    queue = fresh_queue
    queue.rows("create table public.effects (job_id bigint, run bigint)")
    queue.rows("create index on public.effects (job_id)")
    queue.rows("select pyworker.configure(max_crashes => 1000, completed_retention => '1 day')")
    for task in swarm.TASKS:
        queue.rows("select pyworker.define_task(%s, backoff => '[0]')", task)
    many = Swarm(queue.dsn)
    until = time.monotonic() + SECONDS
    rng = random.Random(f"{SEED} pauses")
    try:
        while time.monotonic() < until:
            time.sleep(rng.uniform(0, 0.2))
            if rng.random() < 0.9:
                many.kill_some()
            elif rng.random() < 0.5:
                many.freeze_one()
            else:
                queue.rows(
                    "select pg_terminate_backend(pid) from pg_stat_activity where query ~ 'pyworker' and "
                    "datname = current_database() and pid <> pg_backend_pid() order by random() limit 1"
                )
        many.end(many.adders)
        live = "select count(*) from pyworker.jobs where state <> 'discarded'"
        left = queue.value(live)
        while left:
            queue.until_so(f"fewer than {left} are left", lambda left=left: queue.value(live) < left)
            left = queue.value(live)
        many.end(many.workers)
    finally:
        for process in (*many.adders, *many.workers):
            process.kill()
    with psycopg.connect(queue.dsn, row_factory=namedtuple_row) as conn:
        finals = {row.id: row for row in conn.execute(FINAL)}
    check_invariants(queue.conn)
    judge(history, finals, many.kills)


def judge(history: Path, finals: dict[int, Any], kills: int) -> None:
    events = sorted(read(history), key=lambda event: event["t"])
    added = {
        job: (event["began"], event["t"])
        for event in events
        if event["what"] == "added"
        for job in event["ids"]
    }
    doubts = sum(event.get("doubts", 0) for event in events if event["what"] == "added")
    spans = list(runs_of(events))
    found = [*faults(finals, added, doubts, spans)]
    counted = {
        "operations": len(added) + 2 * len(spans),
        "jobs": len(finals),
        "kill -9": kills,
        "lost visibly": sum(final.reason == "lost" for final in finals.values()),
        "violations": len(found),
        "seed": SEED,
    }
    print("torture:", json.dumps(counted))
    if kept := os.environ.get("PYWORKER_FIGURES"):
        with Path(kept).open("a") as file:
            file.write(json.dumps(counted) + "\n")
    assert found == []
    assert kills > SECONDS / 2


def runs_of(events: list[Any]) -> Any:
    """job, run, and from when to when its handler ran: at the latest until its process was killed."""
    open_runs: dict[int, dict[tuple[int, int], float]] = defaultdict(dict)
    for event in events:
        running = open_runs[event["pid"]] if "pid" in event else {}
        if event["what"] == "ran":
            running |= {(job, run): event["t"] for job, run in event["jobs"]}
        elif event["what"] == "over":
            for job, run in event["jobs"]:
                yield job, run, running.pop((job, run)), event["t"]
        elif event["what"] == "killed":
            for (job, run), t in running.items():
                yield job, run, t, event["t"]
            running.clear()
    for running in open_runs.values():  # their connections were ended meanwhile
        yield from ((job, run, t, t) for (job, run), t in running.items())


def faults(
    finals: dict[int, Any], added: dict[int, tuple[float, float]], doubts: int, spans: list[Any]
) -> Any:
    yield from (f"job {job} is nowhere" for job in added.keys() - finals.keys())
    if len(finals.keys() - added.keys()) > doubts:
        yield f"{len(finals.keys() - added.keys())} jobs that no session added, with {doubts} adds in doubt"
    spans.sort(key=lambda span: span[2])
    starts: Counter[int] = Counter()
    last: dict[int, int] = defaultdict(int)
    lanes: dict[str, list[Any]] = defaultdict(list)
    for job, run, begin, end in spans:
        final = finals[job]
        starts[job] += 1
        if run <= last[job]:
            yield f"job {job} began as run {last[job]}, and later as run {run}"
        last[job] = run
        if lane := final.sequence or final.queue:
            lanes[lane].append((begin, end, job))
    for job, final in finals.items():
        yield from fault_of(job, final, starts[job], last[job])
    for lane, ran in lanes.items():
        for (_, end, one), (begin, _, other) in pairwise(ran):
            if begin < end and one != other:
                yield f"{lane}: job {other} began while job {one} ran"
        if finals[ran[0][2]].sequence:
            order = list(dict.fromkeys(job for _, _, job in ran))
            for one, other in pairwise(order):
                if one > other and {one, other} <= added.keys() and added[other][1] < added[one][0]:
                    yield f"{lane}: job {one} began before job {other}, which was there before it"


def fault_of(job: int, final: Any, starts: int, last: int) -> Any:
    if final.state != "completed" and final.reason != "lost":
        yield f"job {job} ended {final.state}, {final.reason}"
    if final.state == "completed" and not starts:
        yield f"job {job} is completed and never began"
    if final.delivery == "at_most_once" and starts > 1:
        yield f"job {job} began {starts} times"
    if final.state == "completed" and last != final.run:
        yield f"job {job} ended as run {final.run}, its newest run is {last}"
    if final.task == "booked" and final.effects != [final.run]:
        yield f"job {job} ended as run {final.run}, its effects are of {final.effects}"


def test_the_judge_notices_what_is_wrong() -> None:
    def final(**more: Any) -> Any:
        usual = {"task": "plain", "state": "completed", "reason": None, "run": 5, "queue": None}
        return Row(**{**usual, "sequence": None, "delivery": "at_least_once", "effects": [], **more})

    right = {1: final(), 2: final(queue="q"), 3: final(queue="q")}
    spans = [(1, 5, 1.0, 1.1), (2, 5, 2.0, 2.1), (3, 5, 3.0, 3.1)]

    def faults_of(finals: Any, ids: set[int], ran: list[Any]) -> int:
        return len(list(faults(finals, {job: (job, job + 0.5) for job in ids}, 0, list(ran))))

    assert faults_of(right, {1, 2, 3}, spans) == 0
    assert faults_of(right, {1, 2, 3, 4}, spans) == 1
    assert faults_of(right, {1, 2}, spans) == 1
    assert faults_of(right, {1, 2, 3}, [*spans[:2], (3, 5, 2.05, 3.0)]) == 1
    assert faults_of(right, {1, 2, 3}, spans[:2]) == 2
    once = right | {1: final(delivery="at_most_once")}
    assert faults_of(once, {1, 2, 3}, [*spans, (1, 4, 0.5, 0.6)]) == 1
    assert faults_of(right, {1, 2, 3}, [*spans, (1, 6, 0.5, 0.6)]) == 1
    turns = {2: final(sequence="s"), 3: final(sequence="s")}
    assert faults_of(turns, {2, 3}, [(3, 5, 1.0, 1.1), (2, 5, 2.0, 2.1)]) == 1
    assert faults_of({1: final(task="booked")}, {1}, spans[:1]) == 1
