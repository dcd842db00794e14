"""What a fleet of workers costs the server: idle, and under a steady stream of single jobs.

    python bench/fleet.py [CHECKOUT …] [--workers 100] [--seconds 10] [--rates 0 10 100 1000]

On a private server, a light client stands for each worker: one connection that listens, beats and takes
turns as docs/protocol.md says, with ten handlers of 20 ms at once. All clients share one thread, so that a
hundred of them fit beside the server. Eight connections add the jobs, evenly in time, by plain SQL. The wait
of a job is the time from just before the call that adds it to its handler's start. With other checkouts,
the SQL of each takes turns with this one's.

The server's time is that of its processes, to the microsecond. Beside it stands how many times as much it is
as what as many clients cost that send `select 1` once a second: on another machine, or one with other work to
do, the ratio changes less than the time. So a fleet of clients like that comes before each row.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
import selectors
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import psycopg
from psycopg import pq

sys.path.insert(0, str(Path(__file__).parents[1]))

import measure
from serial import Version

from pyworker._dev.postgres import Server, temporary_server

ROOM, HANDLER, LINGER = 10, 0.02, 0.01  # handlers at once; seconds of each; see LINGER of the runner
CONNECTIONS = 8  # that add
TURN = b"""select kind, id, run, payload #>> '{}' as at, again_in_s
    from pyworker.work($1, $2, $3, null, '[]', $4, '{t}')"""
BEAT = b"select next_in_s from pyworker.beat($1)"
ADD = b"select from pyworker.add_job('t', to_json($1::text))"
OPEN = b"select pyworker.open_worker() ->> 'worker'"
COMMITS = "select sum(xact_commit) from pg_stat_database where datname = current_database()"
COLUMNS = """\
 rate    adds    jobs server ms  ÷ plain client ms    turns    empty  notified  commits   p50 ms   p99 ms"""
SETTINGS = {"max_connections": "400", "shared_buffers": "1GB", "max_wal_size": "8GB"}
Rows = list[tuple[bytes | None, ...]]
told: Counter[str] = Counter()  # what the clients did
waits: list[float] = []  # seconds


class Loop:
    """The timers and sockets of all clients."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()

    def at(self, when: float, call: Callable[[], None]) -> None:
        heapq.heappush(self.timers, (when, next(self.order), call))

    def run(self, until: Callable[[], bool]) -> None:
        while not until():
            while self.timers and self.timers[0][0] <= time.time():
                heapq.heappop(self.timers)[2]()
            due = self.timers[0][0] - time.time() if self.timers else 0.1
            for key, _ in self.selector.select(min(max(due, 0), 0.1)):
                key.data()


class Client:
    """One connection, with one call at a time."""

    def __init__(self, loop: Loop, dsn: str, *settings: bytes) -> None:
        self.loop = loop
        self.conn = pq.PGconn.connect(dsn.encode())
        for setting in settings:
            self.ask(setting)
        for name, sql in (b"turn", TURN), (b"beat", BEAT), (b"add", ADD):
            self.conn.prepare(name, sql)
        self.conn.nonblocking = 1
        self.answered: Callable[[Rows], None] | None = None  # what waits for an answer
        loop.selector.register(self.conn.socket, selectors.EVENT_READ, self.read)

    def ask(self, sql: bytes) -> bytes | None:
        result = self.conn.exec_(sql)
        return result.get_value(0, 0) if result.ntuples else None

    def call(self, name: bytes, values: list[bytes], answered: Callable[[Rows], None]) -> None:
        self.answered = answered
        self.conn.send_query_prepared(name, values)
        self.conn.flush()

    def read(self) -> None:
        self.conn.consume_input()
        while self.conn.notifies():
            self.heard()
        rows: Rows = []
        while self.answered and not self.conn.is_busy():
            if result := self.conn.get_result():
                if message := result.error_message:
                    raise RuntimeError(message.decode())
                columns = range(result.nfields)
                rows = [tuple(result.get_value(r, c) for c in columns) for r in range(result.ntuples)]
                continue
            answered, self.answered = self.answered, None
            answered(rows)

    def heard(self) -> None:
        """A notification has come."""


