"""Fan-ins by sessions that end jobs at once, and by workers: what waits for a lock, when the callback starts,
and what an edge costs, also with a rival. flows.py runs these measurements, and prints them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from flow_costs import CALLBACK, FINISHED, WITH_EDGES, WITHOUT, Base, specs
from stage import PATIENCE, Site, Stage, say

RIVALS = Path(__file__).parent / "rivals"
# A claim by itself does not wait for the disk, as in `pyworker run`.
CLAIM = """
    select array_agg(id), array_agg(run)
    from set_config('synchronous_commit', 'off', true) s cross join lateral claim_jobs(%s, %s, '{t}')
    where s is not null"""
LEFT = {
    "pyworker": "select 1 from pyworker.live_jobs where state <> 'discarded' limit 1",
    "pg-boss": """
        select 1 from pgboss.job where name in ('member', 'callback') and state < 'completed' limit 1""",
}


def lines_of(trail: Path, many: int) -> list[float]:
    """What handlers have left there, as soon as there are so many lines."""
    began = time.monotonic()
    while len(lines := trail.read_text().splitlines()) < many:
        if time.monotonic() - began > PATIENCE:
            raise RuntimeError(f"{many - len(lines)} handlers have not started for {PATIENCE:.0f} s")
        time.sleep(0.02)
    return [float(line) for line in lines]


@contextmanager
def worker(db: Base, trail: Path, *options: str) -> Iterator[None]:
    """`pyworker run` with the handlers of the benchmark, idle after one job: before, its processes start."""
    trail.write_text("")
    process = subprocess.Popen(
        [sys.executable, "-m", "pyworker", "run", "ours_tasks", "--log-level", "error", *options],
        env={
            **os.environ,
            "DATABASE_URL": db.dsn,
            "BENCH_TRAIL": str(trail),
            "PYTHONPATH": os.pathsep.join([str(RIVALS), str(RIVALS.parents[1])]),
        },
    )
    try:
        db.value("select id from add_job('moment')")
        lines_of(trail, 1)
        trail.write_text("")
        yield
    finally:
        process.terminate()
        process.wait()


class Ends:
    """Sessions that claim and finish jobs, some at a time, until there are none."""

    def __init__(self, db: Base, sessions: int, batch: int) -> None:
        self.db, self.batch = db, batch
        self.last = 0.0  # when the latest end was committed
        self.failed: list[str] = []
        self.ran, self.queued = 0, 0  # ns that the sessions were on a CPU, and that they waited for one
        self._threads = [threading.Thread(target=self._end) for _ in range(sessions)]

    def run(self) -> None:
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join()
        if self.failed:
            raise RuntimeError(self.failed[0])

    def _end(self) -> None:
        try:
            with self.db.connect() as conn:
                row = conn.execute("select register_worker()").fetchone()
                while ended := self._turn(conn, row[0] if row else 0):
                    self.last = max(self.last, ended)
                ran, queued, _ = Path(f"/proc/{conn.info.backend_pid}/schedstat").read_text().split()
                self.ran, self.queued = self.ran + int(ran), self.queued + int(queued)
        except psycopg.Error as error:
            self.failed.append(f"a session that ends jobs: {error}")

    def _turn(self, conn: psycopg.Connection[Any], worker: int) -> float | None:
        row = conn.execute(CLAIM, [worker, self.batch]).fetchone()
        if not row or row[0] is None:
            return None
        conn.execute(FINISHED, row)
        return time.monotonic()


def fan_in(stage: Stage, db: Base, members: int, rounds: int, sessions: int) -> dict[str, Any]:
    """What sessions waited for longer than 10 ms, also those that end as many jobs without edges; how long
    they waited for a CPU, of each millisecond on one; the milliseconds from each last end to its callback."""
    database = db.conn.info.dbname
    for setting in ("log_lock_waits = on", "deadlock_timeout = '10ms'"):
        stage.conn.execute(f"alter database {database} set {setting}")  # type: ignore[arg-type]
    waits: list[float] = []
    locks: dict[str, Counter[str]] = {"edges": Counter(), "none": Counter()}
    starved: list[float] = []
    trail = stage.out / "trail.txt"
    moment = CALLBACK.replace("callback", "moment")
    for turn in range(rounds):
        db.empty()
        db.vacuum()
        with worker(db, trail, "--task", "moment"):
            for kind in ("none", "edges") if turn % 2 else ("edges", "none"):
                before = lock_waits(stage.log)
                if kind == "none":
                    db.conn.execute(WITHOUT, [specs(members)])  # type: ignore[arg-type]
                else:
                    db.conn.execute(WITH_EDGES, [specs(members), moment])  # type: ignore[arg-type]
                ends = Ends(db, sessions, 100)
                ends.run()
                if kind == "edges":
                    waits.append((lines_of(trail, 1)[0] - ends.last) * 1000)
                    starved.append(ends.queued / ends.ran)
                locks[kind] += lock_waits(stage.log) - before
        say(f"a fan-in of {members:,}: {waits[-1]:.1f} ms from the last end to the callback; {locks}")
    return {"locks": locks if stage.log else None, "ms": sorted(waits), "starved": starved}


WAIT = re.compile(
    r"still waiting for \w+ on (.+) after .+\n.* DETAIL: .*(?:\n.* CONTEXT: .* relation \"(\w+)\")?"
)


def lock_waits(log: Path | None) -> Counter[str]:
    """Those that the server has logged until now, by the table whose row, or what else, is waited for."""
    found: Counter[str] = Counter()
    for what, table in WAIT.findall(log.read_text() if log else ""):
        found[table or ("NOTIFY" if "class 1262" in what else what)] += 1
    return found


def by_workers(site: Site, flows: int, members: int, rounds: int) -> dict[str, Any]:
    """CPU microseconds of an edge, and the milliseconds from the last member's handler to the callback's."""
    site.start().ask("work_flows")
    adder = site.start()
    adder.ask("connect", 1)
    spent: dict[str, list[tuple[float, float]]] = {"flows": [], "loose": []}
    adder.ask("flows", 2, members)  # warms everything
    lines_of(site.trail, 2)
    for turn in range(rounds):
        for kind in ("flows", "loose") if turn % 2 else ("loose", "flows"):
            wait_drained(site)
            site.trail.write_text("")
            before = site.read()
            adder.ask(kind, flows, members)
            lines_of(site.trail, flows)
            wait_drained(site)
            used = site.read() - before
            spent[kind].append((used.client / flows / members * 1e6, used.server / flows / members * 1e6))
    waits: list[float] = []
    for _ in range(rounds * 3):
        wait_drained(site)
        site.trail.write_text("")
        adder.ask("flows", 1, members)
        waits.append(lines_of(site.trail, 1)[0] * 1000)
    costs = [
        [with_edges[i] - none[i] for with_edges, none in zip(spent["flows"], spent["loose"], strict=True)]
        for i in (0, 1)
    ]
    whole = [[sum(one) for one in spent[kind]] for kind in ("flows", "loose")]
    more = {"with": whole[0], "without": whole[1]}
    return {"client": costs[0], "server": costs[1], "ms": sorted(waits)} | more


def wait_drained(site: Site) -> None:
    began = time.monotonic()
    while site.conn.execute(LEFT[site.contender.name]).fetchone():  # type: ignore[arg-type]
        if time.monotonic() - began > PATIENCE:
            raise RuntimeError(f"{site.contender.name}: jobs are left after {PATIENCE:.0f} s")
        time.sleep(0.05)


def by_handlers(site: Site, jobs: int, rounds: int) -> dict[str, list[float]]:
    """Of jobs with five steps and of jobs without: CPU microseconds and transactions that write, each."""
    site.start().ask("work", site.contender.concurrency)
    xmax = "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
    found: dict[str, list[float]] = {"with": [], "without": [], "writes": []}
    for turn in range(rounds + 1):
        writes: dict[str, int] = {}
        for kind in ("with", "without") if turn % 2 else ("without", "with"):
            before, xid = site.read(), site.conn.execute(xmax).fetchone()[0]  # type: ignore[index]
            site.fill(jobs, f"{kind}_steps")
            wait_drained(site)
            used = site.read() - before
            writes[kind] = site.conn.execute(xmax).fetchone()[0] - xid  # type: ignore[index]
            if turn:
                found[kind].append((used.client + used.server) / jobs * 1e6)
        if turn:
            found["writes"].append((writes["with"] - writes["without"]) / jobs / 5)
    return found
