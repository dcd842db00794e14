"""Rates and turns: are they kept, and what do they cost?

    python bench/limits.py [window] [many[=STARTS]] [cost] [steady] [beside] [fair] [plot]

On the database of DATABASE_URL; without that it starts a PostgreSQL of its own. `window`: the fullest window
among the starts of 16 sessions that claim, roll back, and are killed. `many`: the same for 1,000,000 starts
or ten minutes, with the largest size of the table `starts`. `cost`: CPU of the backend per job, with limits
that do not bind. `steady`: the same without a backlog, where each turn finds what was just added. `beside`:
the same for plain jobs beside queues that are at their rate. `fair`: after how many starts the single jobs
of 200 tenants have started, beside 20,000 jobs of another one. `plot`: starts.svg, the starts of each second
against the rate.
"""

from __future__ import annotations

import random
import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import lanes
import psycopg
from lanes import SCHEMA, add, cpu_of, fresh

from pyworker._dev.postgres import temporary_server

WINDOW = """
    select count(*), max(w.starts), extract(epoch from max(w.at) - min(w.at))::float8
    from (select s.at, count(*) over (order by s.at
              range between current row and (%s::interval - interval '1 us') following) as starts
          from (select h.locked_at as at from {0}.history h
                union all select j.locked_at from {0}.jobs j) s where s.at is not null) w
""".format(SCHEMA)  # noqa: UP032


def value(conn: psycopg.Connection[Any], sql: str, *parameters: Any) -> Any:
    row = conn.execute(sql, parameters or None).fetchone()  # type: ignore[arg-type]
    return row and row[0]


