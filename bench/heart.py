"""What the heart costs: the server's CPU of one session, beside the SQL of another checkout.

    python bench/heart.py --sql ../other/sql [--rounds 5] [--only 'empty turn|add_job']

Both are installed into one server, and measured in turns, round by round. A figure is the median of the
rounds, in microseconds of CPU for each turn or job. Read the ratios.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

sys.path.insert(0, str(Path(__file__).parents[1]))

from pyworker._dev.postgres import Server, temporary_server

OWN = Path(__file__).parents[1] / "sql"
TABLES = ("live_jobs", "claims", "promotion_requests", "finished_jobs")


class Side:
    """One installation, with a session that is measured and one that prepares."""

    def __init__(self, server: Server, name: str, sql: Path) -> None:
        self.name, self.figures, self.count = name, dict[str, list[float]](), 0
        with psycopg.connect(server.url(), autocommit=True) as admin:
            admin.execute(f'create database "{name}"')
        self.dsn = server.url(name)
        psql = [server.bindir / "psql", self.dsn, "-qv", "ON_ERROR_STOP=1", "-f", sql / "install.sql"]
        subprocess.run(psql, check=True, stdout=subprocess.DEVNULL)
        options = "-c search_path=pyworker -c synchronous_commit=off"
        self.conn = psycopg.connect(self.dsn, autocommit=True, options=options)
        self.other = psycopg.connect(self.dsn, autocommit=True, options=options)
        self.worker = self.value("select register_worker()")
        self.held: tuple[list[int], list[int]] = [], []

    def value(self, sql: str, *params: Any) -> Any:
        row = self.other.execute(sql, params or None).fetchone()
        return row and row[0]

    def cpu(self) -> float:
        """Microseconds that the measured session's server process has used."""
        schedule = Path(f"/proc/{self.conn.info.backend_pid}/schedstat").read_text()
        return int(schedule.split()[0]) / 1000

    def call(self, sql: str, *params: Any) -> None:
        self.conn.execute(sql, params or None).fetchall()

    def turn(self, most: int) -> int:
        """Reports what the turn before has claimed, and claims up to `most`."""
        rows = self.conn.execute(
            "select * from work(%s, %s, %s, null, null, %s)", [self.worker, *self.held, most]
        ).fetchall()
        jobs = [row for row in rows if row[0] == "job"]
        self.held = [row[1] for row in jobs], [row[2] for row in jobs]
        return len(jobs)

    def calm(self) -> None:
        """Ends all jobs, and removes what they leave."""
        empty = 0
        while empty < 3:
            empty = empty + 1 if not self.turn(500) else 0
        for table in TABLES:
            self.other.execute(f"vacuum {table}")

    def add(self, jobs: int, members: str = "") -> None:
        for first in range(1, jobs + 1, 2000):
            self.value(
                "select count(*) from add_jobs((select jsonb_agg(jsonb_build_object('identifier', 'noop'"
                f"{members}) order by n) from generate_series(%s::int, %s::int) n))",
                first,
                min(first + 1999, jobs),
            )

    def note(self, what: str, before: float, jobs: float) -> None:
        self.figures.setdefault(what, []).append((self.cpu() - before) / jobs)


def repeated(action: Callable[[Side], Any], times: int, jobs: int = 1) -> Callable[[Side, str], None]:
    """The cost of an action, after ten that are not counted."""

    def measure(side: Side, what: str) -> None:
        for _ in range(10):
            action(side)
        before = side.cpu()
        for _ in range(times):
            action(side)
        side.note(what, before, times * jobs)

    return measure


def in_turns(most: int, times: int) -> Callable[[Side, str], None]:
    def measure(side: Side, what: str) -> None:
        side.add(most * (times + 12))
        side.other.execute("vacuum live_jobs")
        repeated(lambda s: s.turn(most), times, most)(side, what)

    return measure


def one_at_a_time(add: str, lanes: int = 7) -> Callable[[Side, str], None]:
    def action(side: Side) -> None:
        side.count += 1
        side.call(add, f"lane {side.count % lanes}")
        side.turn(10)

    return repeated(action, 150)


