"""The child process claims jobs, runs their handlers and reports their outcomes.

    main thread     the turn: report outcomes and claim jobs in one round trip, then wait
    loop thread     runs async handlers, started with the first one

    pace        when to claim, and how much
    exchange    reports and claims, in one call of `work`
    handlers    where each handler runs, and its one outcome

The parent sends orders: "stop" or "abort". Their end means that the parent is dead. The child then exits
at once: two generations must not run side by side. child_main.py starts it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import sys
import threading
import time
from typing import TYPE_CHECKING, TextIO

import psycopg

from .. import _logging, tasks
from .._db import migrations
from .._db.connect import TRY_AGAIN, Backoff, SilenceGuard, connect, cut, is_lost, is_pooled, server_of
from .._db.database import Database
from .._escape import shown
from ..errors import SchemaVersionError, TaskError, sqlstate_of
from . import leaving, signals
from .announce import announce
from .config import (
    EXIT_BROKEN,
    EXIT_DATABASE_NEWER,
    RunConfig,
)
from .connections import Connections
from .exchange import NOTHING, Exchange
from .handlers import IF_URGENT, NEVER, Handlers
from .pace import Pace
from .shared import Slots, boottime
from .shares import shares

if TYPE_CHECKING:
    from .metrics import Measures

log = logging.getLogger("pyworker.worker")

LINGER = 0.01  # seconds that outcomes wait for more outcomes, or for new jobs to claim in the same turn
CANCEL_CHECK = 10.0  # seconds between checks for cancelled jobs; a notification triggers one sooner
PATIENCE = 0.5  # seconds for an answer that no job waits for, when told to stop
RECONCILE = 5.0  # seconds from the first to the second reconciliation after a lost connection


class Child:
    def __init__(self, config: RunConfig, worker_id: int, orders: TextIO, slots: Slots) -> None:
        self.config = config
        self.slots = slots
        self.worker_id = worker_id
        self.orders = orders
        self.declared = False
        self.measures: Measures | None = None
        self.connections = Connections(config)
        self.lines = self.connections.lines
        self.exchange = Exchange(config, worker_id, self.lines, slots.count)
        self.handlers = Handlers(config, slots, self.connections, self.exchange.ended, self._wake)
        self.pace = Pace(config.concurrency, config.poll_interval)
        self.db: Database | None = None
        self.backoff = Backoff(log)
        self.watch = SilenceGuard(config.dsn, self._unanswered)
        self.wake_read, self.wake_write = os.pipe()
        os.set_blocking(self.wake_read, False)
        os.set_blocking(self.wake_write, False)
        self.stopping = self.aborting = False
        self.began = 0.0  # the turn
        self.recheck_version = False
        self.ask_at = 0.0  # when to check for cancelled jobs
        self.reconcile_in, self.reconcile_at = 0.0, math.inf
        self.exit_code = 0
        self.warned = ""
        self.batches: dict[str, int] = {}  # jobs of a call, of the tasks whose handlers take several

    # -- orders from the parent --------------------------------------------------------------------

    def _read_orders(self) -> None:
        with contextlib.suppress(Exception):  # a handler may have closed it: the process ends without orders
            for line in self.orders:
                if line.strip() == "stop":
                    self.stopping = True
                    if not self.handlers.tasks:  # modules are being imported: no job is held
                        leaving.leave(0, hooks=False)
                elif line.strip() == "abort":
                    self.stopping = self.aborting = True
                self._wake()
                log.debug("told to %s", line.strip())
        os._exit(1)  # the parent is dead

    def _unanswered(self) -> None:
        """Called each second while the database is waited for: not for nothing, when told to stop."""
        self.slots.turned()
        late = time.monotonic() - self.began > PATIENCE
        if late and self.stopping and self._leaves_nothing:
            if self.db is None:
                leaving.leave(self.exit_code, hooks=False)
            cut(self.db.conn)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self.wake_write, b"x")

    # -- the turn ----------------------------------------------------------------------------------

    def run(self) -> int:
        threading.Thread(target=self._read_orders, daemon=True, name="orders").start()
        if self.config.metrics:
            from .metrics import Measures

            self.measures = Measures()
        self.handlers.tasks = self.handlers.context.run(tasks.load, self.config.tasks)
        signals.leave_to_parent()  # again: a module may have set handlers of its own
        _logging.enable_again()
        if unknown := [name for name in self.config.only_tasks if name not in self.handlers.tasks]:
            raise TaskError(
                f"--task {unknown[0]}: no such task (known: {', '.join(sorted(self.handlers.tasks))})"
            )
        while True:
            self.slots.turned()
            self.began = time.monotonic()
            try:
                if self.db is None:
                    self._connect()
                if self._turn():
                    return self.exit_code
                self.slots.answered()
                self.backoff.worked()
                self._wait()
            except psycopg.Error as error:
                if self._failed(error):
                    return self.exit_code

    def _failed(self, error: psycopg.Error) -> bool:
        """Wait and try again: the connection was lost, or the database refused a statement.

        True if this process is to end instead.
        """
        if is_lost(error):
            self.backoff.failed(error)
            if self.db is not None:
                self.db.conn.close()
                self.db = None
                self.reconcile_in = RECONCILE
        elif self.config.once and sqlstate_of(error) not in TRY_AGAIN:
            raise TaskError("the database refuses: " + str(error).split("\n")[0]) from None
        else:
            self.backoff.refused(error)
            self.slots.refused()
        if self.stopping:
            self.handlers.hand_back(everything=self.aborting)
            if self._leaves_nothing:
                return True
        select.select([self.wake_read], [], [], max(self.backoff.until - time.monotonic(), 0))
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_read, 4096)
        return False

    def _connect(self) -> None:
        with self.watch.over(None):
            conn = connect(self.config.dsn, worker=True)
        try:
            self._announce_worker(Database(conn, self.config.schema, self.watch.over))
        except psycopg.Error:
            conn.close()
            raise

    def _announce_worker(self, db: Database) -> None:
        # Each process declares schedules once, so the last process to start determines them.
        announce(db, self.config, self.worker_id, self.handlers.tasks, not self.declared)
        self.exchange.task_names = self.config.only_tasks or sorted(self.handlers.tasks)
        if not self.declared:
            self.batches = {name: size for name, task in self.handlers.tasks.items() if (size := task.batch)}
            self.pace.meet({self.batches.get(name) for name in self.exchange.task_names})
            self.slots.know(self.exchange.task_names, max(self.batches.values(), default=1))
            self.slots.answered()
            signals.wake_parent()  # it logs the start, before the first job logs anything
        self.declared = True
        db.conn.add_notice_handler(self._on_notice)
        if is_pooled(db.conn):
            log.warning(
                "there is a transaction pooler in between: no notifications come through it,"
                " jobs are found by polling"
            )
        else:
            db.conn.add_notify_handler(lambda note: self._on_notification(note.payload))
            db.listen()
        self._look_for_stops(db, lost_answer=True)
        self.db = db
        self.connections.meet(server_of(db.conn), is_pooled(db.conn))
        self.pace.nothing_available = False

    def _look_for_stops(self, db: Database, lost_answer: bool) -> None:
        """Stop the jobs that were cancelled or are no longer ours.

        With `lost_answer` the database releases jobs that we do not know of.
        """
        self.ask_at = time.monotonic() + CANCEL_CHECK
        if lost_answer:
            # A claim that was in flight when the connection was lost may commit after this: repeat
            # this check, at growing intervals.
            self.reconcile_at = time.monotonic() + (self.reconcile_in or math.inf)
            self.reconcile_in = self.reconcile_in * 2 if self.reconcile_in < RECONCILE * 64 else 0.0
        held = self.handlers.known() + [(one.id, one.run) for one in self.exchange.held()]
        # A beat extends the worker's lease, which a parent that stands still must not keep.
        if lost_answer or (held and not self.slots.expired()):
            self.handlers.cancel(set(db.runs_to_stop(self.worker_id, held, lost_answer)))

    def _on_notification(self, word: str) -> None:
        if word == "migrate":
            self.recheck_version = True
        elif word == "cancel":
            self.ask_at = 0.0
        elif not word:
            self.pace.hear()

    def _on_notice(self, notice: psycopg.errors.Diagnostic) -> None:
        """Log what the database warns of, each time only if it is new."""
        words = f"{notice.message_primary}"
        if notice.severity_nonlocalized == "WARNING" and words != self.warned:
            self.warned = words
            log.warning("the database warns: %s", shown(words))

    def _turn(self) -> bool:
        """Make one round trip if there is a reason. True if this process is to end."""
        assert self.db is not None  # noqa: S101
        db = self.db
        if self.handlers.broken:
            return self._end_broken(db)
        self._check_version(db)
        if self.stopping:
            self.handlers.hand_back(everything=self.aborting)
        if min(self.ask_at, self.reconcile_at) <= time.monotonic():
            self._look_for_stops(db, self.reconcile_at <= time.monotonic())
        self.handlers.start_again()
        if self.handlers.hand_back_late():
            self.pace.waited()
        self.handlers.urgent = False
        reports = self.exchange.has_due(hurry=self.stopping)
        room = 0 if self.stopping else self._room(reports)
        if not (reports or room or self._must_log()):
            return self.stopping and self._idle
        self._exchange(db, reports, room)
        return (self.stopping or (self.config.once and self.pace.nothing_available)) and self._idle

    @property
    def _idle(self) -> bool:
        return self.handlers.idle and not self.exchange.held()

    @property
    def _leaves_nothing(self) -> bool:
        """No handler runs, and nothing is to be reported: jobs that have not begun the parent hands back."""
        ended = [one for one in self.exchange.held() if one.do != "release"]
        return not (self.handlers.running or self.handlers.lost or ended)

    def _must_log(self) -> bool:
        """True if what jobs have logged must not wait for a turn that is made anyway."""
        return bool(self.lines) and (self.stopping or not self.lines.due_in())

    def _end_broken(self, db: Database) -> bool:
        """Report what has ended, and end the process: a job's end could not be recorded."""
        self.exit_code = EXIT_BROKEN
        self.exchange.work(db, NOTHING)
        return True

    def _check_version(self, db: Database) -> None:
        if self.recheck_version:
            self.recheck_version = False
            try:
                db.check_version(migrations.newest())
            except SchemaVersionError as error:
                log.error("%s. %s", error, error.hint or "")
                self.stopping, self.exit_code = True, EXIT_DATABASE_NEWER

    def _exchange(self, db: Database, reports: bool, room: int) -> None:
        """Report and claim: in one call, or with bounds of queues in one for each of them."""
        parts = (
            shares(self.config, room, self.handlers.queues() if self.config.bounds else ()) if room else []
        )
        if room and not parts:  # each bound is reached, until a handler ends
            self.pace.put_off(self.config.poll_interval)
            if not (reports or self._must_log()):
                return
        asked = claimed = reported = 0
        again_in = math.inf
        for share in parts or [NOTHING]:
            part = share._replace(most=min(share.most, room - claimed))
            if asked and not part.most:
                break
            sent = boottime()
            turn = self.exchange.work(db, part, hurry=self.stopping)
            if not turn:
                return
            asked, claimed = asked + part.most, claimed + len(turn.jobs)
            reported += turn.reported
            if self.batches and turn.jobs:
                self.pace.meet({self.batches.get(row[2]) for row in turn.jobs})
            if part.most:
                self.pace.weigh([row[3] for row in turn.jobs])
                self.handlers.begin(turn.jobs, self.pace.until(sent, boottime()))
            if len(turn.jobs) < part.most:
                again_in = min(again_in, turn.again_in)
        if self.measures and asked:
            self.measures.claimed(claimed)
        if asked:
            self.pace.learn(asked, claimed, reported)
            if claimed < asked:
                self.pace.sleep(again_in)

    def _room(self, reporting: bool) -> int:
        room = 0 if self.handlers.closed_for() else self.pace.room(self.handlers.load, reporting)
        if room and self.slots.expired():  # claim nothing until the parent has extended the lease
            self.pace.put_off(1)
            return 0
        if room:
            self.pace.claims()
        return room

    def _wait(self) -> None:
        """Wait for a handler's end, a notification, an order, or the time of the next claim."""
        timeout: float | None = None
        soon = min(self.handlers.waiting.late_in(), self.handlers.threads.again_in())
        if not self.stopping and self.handlers.load < self.config.concurrency:
            soon = min(soon, max(self.pace.patience(), self.handlers.closed_for()))
        if soon < math.inf:
            timeout = soon
        if self.exchange.has_aside:
            timeout = min(self.exchange.due_in(), math.inf if timeout is None else timeout)
        if self.handlers.running:
            until = max(min(self.ask_at - time.monotonic(), self.lines.due_in()), 0)
            timeout = until if timeout is None else min(timeout, until)
        self._sleep(timeout, wake_at=sys.maxsize)
        if self.handlers.outcomes and len(self.handlers.ready) > self.pace.prefetch // 2:
            # Other jobs are ready, and reporting many outcomes costs little more than one.
            self._sleep(LINGER, wake_at=self.pace.prefetch // 2)
        elif self.handlers.outcomes and self._may_linger():
            # Reporting alone costs a turn. The next job will soon take one, too, or the next claim is due.
            self._sleep(min(LINGER, self.pace.patience()), wake_at=IF_URGENT)

    def _may_linger(self) -> bool:
        """No job waits for this report or for the claim that goes with it, and no crash is near."""
        waits = self.pace.nothing_available and self.handlers.load < self.config.concurrency
        calm = not (self.handlers.urgent or self.handlers.isolated)
        return waits and calm and not (self.stopping or self.config.once)

    def _sleep(self, timeout: float | None, wake_at: int) -> None:
        assert self.db is not None  # noqa: S101
        conn, handlers = self.db.conn, self.handlers
        handlers.wake_at = wake_at
        if handlers.outcomes and (
            len(handlers.ready) <= wake_at or (wake_at == IF_URGENT and handlers.urgent)
        ):
            timeout = 0.0
        poll = select.poll()  # costs less than a selector, which is a file of the kernel
        poll.register(self.wake_read, select.POLLIN)
        poll.register(conn.fileno(), select.POLLIN)
        events = poll.poll(None if timeout is None else timeout * 1000)
        handlers.wake_at = NEVER
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_read, 4096)
        if any(fd != self.wake_read for fd, _ in events):
            conn.pgconn.consume_input()
            while note := conn.pgconn.notifies():
                self._on_notification(note.extra.decode())
            if conn.pgconn.status != psycopg.pq.ConnStatus.OK:
                raise psycopg.OperationalError("the server closed the connection")
