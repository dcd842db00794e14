"""Sessions that a controller moves one statement at a time.

A step (rewrite.py) sends a notice and waits for an advisory lock that the controller holds, unless its
number is less than the session's stop. To move the session on, the controller takes the session's other
lock, sets the next stop, and releases this lock. So a session never runs unless the controller has let
it, and the controller reads where it stands from the socket, without asking. Only a session that says
nothing for a while is asked for: does it wait for a lock of another session?
"""

from __future__ import annotations

import json
import select
import time
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import pq, sql
from psycopg.conninfo import make_conninfo

from tests.interleavings.rewrite import KEYS

# Before PostgreSQL waits for the transaction that has a row locked, it locks the row's place.
AWAITED = """
    select c.relname, format('(%%s,%%s)', l.page, l.tuple)::tid::text
    from pg_locks l join pg_class c on c.oid = l.relation where l.pid = %s and l.locktype = 'tuple'
"""
QUIET = 0.002  # seconds after which a session may be waiting for a lock
STUCK = 20.0
ALL = 1_000_000_000  # steps


@dataclass
class Answer:
    """What a statement gave: its rows as text, or the SQLSTATE and message of its error."""

    rows: list[tuple[str | None, ...]] = field(default_factory=list)
    sqlstate: str | None = None
    message: str = ""


class Stuck(Exception):
    """A session neither moves nor waits for another one: a fault of the explorer."""


class Controller:
    """A connection that holds the locks of all sessions and asks the server about them."""

    def __init__(self, dsn: str) -> None:
        self.conn = psycopg.connect(dsn, autocommit=True, prepare_threshold=0)

    def hold(self, n: int) -> None:
        self.conn.execute(
            "select pg_advisory_lock(%s, 0), setval(%s::regclass, 0, false), setval(%s::regclass, 0)",
            [KEYS + n, f"pyworker_steps.turn_{n}", f"pyworker_steps.stop_{n}"],
        )

    def move(self, n: int, lock: int, stop: int) -> None:
        self.conn.execute(
            "select pg_advisory_lock(%s, %s), setval(%s::regclass, %s), pg_advisory_unlock(%s, %s)",
            [KEYS + n, 1 - lock, f"pyworker_steps.stop_{n}", 2 * stop + 1 - lock, KEYS + n, lock],
        )

    def stop_at(self, n: int, lock: int, stop: int) -> None:
        self.conn.execute("select setval(%s::regclass, %s)", [f"pyworker_steps.stop_{n}", 2 * stop + lock])

    def blockers(self, pid: int) -> list[int]:
        row = self.conn.execute("select pg_blocking_pids(%s)", [pid]).fetchone()
        return row[0] if row else []

    def awaited(self, pid: int) -> tuple[str, int | None] | None:
        """The row for which a session waits: its table, and its id if it is a job. None if it waits for
        a transaction alone, as an insert does."""
        row = self.conn.execute(AWAITED, [pid]).fetchone()
        if row is None:
            return None
        table, place = row
        if table not in ("live_jobs", "finished_jobs"):
            return table, None
        job = self.conn.execute(
            sql.SQL("select id from {} where ctid = %s").format(sql.Identifier("pyworker", table)), [place]
        ).fetchone()
        return table, job[0] if job else None


class Session:
    """One stepped connection. `at` is the step before which it stands; None: between two statements."""

    def __init__(self, dsn: str, n: int, controller: Controller) -> None:
        self.n, self.controller = n, controller
        options = f"-c pyworker_steps.session={n} -c client_min_messages=notice -c deadlock_timeout=400ms"
        self.pgconn = pq.PGconn.connect(make_conninfo(dsn, options=options).encode())
        if self.pgconn.status != pq.ConnStatus.OK:
            raise psycopg.OperationalError(self.pgconn.error_message.decode())
        self.pgconn.nonblocking = 1
        self.pgconn.notice_handler = self._noticed
        self.pid = self.pgconn.backend_pid
        self.lock = 0  # which of its two locks the controller holds
        self.made = 0  # the steps that it has come to
        self.stop = 0  # the number of the first step that waits
        self.noticed: list[int] = []  # the steps that it has come to since it was let move
        self.at: int | None = None
        self.active = self.blocked = False
        self.answer = Answer()
        self.changes: list[list[Any]] = [
            []
        ]  # in the step from which it was let move, and in each noticed one
        self.blockers: set[int] = set()
        controller.hold(n)

    def _noticed(self, result: Any) -> None:
        said = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode()
        kind, _, rest = said.partition(" ")
        if kind == "step":
            self.noticed.append(int(rest))
            self.changes.append([])
            if self.made >= self.stop:
                self.at = int(rest)
            self.made += 1
        elif kind == "changed":
            self.changes[-1].append(json.loads(rest))

    def send(self, statement: str, most: int) -> None:
        """Begins a statement. With that, it makes so many steps at most; it runs until the next one, its end,
        or a lock of another session."""
        if not (most == ALL and self.stop > self.made + ALL // 2):
            self.stop_at(self.made + most - 1)
        self.answer, self.active, self.at = Answer(), True, None
        self.noticed, self.changes = [], [[]]
        self.pgconn.send_query(statement.encode())
        self.pgconn.flush()

    def move(self, most: int) -> None:
        """Lets it make so many steps at most, from the one before which it stands."""
        self.at = None
        self.noticed, self.changes = [], [[]]
        self.stop = self.made + most - 1
        self.controller.move(self.n, self.lock, self.stop)
        self.lock = 1 - self.lock

    def stop_at(self, stop: int) -> None:
        self.stop = stop
        self.controller.stop_at(self.n, self.lock, stop)

    def read(self) -> None:
        self.pgconn.consume_input()
        while self.active and not self.pgconn.is_busy():
            result = self.pgconn.get_result()
            if result is None:
                self.active = False
            elif result.status == pq.ExecStatus.FATAL_ERROR:
                state = result.error_field(pq.DiagnosticField.SQLSTATE) or b"?"
                message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b""
                self.answer.sqlstate, self.answer.message = state.decode(), message.decode()
            elif result.status == pq.ExecStatus.TUPLES_OK:
                for row in range(result.ntuples):
                    values = (result.get_value(row, column) for column in range(result.nfields))
                    self.answer.rows.append(tuple(v.decode() if v is not None else None for v in values))

    @property
    def moving(self) -> bool:
        return self.active and self.at is None

    def settle(self, others: list[Session]) -> None:
        """Returns when it stands before a step, has ended its statement, or waits for another session."""
        quiet = 0.0 if self.blocked else QUIET  # one that has waited most likely still waits
        self.blocked = False
        deadline = time.monotonic() + STUCK
        self.read()
        while self.moving:
            if select.select([self.pgconn.socket], [], [], quiet)[0]:
                self.read()
            elif blockers := set(self.controller.blockers(self.pid)) & {other.pid for other in others}:
                self.blockers = blockers
                self.read()
                self.blocked = self.moving
                if self.blocked and self.stop != self.made:
                    self.stop_at(self.made)  # once it waits no more
                return
            elif time.monotonic() > deadline:
                raise Stuck(f"session {self.n} says nothing")
            quiet = QUIET

    def run(self, statement: str) -> Answer:
        """A statement, all of it."""
        self.send(statement, ALL)
        while self.active:
            select.select([self.pgconn.socket], [], [], 1)
            self.read()
        return self.answer

    def close(self) -> None:
        self.pgconn.finish()
