"""What edges, ends and steps cost the server: CPU of the one backend that does them, read to the nanosecond.
flows.py runs these measurements, in turn, and prints them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from stage import Stage

from pyworker._db import migrations

HERE = Path(__file__).resolve().parent.parent / "sql"
Run = tuple[list[int], list[int]]  # ids, and their runs
FINISHED = "select count(*) from finish_jobs(%s::bigint[], %s::bigint[])"
TABLES = "live_jobs finished_jobs edges watches steps promotion_requests late_arrivals claims".split()


class Base:
    """A database with pyworker in it, and one session whose CPU is measured."""

    def __init__(self, stage: Stage, name: str, sql: Path = HERE) -> None:
        stage.conn.execute(f"drop database if exists {name} with (force)")
        stage.conn.execute(f"create database {name}")
        migrations.directory = lambda _: sql  # type: ignore[attr-defined]
        with psycopg.connect(stage.dsn(name), autocommit=True) as conn:
            migrations.migrate(conn)
        self.dsn, self.sql = stage.dsn(name), sql
        self.conn = self.connect()
        # No commit waits for the disk: that costs no CPU, but time.
        self.conn.execute("set synchronous_commit = off")
        self.tables = [table for table in TABLES if self.value("select to_regclass(%s)", table)]
        self.worker = self.value("select register_worker()")

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(
            self.dsn, autocommit=True, prepare_threshold=0, options="-c search_path=pyworker,public"
        )

    def value(self, sql: str, *args: Any) -> Any:
        row = self.conn.execute(sql, args).fetchone()  # type: ignore[arg-type]
        return row[0] if row else None

    def clock(self) -> float:
        """Microseconds that the backend has been on a CPU."""
        return int(Path(f"/proc/{self.conn.info.backend_pid}/schedstat").read_text().split()[0]) / 1e3

    def timed(self, sql: str, *args: Any) -> float:
        began = self.clock()
        self.conn.execute(sql, args).fetchall()  # type: ignore[arg-type]
        return self.clock() - began

    def claim(self, many: int) -> tuple[float, Run]:
        began = self.clock()
        rows = self.conn.execute("select id, run from claim_jobs(%s, %s)", [self.worker, many]).fetchall()
        return self.clock() - began, ([row[0] for row in rows], [row[1] for row in rows])

    def add_for(self, kind: str, members: int, on: str = "end") -> float:
        """Adds so many jobs and a callback, with edges or without."""
        if kind == "edges":
            return self.timed(f"{WITH_EDGES[:-1]}, %s)", specs(members), CALLBACK, on)
        return self.timed(WITHOUT, specs(members + 1))

    def drain(self, batch: int) -> tuple[float, int]:
        """Claims and finishes all jobs: microseconds, and how many there were."""
        spent, done = 0.0, 0
        while True:
            took, run = self.claim(batch)
            spent += took
            if not run[0]:
                return spent, done
            spent += self.timed(FINISHED, *run)
            done += len(run[0])

    def vacuum(self) -> None:
        for table in self.tables:
            self.conn.execute(f"vacuum analyze {table}")  # type: ignore[arg-type]

    def empty(self) -> None:
        self.conn.execute(f"truncate {', '.join(self.tables)}")  # type: ignore[arg-type]

    def close(self) -> None:
        self.conn.close()


@contextmanager
def base(stage: Stage, name: str, sql: Path = HERE) -> Iterator[Base]:
    made = Base(stage, name, sql)
    try:
        yield made
    finally:
        made.close()
        stage.conn.execute(f"drop database {name} with (force)")


def specs(many: int, **more: Any) -> str:
    return json.dumps([{"identifier": "t", **more}] * many)


CALLBACK = json.dumps({"identifier": "callback"})
WITH_EDGES = "select count(*) from add_batch(%s::jsonb, %s::jsonb)"
WITHOUT = "select count(*) from add_jobs(%s::jsonb)"


def edges(db: Base, members: int, rounds: int, on: str = "end") -> dict[str, list[float]]:
    """What an edge costs: microseconds of a batch's add and end, less those of as many jobs without it."""
    found: dict[str, list[float]] = {"add": [], "end": [], "both": []}
    for turn in range(rounds + 1):
        spent: dict[str, list[float]] = {}
        db.empty()
        db.vacuum()
        kinds = ("edges", "none") if turn % 2 else ("none", "edges")
        for kind in kinds:  # after a vacuum a session plans again, which is no edge's fault
            db.add_for(kind, 100, on)
            db.drain(500)
        for kind in kinds:
            added = db.add_for(kind, members, on)
            ended, done = db.drain(500)
            assert done == members + 1, f"{done} of {members + 1} jobs have ended"
            spent[kind] = [added / members, ended / members]
        if turn:  # the first one warms the caches
            add, end = (
                with_edges - none for with_edges, none in zip(spent["edges"], spent["none"], strict=True)
            )
            for what, cost in (("add", add), ("end", end), ("both", add + end)):
                found[what].append(cost)
    return found


def plain(db: Base, singles: int = 200, batches: int = 6) -> dict[str, float]:
    """What jobs without dependencies cost: microseconds a job, the median of many calls."""
    adds = [db.timed("select id from add_job('t', '{\"n\": 1}')") for _ in range(singles)]
    ones: list[float] = []
    for _ in range(singles):
        took, run = db.claim(1)
        ones.append(took + db.timed(FINISHED, *run))
    many: list[float] = []
    for _ in range(batches):
        db.conn.execute(WITHOUT, [specs(500)])  # type: ignore[arg-type]
        took, run = db.claim(500)
        many.append((took + db.timed(FINISHED, *run)) / len(run[0]))
    return {
        "add_job": statistics.median(adds),
        "claim + finish, one by one": statistics.median(ones),
        "claim + finish, 500 at a time": statistics.median(many),
    }


def steps(db: Base, jobs: int = 100, each: int = 5) -> dict[str, float]:
    """Microseconds of a job with so many steps, of one without, and of a step; and transactions a step."""
    spent: dict[int, list[float]] = {each: [], 0: []}
    begun: dict[int, int] = {}
    for many in spent:
        db.conn.execute(WITHOUT, [specs(jobs)])  # type: ignore[arg-type]
        before = db.value("select pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
        for _ in range(jobs):
            took, run = db.claim(1)
            for number in range(many):
                call = "select save_step(%s::bigint, %s::bigint, %s, %s)"
                took += db.timed(call, run[0][0], run[1][0], f"step {number}", '{"receipt": "R17"}')
            spent[many].append(took + db.timed(FINISHED, *run))
        begun[many] = db.value("select pg_snapshot_xmax(pg_current_snapshot())::text::bigint") - before
    with_steps, without = (statistics.median(spent[many]) for many in (each, 0))
    return {
        f"a job with {each} steps": with_steps,
        "a job without": without,
        "a step": (with_steps - without) / each,
        "transactions a step": (begun[each] - begun[0]) / jobs / each,
    }