class Worker(Client):
    def __init__(self, loop: Loop, dsn: str) -> None:
        super().__init__(loop, dsn, b"set synchronous_commit = off", b"listen pyworker")
        self.id = self.ask(OPEN) or b""
        self.running = 0
        self.done: list[tuple[bytes, bytes]] = []
        self.claim_at = self.beat_at = 0.0
        self.report_at = float("inf")
        self.next_look = float("inf")
        self.woken = self.wakes = False  # by a notification: the next claim, and the one that is under way
        self.vain = 0.0  # by how much, at most, it puts off its next claim after a notification
        self.look()

    def heard(self) -> None:
        told["notifications"] += 1
        self.woken = True
        self.claim_at = min(self.claim_at, time.time() + random.uniform(0, self.vain))
        self.look()

    def look(self) -> None:
        """Make the call that is due, or come back when one is."""
        if self.answered:
            return
        now = time.time()
        if self.beat_at <= now:
            self.beat_at = now + 5
            self.call(b"beat", [self.id], self.has_beaten)
            return
        room = ROOM - self.running
        due = min(self.report_at, self.claim_at if room else float("inf"))
        if due <= now:
            ids, runs = (b"{%s}" % b",".join(column) for column in zip(*self.done, strict=True)) \
                if self.done else (b"{}", b"{}")  # fmt: skip
            self.done, self.report_at, self.claim_at = [], float("inf"), float("inf")
            self.wakes, self.woken = self.woken, False
            told["turns"] += 1
            self.call(b"turn", [self.id, ids, runs, b"%d" % room], self.has_turned)
        elif (due := min(due, self.beat_at)) < self.next_look or self.next_look <= now:
            self.next_look = due
            self.loop.at(due, self.look_again)

    def look_again(self) -> None:
        self.next_look = float("inf")
        self.look()

    def has_beaten(self, rows: Rows) -> None:
        self.beat_at = time.time() + float(rows[0][0] or 1)
        self.look()

    def has_turned(self, rows: Rows) -> None:
        now = time.time()
        for kind, job, run, at, again_in in rows:
            if kind == b"job":
                waits.append(now - float(at))
                self.running += 1
                self.loop.at(now + HANDLER, lambda job=job, run=run: self.has_ended(job, run))
            elif again_in:
                self.claim_at = min(self.claim_at, now + float(again_in))
        if len(rows) > 1:
            self.vain = 0.0
        elif self.wakes:
            self.vain = min(2 * self.vain or 0.005, 0.1)
        told["empty turns"] += len(rows) == 1
        self.look()

    def has_ended(self, job: bytes, run: bytes) -> None:
        self.running -= 1
        self.done.append((job, run))
        self.report_at = min(self.report_at, time.time() + LINGER)
        self.look()


class Plain(Client):
    """Sends `select 1` once a second."""

    def __init__(self, loop: Loop, dsn: str) -> None:
        super().__init__(loop, dsn)
        self.conn.nonblocking = 0
        self.conn.prepare(b"plain", b"select 1")
        self.conn.nonblocking = 1
        self.tick()

    def tick(self) -> None:
        self.loop.at(time.time() + 1, self.tick)
        self.call(b"plain", [], lambda _rows: None)


class Adder(Client):
    """Adds the jobs that are due, one at a time."""

    def __init__(self, loop: Loop, dsn: str) -> None:
        super().__init__(loop, dsn)
        self.late: deque[None] = deque()

    def add(self) -> None:
        if self.answered:
            self.late.append(None)
            return
        told["adds"] += 1
        self.call(b"add", [b"%r" % time.time()], self.has_added)

    def has_added(self, _rows: Rows) -> None:
        if self.late:
            self.late.pop()
            self.add()


