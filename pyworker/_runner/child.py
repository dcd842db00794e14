"""The child process claims jobs, runs their handlers and reports their outcomes.

    main thread     the turn: report outcomes and claim jobs in one round trip, then wait
    loop thread     runs async handlers, started with the first one

    link        the connection to the database
    pace        when to claim, and how much
    exchange    reports and claims, in one call of `work`
    handlers    which job runs, and its one outcome

The parent sends orders: "stop" or "abort". Their end means that the parent is dead. The child then exits
at once: two generations must not run side by side. child_main.py starts it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, TextIO

import psycopg

from .._db.connect import is_lost, is_pooled, server_of
from .._db.database import Database
from . import leaving, signals
from .announce import announce, load, still_fits
from .config import EXIT_BROKEN, EXIT_DATABASE_NEWER, RunConfig
from .connections import Connections
from .exchange import NOTHING, Exchange
from .handlers import IF_URGENT, NEVER, Handlers
from .link import Link
from .pace import Pace
from .shared import Slots, boottime
from .shares import shares
from .stops import Stops

if TYPE_CHECKING:
    from .metrics import Measures

log = logging.getLogger("pyworker.worker")

POOLED = (
    "there is a transaction pooler in between: no notifications come through it, jobs are found by polling"
)
LINGER = 0.01  # seconds that outcomes wait for more outcomes, or for new jobs to claim in the same turn


class Child:
    def __init__(self, config: RunConfig, worker_id: int, orders: TextIO, slots: Slots) -> None:
        self.config, self.worker_id, self.orders, self.slots = config, worker_id, orders, slots
        self.declared = False
        self.measures: Measures | None = None
        self.link = Link(config, slots, self._hear, self._needs_no_answer)
        self.connections = Connections(config)
        self.lines = self.connections.lines
        self.exchange = Exchange(config, worker_id, self.lines, slots.count)
        self.handlers = Handlers(config, slots, self.connections, self.exchange.ended, self.link.wake)
        self.stops = Stops(worker_id, slots, self.handlers, self.exchange)
        self.pace = Pace(config.concurrency, config.poll_interval)
        self.stopping = self.aborting = False
        self.recheck_version = False
        self.exit_code = 0
        self.batches: dict[str, int] = {}  # jobs of a call, of the tasks whose handlers take several

    def run(self) -> int:
        threading.Thread(target=self._read_orders, daemon=True, name="orders").start()
        self._load()
        while True:
            self.slots.turned()
            self.link.began = time.monotonic()
            try:
                if self.turn(self.link.open(self._announce)):
                    return self.exit_code
                self.link.worked()
                self._wait()
            except psycopg.Error as error:
                if is_lost(error) and self.link.db:
                    self.stops.lost()
                self.link.failed(error)
                if self.stopping:
                    self.handlers.hand_back(everything=self.aborting)
                    if self._holds_nothing:
                        return self.exit_code
                self.link.pause()

    def turn(self, db: Database) -> bool:
        """What has ended goes out, jobs come in and start, in one round trip if there is a reason for it.

        True if this process is to end."""
        if self.handlers.broken:  # a job's end could not be recorded: report the others, and end
            self.exchange.work(db, NOTHING)
            self.exit_code = EXIT_BROKEN
            return True
        if self.recheck_version:
            self.recheck_version = False
            if not still_fits(db):
                self.stopping, self.exit_code = True, EXIT_DATABASE_NEWER
        if self.stopping:
            self.handlers.hand_back(everything=self.aborting)
        self.stops.look(db)
        self.handlers.places.start_again()
        if self.handlers.hand_back_late():
            self.pace.waited()
        self.handlers.urgent = False
        reports = self.exchange.has_due(hurry=self.stopping)
        room = 0 if self.stopping else self._room(reports)
        lines = bool(self.lines) and (self.stopping or not self.lines.due_in())
        if reports or room or lines:
            self._exchange(db, reports or lines, room)
        idle = self.handlers.idle and not self.exchange.held()
        return idle and (self.stopping or (self.config.once and self.pace.nothing_available))

    def _exchange(self, db: Database, tells: bool, room: int) -> None:
        """Report and claim: in one call, or with bounds of queues in one for each of them."""
        queues = [job.queue_name for job in self.handlers.held()] if self.config.bounds else ()
        parts = shares(self.config, room, queues) if room else []
        if room and not parts:  # each bound is reached, until a handler ends
            self.pace.put_off(self.config.poll_interval)
            if not tells:
                return
        asked = claimed = reported = 0
        again_in = math.inf
        for share in parts or [NOTHING]:
            part = share._replace(most=min(share.most, room - claimed))
            if asked and not part.most:
                break
            sent = boottime()
            turn = self.exchange.work(db, part, hurry=self.stopping)
            if not turn:  # another session has locked one of the jobs: the next turn goes on
                return
            asked, claimed, reported = asked + part.most, claimed + len(turn.jobs), reported + turn.reported
            if self.batches and turn.jobs:
                self.pace.meet({self.batches.get(row[2]) for row in turn.jobs})
            if part.most:
                self.pace.weigh([row[3] for row in turn.jobs])
                self.handlers.begin(turn.jobs, self.pace.until(sent, boottime()))
            if len(turn.jobs) < part.most:
                again_in = min(again_in, turn.again_in)
        if asked:
            if self.measures:
                self.measures.claimed(claimed)
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

    # -- between turns -----------------------------------------------------------------------------

    def _wait(self) -> None:
        """Wait for a handler's end, a notification, an order, or the time of the next claim."""
        handlers, pace = self.handlers, self.pace
        soon = [handlers.waiting.late_in(), handlers.places.again_in(), self.exchange.due_in()]
        if not self.stopping and handlers.load < self.config.concurrency:
            soon.append(max(pace.patience(), handlers.closed_for()))
        if handlers.running:
            soon += [self.stops.due_in(), self.lines.due_in()]
        self._sleep(min(soon), wake_at=sys.maxsize)
        if handlers.outcomes and len(handlers.ready) > pace.prefetch // 2:
            # Other jobs are ready, and reporting many outcomes costs little more than one.
            self._sleep(LINGER, wake_at=pace.prefetch // 2)
        elif handlers.outcomes and pace.nothing_available and handlers.load < self.config.concurrency:
            # Reporting alone costs a turn. The next job will soon take one, too, or the next claim is due.
            if not (handlers.urgent or handlers.isolated or self.stopping or self.config.once):
                self._sleep(min(LINGER, pace.patience()), wake_at=IF_URGENT)

    def _sleep(self, timeout: float, wake_at: int) -> None:
        handlers = self.handlers
        handlers.wake_at = wake_at
        if handlers.outcomes and (
            len(handlers.ready) <= wake_at or (wake_at == IF_URGENT and handlers.urgent)
        ):
            timeout = 0.0
        self.link.wait(None if timeout == math.inf else timeout)
        handlers.wake_at = NEVER

    def _read_orders(self) -> None:
        with contextlib.suppress(Exception):  # a handler may have closed it: the process ends without orders
            for line in self.orders:
                if line.strip() == "stop":
                    self.stopping = True
                    if not self.handlers.tasks:  # modules are being imported: no job is held
                        leaving.leave(0, hooks=False)
                elif line.strip() == "abort":
                    self.stopping = self.aborting = True
                self.link.wake()
                log.debug("told to %s", line.strip())
        os._exit(1)  # the parent is dead

    def _needs_no_answer(self) -> bool:
        """Called while the database is waited for."""
        if not (self.stopping and self._holds_nothing):
            return False
        if self.link.db is None:
            leaving.leave(self.exit_code, hooks=False)
        return True

    @property
    def _holds_nothing(self) -> bool:
        """No handler runs, and nothing is to be reported: jobs that have not begun the parent hands back."""
        ended = [one for one in self.exchange.held() if one.do != "release"]
        return not (self.handlers.running or self.handlers.lost or ended)

    # -- what the database hears and says ----------------------------------------------------------

    def _load(self) -> None:
        if self.config.metrics:
            from .metrics import Measures

            self.measures = Measures()
        known = self.handlers.tasks = self.handlers.places.context.run(load, self.config)
        self.exchange.task_names = self.config.only_tasks or sorted(known)
        self.batches = {name: size for name, task in known.items() if (size := task.batch)}
        self.pace.meet({self.batches.get(name) for name in self.exchange.task_names})

    def _announce(self, db: Database) -> None:
        """Called with each new connection."""
        # Each process declares schedules once, so the last process to start determines them.
        announce(db, self.config, self.worker_id, self.handlers.tasks, not self.declared)
        if not self.declared:
            self.slots.know(self.exchange.task_names, max(self.batches.values(), default=1))
            self.slots.answered()
            signals.wake_parent()  # it logs the start, before the first job logs anything
        self.declared = True
        if is_pooled(db.conn):
            log.warning("%s", POOLED)
        else:
            db.listen()
        self.stops.ask(db, lost_answer=True)
        self.connections.meet(server_of(db.conn), is_pooled(db.conn))
        self.pace.nothing_available = False

    def _hear(self, word: str) -> None:
        """A notification came."""
        if word == "migrate":
            self.recheck_version = True
        elif word == "cancel":
            self.stops.hear()
        elif not word:
            self.pace.hear()
