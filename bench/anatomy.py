"""Where a drained job's CPU goes, in microseconds: python bench/anatomy.py [--jobs N] [--rounds N]

In the server: what a backend uses per job, in batches of 500. The kinds of batches take turns, so
that all of them meet the same machine. In the worker: the same calls' share of the client, and a
job's way through a worker's handlers, without a database. Medians over the batches.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent / "rivals"))
os.environ["BENCH_TRAIL"] = os.devnull  # the benchmark's handlers need both variables
os.environ["DATABASE_URL"] = os.environ.get("DATABASE_URL", "")

import psycopg
from stage import Site, stage

from pyworker import tasks
from pyworker._db.database import Database
from pyworker._runner.child import Child
from pyworker._runner.config import RunConfig
from pyworker._runner.shared import Slots

BATCH = 500
PLAIN_CLAIM = f"""
    update jobs set worker = 1
    where id = any(array(
        select id from jobs where run_at <= now() and worker is null
        order by priority, run_at, id limit {BATCH} for update skip locked))
    returning id, payload"""
PLAIN_FINISH = "delete from jobs where id = any(%s)"
PAYLOAD = '{"n": 1, "to": "ada@example.org"}'
NONE = (None,) * 5  # of a claimed row: queue, key, flags, meta, sequence
found: dict[str, list[float]] = {}  # microseconds per job, one figure for each batch


def backend(conn: psycopg.Connection[Any]) -> float:
    """CPU seconds of a backend by the scheduler's clock: a batch takes less than a clock tick."""
    return int(Path(f"/proc/{conn.info.backend_pid}/schedstat").read_text().split()[0]) / 1e9


def measured(what: str, conn: psycopg.Connection[Any], call: Callable[[], Any]) -> Any:
    before, own = backend(conn), time.process_time()
    answer = call()
    for side, seconds in (("server", backend(conn) - before), ("worker", time.process_time() - own)):
        found.setdefault(f"{side}: {what}", []).append(seconds / BATCH * 1e6)
    return answer


def drain(site: Site, jobs: int, history: str) -> None:
    site.fill(jobs)
    site.conn.execute("analyze")
    db = Database(site.conn)
    worker = db.open_worker({})["worker"]
    for _ in range(jobs // BATCH):
        rows = measured("work, claims", site.conn, lambda: db.work(worker, [], BATCH, ["noop"]))
        done = [(row[1], row[2], None, None) for row in rows[:-1]]
        measured(f"work, reports, {history}", site.conn, lambda done=done: db.work(worker, done, 0))


def plain(site: Site, jobs: int) -> None:
    site.fill(jobs)
    site.conn.execute("analyze")
    for _ in range(jobs // BATCH):
        rows = measured("a plain UPDATE", site.conn, lambda: site.conn.execute(PLAIN_CLAIM).fetchall())
        ids = [row[0] for row in rows]
        measured("a plain DELETE", site.conn, lambda ids=ids: site.conn.execute(PLAIN_FINISH, [ids]))


def handlers(task: str, uvloop: bool, batches: int) -> None:
    """From claimed rows to outcomes, through the threads of a real worker."""
    what = f"worker: {task}{', uvloop' if uvloop else ''}, from rows to outcomes"
    config = RunConfig("", tasks=["ours_tasks"], uvloop=uvloop)
    child = Child(config, 1, sys.stdin, Slots.create(config.concurrency))
    child.handlers.tasks = tasks.load(config.tasks)
    now = time.time()
    for batch in range(batches):
        ids = range(batch * BATCH, (batch + 1) * BATCH)
        rows = [
            (job_id, 1, task, PAYLOAD, 1, 25, *NONE, "at_least_once", 0, None, now, now) for job_id in ids
        ]
        before = time.process_time()
        child.handlers.begin(rows, math.inf)
        while len(child.exchange.ended) < BATCH:
            time.sleep(0.002)
        child.exchange.ended.clear()
        found.setdefault(what, []).append((time.process_time() - before) / BATCH * 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as out, stage(Path(out)) as here:
        for _ in range(options.rounds):
            with here.site("pyworker") as site:
                drain(site, options.jobs, "with history")
            with here.site("pyworker, deleted") as site:
                drain(site, options.jobs, "deleted")
            with here.site("table, two steps") as site:
                plain(site, options.jobs)
            for task, uvloop in (("noop", False), ("noop", True), ("noop_sync", False)):
                handlers(task, uvloop, options.jobs // BATCH)
    for what, values in sorted(found.items()):
        quarters = statistics.quantiles(values, n=4)
        print(f"{what:60} {quarters[1]:6.2f}   ({quarters[0]:.2f} to {quarters[2]:.2f})")
    os._exit(0)  # the handlers' threads wait for more jobs


if __name__ == "__main__":
    main()