def finely(pid: int) -> float:
    """CPU seconds of a backend to the microsecond, where cpu_of() counts ticks of 10 ms."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


class Session(threading.Thread):
    """A worker that claims and finishes; with `trouble` it also rolls back, and is killed."""

    def __init__(self, batch: int, until: float, trouble: bool = False, most: int = 1 << 30) -> None:
        super().__init__()
        self.batch, self.until, self.trouble, self.most = batch, until, trouble, most
        self.started: list[tuple[float, str]] = []
        self.rolled_back = self.killed = 0
        self.cpu = 0.0  # of its backend for a start, in the second half of the starts

    def run(self) -> None:
        while time.time() < self.until and len(self.started) < self.most:
            with suppress(psycopg.OperationalError), psycopg.connect(lanes.DSN) as conn:
                worker = value(conn, f"select {SCHEMA}.register_worker()")
                conn.commit()
                self.work(conn, worker)

    def work(self, conn: psycopg.Connection[Any], worker: int) -> None:
        ids: list[int] = []
        runs: list[int] = []
        turn = (
            "select kind, id, run, queue_name, again_in_s "
            f"from {SCHEMA}.work(%s, %s::bigint[], %s::bigint[], null, null, %s)"
        )
        half: tuple[float, int] | None = None
        while time.time() < self.until and len(self.started) < self.most:
            *rows, (*_, again_in) = conn.execute(turn, [worker, ids, runs, self.batch]).fetchall()  # type: ignore[arg-type]
            chance = random.random() if self.trouble else 1
            if chance < 0.05:
                conn.rollback()
                self.rolled_back += 1
                continue
            if chance < 0.06:
                with psycopg.connect(lanes.DSN) as other:
                    other.execute("select pg_terminate_backend(%s)", [conn.info.backend_pid])
                self.killed += 1
            conn.commit()
            now = time.time()
            if half is None and len(self.started) > self.most / 2:
                half = finely(conn.info.backend_pid), len(self.started)
            jobs = [row for row in rows if row[0] == "job"]
            self.started += [(now, job[3]) for job in jobs]
            ids, runs = [job[1] for job in jobs], [job[2] for job in jobs]
            if not jobs:
                time.sleep(max(min(again_in, self.until - time.time()), 0))
        if half:
            self.cpu = (finely(conn.info.backend_pid) - half[0]) / (len(self.started) - half[1])


def together(sessions: list[Session]) -> list[tuple[float, str]]:
    """All starts of the sessions, in their order."""
    for session in sessions:
        session.start()
    for session in sessions:
        session.join()
    return sorted(start for session in sessions for start in session.started)


def window(seconds: float = 30) -> None:
    print("rate            sessions  batch   starts  possible  fullest  rolled back  killed")
    for limit, period, batch in ((50, "200 ms", 10), (1000, "1 s", 20), (5, "1 s", 1), (20000, "1 s", 100)):
        with fresh() as conn:
            conn.execute(f"select {SCHEMA}.set_queue('q', null, {limit}, '{period}')")
            length = value(conn, "select extract(epoch from %s::interval)::float8", period)
            add(conn, min(int(limit * seconds / length) + limit, 200_000), lambda _: {"queue_name": "q"})
            sessions = [Session(batch, time.time() + seconds, trouble=True) for _ in range(16)]
            together(sessions)
            starts, fullest, lasted = conn.execute(WINDOW, [period]).fetchone()  # type: ignore[misc]
            print(
                f"{limit} in {period:9} {16:8} {batch:6} {starts:8} {limit * (lasted / length + 1):9.0f}"
                f" {fullest:8} {sum(s.rolled_back for s in sessions):12} {sum(s.killed for s in sessions):7}"
            )


def many(most: int = 1_000_000, seconds: float = 600, limit: int = 300, period: str = "100 ms") -> None:
    size = f"select count(*), pg_total_relation_size('{SCHEMA}.starts') from {SCHEMA}.starts"
    with fresh() as conn:
        conn.execute(f"select {SCHEMA}.set_queue('q', null, {limit}, '{period}')")
        began, added, rows, size_in_bytes = time.time(), 0, 0, 0
        sessions = [Session(200, began + seconds, trouble=True) for _ in range(16)]
        for session in sessions:
            session.start()
        while time.time() < began + seconds and sum(len(s.started) for s in sessions) < most:
            if added < sum(len(s.started) for s in sessions) + 20_000:
                add(conn, 5000, lambda _: {"queue_name": "q"})
                added += 5000
            else:
                time.sleep(0.2)
            now_rows, now_size = conn.execute(size).fetchone()  # type: ignore[misc]
            rows, size_in_bytes = max(rows, now_rows), max(size_in_bytes, now_size)
        for session in sessions:
            session.until = time.time()
        for session in sessions:
            session.join()
        starts, fullest, lasted = conn.execute(WINDOW, [period]).fetchone()  # type: ignore[misc]
        print(
            f"{limit} in {period}: {starts} starts in {lasted:.0f} s (the sessions saw"
            f" {sum(len(s.started) for s in sessions)}), fullest window {fullest},"
            f" {sum(s.rolled_back for s in sessions)} rolled back, {sum(s.killed for s in sessions)} killed;"
            f" the table starts had {rows} rows and {size_in_bytes // 1024} kB at most"
        )


LIMITS = {
    "no queue": None,
    "no limit": "select {}.set_queue('q', null)",
    "limit": "select {}.set_queue('q', 1000000)",
    "rate": "select {}.set_queue('q', null, 1000000000, '1 h')",
    "limit and rate": "select {}.set_queue('q', 1000000, 1000000000, '1 h')",
    "fair": "select {}.set_queue('q*', null, fair => true)",
    "fair, 50 queues": "select {}.set_queue('q*', null, fair => true)",
}


def cost(jobs: int = 10_000, rounds: int = 3) -> None:
    print("limits that do not bind    add, us a job   claim and finish, us a job of 100, and of 1")
    for name, setting in LIMITS.items():
        figures: list[tuple[float, float, float]] = []
        for _ in range(rounds):
            with fresh() as conn:
                if setting:
                    conn.execute(setting.format(SCHEMA))
                many = 50 if "50" in name else 0
                pid = conn.info.backend_pid
                began = cpu_of(pid)
                add(conn, jobs, lambda n, many=many, queue=bool(setting): (
                    {"queue_name": f"q{n % many}" if many else "q"} if queue else {}))  # fmt: skip
                added = cpu_of(pid) - began
                worker = value(conn, f"select {SCHEMA}.register_worker()")
                few, _, single = lanes.drain(conn, worker, 1, 500)
                rest, _, batches = lanes.drain(conn, worker, 100)
                figures.append((added / jobs * 1e6, batches / rest * 1e6, single / few * 1e6))
        print(f"{name:20}", *(f"{statistics.median(column):16.1f}" for column in zip(*figures, strict=True)))


STEADY = ("no queue", "no limit", "limit 100", "limit 1000", "rate", "fair")


def steady(jobs: int = 3000, rounds: int = 7) -> None:
    """Each turn reports the jobs before it, and claims those that were added since; so nothing waits. The
    settings take turns."""
    print("no backlog, limits that do not bind    add and work, us a job added alone, and in hundreds")
    figures: dict[str, list[list[float]]] = {}
    for _ in range(rounds):
        for name in STEADY:
            figures.setdefault(name, []).append([steadily(name, batch, jobs // rounds) for batch in (1, 100)])
    for name, found in figures.items():
        print(f"{name:20}", *(f"{statistics.median(column):16.1f}" for column in zip(*found, strict=True)))


def steadily(name: str, batch: int, jobs: int) -> float:
    """CPU of the backend, us a job, when so many are added at once. The first tenth does not count."""
    kind, _, most = name.partition("limit ")
    setting = f"select {{}}.set_queue('q', {most})" if most else LIMITS[kind]
    queue = "q" if setting else None
    turn = f"select kind, id, run from {SCHEMA}.work(%s, %s::bigint[], %s::bigint[], null, null, 100)"
    with fresh() as conn:
        if setting:
            conn.execute(setting.format(SCHEMA))
        worker = value(conn, f"select {SCHEMA}.register_worker()")
        held: list[tuple[int, int]] = []
        cpu, warm, jobs = 0.0, -max(jobs // 10, 10 * batch), max(jobs, 50 * batch)
        done = warm
        while done < jobs:
            if done <= 0:
                cpu = finely(conn.info.backend_pid)
                begun = done
            if batch == 1:
                conn.execute(f"select from {SCHEMA}.add_job('t', queue_name => %s)", [queue])
            else:
                add(conn, batch, lambda _: {"queue_name": queue})
            left = batch
            while left > 0:
                ids, runs = [job for job, _ in held], [run for _, run in held]
                rows = conn.execute(turn, [worker, ids, runs]).fetchall()
                held = [(job, run) for what, job, run in rows if what == "job"]
                left -= len(held)
            done += batch
        return (finely(conn.info.backend_pid) - cpu) / (done - begun) * 1e6


def beside(jobs: int = 20_000, rounds: int = 3) -> None:
    print("plain jobs beside queues at their rate    claim and finish, us a job of 50")
    for queues in (0, 1, 1000):
        figures: list[float] = []
        for _ in range(rounds):
            with fresh() as conn:
                conn.execute(f"select {SCHEMA}.set_queue('r*', null, 1, '1 day')")
                worker = value(conn, f"select {SCHEMA}.register_worker()")
                add(conn, queues * 5, lambda n, queues=queues: {"queue_name": f"r{n % queues}"})
                lanes.drain(conn, worker, 100)
                add(conn, jobs, lambda _: {})
                conn.execute("vacuum analyze")
                done, _, cpu = lanes.drain(conn, worker, 50)
                figures.append(cpu / done * 1e6)
        print(f"{queues:6} {statistics.median(figures):36.1f}")


def fair() -> None:
    print("sessions  batch  other queues   100th single at   last single at   us CPU a start")
    for sessions, batch, others in (
        (1, 1, 0),
        (1, 10, 0),
        (1, 100, 0),
        (4, 10, 0),
        (4, 100, 0),
        (1, 1, 50_000),
        (1, 10, 50_000),
        (1, 100, 50_000),
    ):
        with fresh() as conn:
            conn.execute(f"select {SCHEMA}.set_queue('t:*', null, fair => true)")
            add(conn, 20_000, lambda _: {"queue_name": "t:large"})
            add(conn, 200, lambda n: {"queue_name": f"t:{n}"})
            add(conn, others, lambda n: {"queue_name": f"t:other {n}"})
            most = 3000 // sessions
            all_of_them = [Session(batch, time.time() + 300, most=most) for _ in range(sessions)]
            starts = together(all_of_them)
            cpu = statistics.mean(session.cpu for session in all_of_them)
            singles = [n for n, (_, queue) in enumerate(starts, 1) if queue[2:].isdigit()]
            print(f"{sessions:8} {batch:6} {others:13} {singles[99]:17} {singles[-1]:16} {cpu * 1e6:16.0f}")


def plot(seconds: float = 20) -> None:
    """Ten sessions, a rate of 100 a second that becomes 30, and then 200."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with fresh() as conn:
        conn.execute(f"select {SCHEMA}.set_queue('q', null, 100, '1 s')")
        add(conn, 5000, lambda _: {"queue_name": "q"})
        sessions = [Session(5, time.time() + seconds, trouble=True) for _ in range(10)]
        for session in sessions:
            session.start()
        began, steps = value(conn, "select clock_timestamp()"), [(0.0, 100)]
        for rate in (30, 200):
            time.sleep(seconds / 3)
            conn.execute(f"select {SCHEMA}.set_queue('q', null, {rate}, '1 s')")
            steps.append(
                (value(conn, "select extract(epoch from clock_timestamp() - %s)::float8", began), rate)
            )
        for session in sessions:
            session.join()
        times = conn.execute(
            f"select extract(epoch from s.at - %s)::float8 from (select locked_at as at from {SCHEMA}.history"
            f" union all select locked_at from {SCHEMA}.jobs) s where s.at is not null order by 1",
            [began],
        ).fetchall()
    moments = [time for (time,) in times]
    figure, axes = pyplot.subplots(figsize=(8, 3.5))
    axes.plot(moments, [sum(t - 1 < other <= t for other in moments) for t in moments], lw=0.8,
              label="starts in the second that ends here")  # fmt: skip
    axes.step([at for at, _ in steps] + [seconds], [rate for _, rate in steps] + [steps[-1][1]],
              where="post", color="red", lw=1, label="rate")  # fmt: skip
    axes.set_xlabel("seconds")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(Path("starts.svg"), metadata={"Date": None})


PARTS: dict[str, Callable[..., None]] = {
    "window": window,
    "cost": cost,
    "steady": steady,
    "beside": beside,
    "fair": fair,
    "many": many,
    "plot": plot,
}


def measure(chosen: list[str]) -> None:
    for part in chosen:
        name, _, number = part.partition("=")
        PARTS[name](*[int(number)] if number else [])


def main() -> None:
    chosen = sys.argv[1:] or list(PARTS)[:-2]
    if lanes.DSN:
        measure(chosen)
        return
    with temporary_server(in_memory=False) as server:
        lanes.DSN = f"host={server.host} port={server.port} user={server.user} dbname=postgres"
        measure(chosen)


if __name__ == "__main__":
    main()