@contextmanager
def fleet(
    server: Server, version: Version, workers: int, kind: type[Worker | Plain] = Worker
) -> Iterator[tuple[Loop, list[Adder], str]]:
    version.database("drop", "if exists fleet", "with (force)")
    version.database("create", "fleet", f"template {version.template}")
    dsn, loop = server.url("fleet"), Loop()
    clients: list[Client] = []
    for _ in range(workers):  # spread over a second, as processes that start one by one
        clients.append(kind(loop, dsn))
        until = time.time() + 1 / workers
        loop.run(lambda until=until: time.time() >= until)
    adders = [Adder(loop, dsn) for _ in range(CONNECTIONS)]
    try:
        yield loop, adders, dsn
    finally:
        for client in [*clients, *adders]:
            client.conn.finish()


@cache
def postmaster(dsn: str) -> int:
    with psycopg.connect(dsn) as conn:
        return measure.postmaster_of(conn)  # type: ignore[arg-type]


def used(server: Server, without: int = 0) -> float:
    """Seconds of CPU of the server's living processes."""
    pids = [pid for pid in measure.family(postmaster(server.url())) if pid != without]
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in pids) / 1e9


def plain(server: Server, version: Version, workers: int, seconds: float) -> float:
    """What a fleet of clients that send `select 1` costs, in seconds a second."""
    with fleet(server, version, workers, Plain) as (loop, adders, _):
        stream(loop, adders, 0, 1)
        before = used(server)
        stream(loop, adders, 0, seconds)
        return (used(server) - before) / seconds


def stream(loop: Loop, adders: list[Adder], rate: int, seconds: float) -> None:
    began = time.time() + 0.01
    for number in range(int(rate * seconds)):
        loop.at(began + number / rate, adders[number % CONNECTIONS].add)
    loop.run(lambda: time.time() >= began + seconds)


def measured(server: Server, version: Version, workers: int, rate: int, seconds: float) -> str:
    least = plain(server, version, workers, seconds)
    with (
        fleet(server, version, workers) as (loop, adders, dsn),
        psycopg.connect(dsn, autocommit=True) as conn,
    ):
        stream(loop, adders, rate, 2)
        told.clear()
        waits.clear()
        mine = conn.info.backend_pid

        def read() -> tuple[float, float]:
            return used(server, mine), time.process_time()

        before, (commits,) = read(), conn.execute(COMMITS).fetchone() or (0,)
        stream(loop, adders, rate, seconds)
        server_used, own = (new - old for new, old in zip(read(), before, strict=True))
        time.sleep(1.1)  # the statistics of commits are sent once a second
        commits = int((conn.execute(COMMITS).fetchone() or (0,))[0]) - int(commits)
        ordered = sorted(waits) or [float("nan")]
        p50, p99 = (ordered[int(len(ordered) * part)] * 1000 for part in (0.5, 0.99))
        each = {name: count / seconds for name, count in told.items()}
        return (
            f"{rate:5} {each.get('adds', 0):7.0f} {len(waits) / seconds:7.0f} "
            f"{server_used / seconds * 1000:9.1f} {server_used / seconds / least:8.1f} "
            f"{own / seconds * 1000:9.1f} {each.get('turns', 0):8.0f} "
            f"{each.get('empty turns', 0):8.0f} {each.get('notifications', 0):9.0f} {commits / seconds:8.0f} "
            f"{p50:8.1f} {p99:8.1f}   {version.name}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("versions", nargs="*", type=Path, metavar="CHECKOUT")
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rates", type=int, nargs="+", default=[0, 10, 100, 1000], help="jobs a second")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    checkouts = [*(path.resolve() for path in options.versions), Path(__file__).parents[1]]
    with temporary_server(settings=SETTINGS) as server:
        versions = [Version(path, server, number) for number, path in enumerate(checkouts)]
        print(f"PostgreSQL {server.version}, {options.workers} workers; each second:")
        print(COLUMNS)
        for rate in options.rates:
            for _ in range(options.rounds):
                for version in versions:
                    print(measured(server, version, options.workers, rate, options.seconds), flush=True)


if __name__ == "__main__":
    main()