def backlog(jobs: int, members: str, most: int, prepare: str = "") -> Callable[[Side, str], None]:
    """The cost of a job while a backlog is worked off."""

    def measure(side: Side, what: str) -> None:
        if prepare:
            side.value(prepare)
        side.add(jobs, members)
        side.other.execute("vacuum analyze live_jobs")
        before, done, empty = side.cpu(), 0, 0
        while done < jobs and empty < 1000:
            got = side.turn(most)
            done, empty = done + got, 0 if got else empty + 1
        if done < jobs:
            raise SystemExit(f"{side.name}: {what}: only {done} of {jobs} jobs came")
        side.note(what, before, jobs)

    return measure


def under_old_snapshot(action: Callable[[Side], Any], ended: int = 20_000) -> Callable[[Side, str], None]:
    def measure(side: Side, what: str) -> None:
        with psycopg.connect(side.dsn, options="-c default_transaction_isolation=repeatable\\ read") as old:
            old.execute("select count(*) from pg_class")
            side.add(ended)
            while side.turn(500):
                pass
            repeated(action, 100)(side, what)

    return measure


def added_and_worked(add: str) -> Callable[[Side], None]:
    def action(side: Side) -> None:
        side.call(add)
        side.turn(10)

    return action


QUEUE = ", 'queue_name', 'q' || n %% {}"
SEQUENCE = ", 'sequence_policy', jsonb_build_object('key', 'q' || n %% {})"
KINDS = ", 'queue_name', 'kinds', 'flags', jsonb_build_array('f' || n %% 2000)"
SCENARIOS: dict[str, Callable[[Side, str], None]] = {
    "empty turn": repeated(lambda side: side.turn(1), 200),
    "add_job": repeated(lambda side: side.call("select id from add_job('noop')"), 150),
    "add + partial turn": repeated(added_and_worked("select id from add_job('noop')"), 150),
    "turn of 1": in_turns(1, 150),
    "a job in turns of 10": in_turns(10, 30),
    "a job in turns of 100": in_turns(100, 10),
    "one at a time, serial queue": one_at_a_time("select id from add_job('noop', queue_name := %s)"),
    "one at a time, sequence": one_at_a_time(
        "select id from add_job('noop', sequence_policy := jsonb_build_object('key', %s::text))"
    ),
    "one at a time, no limit": one_at_a_time("select id from add_job('noop', queue_name := 'free ' || %s)"),
    "one at a time, a limit that does not bind": one_at_a_time(
        "select id from add_job('noop', queue_name := 'wide ' || %s)"
    ),
    "one at a time, a rate that does not bind": one_at_a_time(
        "select id from add_job('noop', queue_name := 'rated ' || %s)"
    ),
    "5,000 jobs of 5,000 queues": backlog(5_000, QUEUE.format(5_000), 100),
    "5,000 jobs of 5 queues": backlog(5_000, QUEUE.format(5), 20),
    "5,000 jobs of 200 sequences": backlog(5_000, SEQUENCE.format(200), 100),
    "2,000 kinds in one queue": backlog(2_000, KINDS, 100),
    "add + turn, old snapshot": under_old_snapshot(added_and_worked("select id from add_job('noop')")),
    "empty turn, old snapshot": under_old_snapshot(lambda side: side.turn(1)),
}
SETTINGS = """
    select set_queue('free *', null), set_queue('wide *', 1000),
           set_queue('rated *', null, 100000, '1 minute')"""
AFTER_SETTINGS = {name for name in SCENARIOS if "limit" in name or "rate that" in name}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sql", type=Path, required=True, help="the sql/ of the other checkout")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="a regular expression: the scenarios with such a name")
    options = parser.parse_args()
    chosen = [name for name in SCENARIOS if re.search(options.only, name)]
    with temporary_server(in_memory=True) as server:
        sides = [Side(server, "before", options.sql), Side(server, "now", OWN)]
        for name in sorted(chosen, key=lambda n: n in AFTER_SETTINGS):
            if name in AFTER_SETTINGS:
                for side in sides:
                    side.value(SETTINGS)
            for number in range(options.rounds):
                for side in sides[:: 1 if number % 2 else -1]:
                    side.calm()
                    SCENARIOS[name](side, name)
                    side.calm()
        print(f"{'us of CPU':44}{'before':>10}{'now':>10}{'ratio':>8}")
        for name in chosen:
            before, now = (statistics.median(side.figures[name]) for side in sides)
            print(f"{name:44}{before:10.1f}{now:10.1f}{now / before:8.2f}")


if __name__ == "__main__":
    main()
