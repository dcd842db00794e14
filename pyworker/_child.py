"""The child: a process that claims jobs, runs their handlers and reports how they went.

    main thread     the turn: report what ended, claim what there is room for, in one round trip; wait; again
    handler threads run sync handlers, started as they are needed, at most `concurrency`
    loop thread     runs async handlers, started with the first one

A job's way: _claim → self.ready → _start → _run_sync | _run_async → _ended → self.outcomes → _turn.

The parent gives the order to start (one line of JSON on stdin, so that no password is seen in a process list), and later "stop" or
"abort". When stdin ends the parent is dead, and so is this process at once: two generations must not run side by side.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import logging
import os
import random
import selectors
import signal
import sys
import threading
import time
from collections import deque
from contextvars import copy_context
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import psycopg

from . import _logging, _middleware, _migrate, _sql, tasks
from ._config import EXIT_CANNOT_START, EXIT_DATABASE_NEWER, EXIT_DATABASE_OLDER, EXIT_REGISTER_AGAIN, RunConfig
from ._connect import LOST, Backoff, Watch, connect, is_pooled
from ._connections import Connections
from ._slots import Slots
from ._turn import KINDS, Claimed, Outcomes, failure_of, outcome_of
from .errors import ClaimLost, InvalidArgument, NotFound, SchemaVersionError, TaskError, sqlstate_of, translated
from .job import AsyncJob, Job

if TYPE_CHECKING:
    from ._metrics import Measures

log = logging.getLogger("pyworker.worker")

MAX_PREFETCH = 500
TRY_AGAIN = ("40001", "40P01", "55P03", "57014")  # serialization failure, deadlock, lock or statement timeout
MARK_LASTS = 2.0  # seconds: claim_jobs promises 2.5, see there
LINGER = 0.01  # seconds that outcomes may wait for company while there is other work
SOON = 0.005  # seconds that a worker with nothing else to claim gives quick handlers to end
AWAKE = -1
ASK = 10.0  # seconds between questions whether running jobs were called off; a notification comes sooner
RECONCILE = 5.0  # seconds from a lost connection's first comparison with the database to the next one
CANCEL_GRACE = 5.0  # seconds that a handler has to stop when it is called off, before its process is ended


def main() -> NoReturn:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: even a frozen child must not outlive its parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    # Programs that handlers start inherit stdin: they get an empty one, our orders come by a copy that is not inherited.
    orders = os.fdopen(os.dup(0))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    order = json.loads(orders.readline() or "null")
    if order is None:
        os._exit(0)
    config = RunConfig(**order["config"])
    _logging.set_up(config.log_format, config.log_level)
    code = 1
    try:
        code = Child(config, order["worker_id"], orders, Slots(order["slots"], config.concurrency)).run()
    except TaskError as error:
        log.error("%s", error, exc_info=error.__cause__)
        code = EXIT_CANNOT_START
    except SchemaVersionError as error:
        log.error("%s. %s", error, error.hint or "")
        code = EXIT_DATABASE_NEWER if error.detail == "newer" else EXIT_DATABASE_OLDER
    except NotFound as error:
        log.warning("%s", error)
        code = EXIT_REGISTER_AGAIN
    except Exception:
        log.exception("the worker process failed")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # without waiting for handlers that were handed back


class Child:
    def __init__(self, config: RunConfig, worker_id: int, orders: TextIO, slots: Slots) -> None:
        self.config = config
        self.slots = slots
        self.free_slots = list(range(config.concurrency))
        self.timeouts: dict[str, float] = {}  # by task, in seconds
        self.worker_id = worker_id
        self.orders = orders
        self.declared = False  # what our code wants to be scheduled, once: the last to start has the say
        self.tasks: dict[str, tasks.Task[..., Any]] = {}
        self.context = copy_context()  # with what the modules of the tasks set; each handler runs in a copy of its own
        self.measures: Measures | None = None
        self.connections = Connections(config)
        self.db: _sql.Database | None = None
        self.backoff = Backoff(log)
        self.watch = Watch(config.dsn, slots.turned)
        # Guarded by `lock`: what is claimed and not begun, and how many handlers are at work.
        self.lock = threading.Lock()
        self.ready: deque[Claimed] = deque()
        self.running: dict[int, Claimed] = {}
        self.left: dict[int, Claimed] = {}  # handed back at the end; kept, so that no handler is collected
        self.alone = False  # what runs may have ended a process before: nothing runs beside it
        self.threads = 0
        self.thread_jobs: SimpleQueue[Claimed] = SimpleQueue()
        self.loop: asyncio.AbstractEventLoop | None = None
        # Filled by handlers, emptied by the turn. deque.append is atomic.
        self.outcomes: deque[tuple[str, Any]] = deque()
        self.wake_at = AWAKE  # with how few jobs at hand the end of one wakes the turn
        self.wake_read, self.wake_write = os.pipe()
        os.set_blocking(self.wake_read, False)
        os.set_blocking(self.wake_write, False)
        # Orders
        self.stopping = self.aborting = False
        self.recheck_version = False
        self.ask_at = 0.0  # when to ask the database whether what runs was called off
        self.reconcile_in, self.reconcile_at = 0.0, 0.0
        self.exit_code = 0
        # How the turn paces itself
        self.dry = False  # the last claim came back short: nothing more to be had until something happens
        self.claim_at = 0.0  # … or until this time
        self.called = False  # since the last claim was sent
        self.prefetch = 0

    # -- orders from the parent -----------------------------------------------------------------------------------

    def _hear(self) -> None:
        for line in self.orders:
            if line.strip() == "stop":
                self.stopping = True
            elif line.strip() == "abort":
                self.stopping = self.aborting = True
            self._wake()
        os._exit(1)  # the parent is dead

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self.wake_write, b"x")

    # -- the turn -------------------------------------------------------------------------------------------------

    def run(self) -> int:
        threading.Thread(target=self._hear, daemon=True, name="orders").start()
        if self.config.metrics:
            from ._metrics import Measures

            self.measures = Measures()
        self.tasks = self.context.run(tasks.load, self.config.tasks)
        if unknown := [name for name in self.config.only_tasks if name not in self.tasks]:
            raise TaskError(f"--task {unknown[0]}: no such task (known: {', '.join(sorted(self.tasks))})")
        while True:
            self.slots.turned()
            try:
                if self.db is None:
                    self._connect()
                if self._turn():
                    return self.exit_code
                self.slots.answered()
                self.backoff.worked()
                self._wait()
            except LOST as error:
                self.backoff.failed(error)
                if self.db is not None:
                    self.db.conn.close()
                    self.db = None
                    self.reconcile_in = RECONCILE
                time.sleep(max(self.backoff.until - time.monotonic(), 0))

    def _connect(self) -> None:
        conn = connect(self.config.dsn)
        try:
            with self.watch.over(conn):
                self._introduce(_sql.Database(conn, self.config.schema))
        except psycopg.Error:
            conn.close()
            raise

    def _introduce(self, db: _sql.Database) -> None:
        db.check_version(_migrate.newest())
        for task in self.tasks.values():
            if task.options:
                try:
                    db.define_task(task.name, task.options)
                except InvalidArgument as error:
                    raise TaskError(f"{task!r}: {error}") from None
        if not self.declared:
            try:
                declared = db.declare_schedules(*tasks.schedules(self.config.tasks))
            except InvalidArgument as error:
                raise TaskError(str(error)) from None
            for row in declared:
                log.info("schedule %s: %s", row["name"], row["action"])
            self.declared = True
        self.timeouts = db.task_timeouts(list(self.tasks))
        only = {"queue_names": self.config.queues, "forbidden_flags": self.config.forbidden_flags}
        db.describe_worker(self.worker_id, {"task_identifiers": self._names(), **{k: v for k, v in only.items() if v}})
        self.connections.pooled = is_pooled(db.conn)
        if self.connections.pooled:
            log.warning(
                "there is a transaction pooler in between: no notifications come through it, jobs are found by polling"
            )
        else:
            db.conn.add_notify_handler(lambda note: self._heard(note.payload))
            db.listen()
        self._reconcile(db)
        self.db = db
        self.dry = False

    def _reconcile(self, db: _sql.Database) -> None:
        """Drop what is no longer ours, hand back what we were given without hearing of it."""
        with self.lock:
            unreported = [
                (value["id"], value["run"]) if kind == "failed" else value[:2] for kind, value in self.outcomes
            ]
            known = [(job.id, job.run) for job in (*self.ready, *self.running.values())] + unreported
        held = set(db.reconcile(self.worker_id, known))
        with self.lock:
            self.ready = deque(job for job in self.ready if job.id in held)
        # A claim that was under way when the connection was lost may get there after this: ask again, ever more rarely.
        self.reconcile_at = time.monotonic() + self.reconcile_in
        self.reconcile_in = self.reconcile_in * 2 if self.reconcile_in < RECONCILE * 64 else 0.0

    def _heard(self, word: str) -> None:
        if word == "migrate":
            self.recheck_version = True
        elif word == "cancel":
            self.ask_at = 0.0
        elif not word:
            self.dry, self.called = False, True

    def _turn(self) -> bool:
        """One round trip, if there is a reason for one; true when this process has done its duty."""
        assert self.db is not None  # noqa: S101
        with self.watch.over(self.db.conn):
            return self._take_turn(self.db)

    def _take_turn(self, db: _sql.Database) -> bool:
        if self.recheck_version:
            self.recheck_version = False
            try:
                db.check_version(_migrate.newest())
            except SchemaVersionError as error:
                log.error("%s. %s", error, error.hint or "")
                self.stopping, self.exit_code = True, EXIT_DATABASE_NEWER
        if self.stopping:
            self._hand_back()
        if time.monotonic() >= self.ask_at:
            self.ask_at = time.monotonic() + ASK
            self._ask_for_cancels()
        if self.reconcile_in and time.monotonic() >= self.reconcile_at:
            self._reconcile(db)
        outcomes = self._collect()
        room = 0 if self.stopping else self._room(bool(outcomes))
        if not outcomes and not room:
            return self.stopping and self._empty_handed()
        claimed = self._exchange(outcomes, room)
        if room and claimed is not None:
            with self.lock:
                self.ready.extend(Claimed(*row) for row in claimed)
                begun = self._start()
            self._dispatch(begun)
            self._pace(room, len(claimed), len(outcomes))
            if len(claimed) < room:
                if claimed:  # what ends at once is reported with another claim: no need to know how long to sleep
                    self._sleep(SOON, wake_at=sys.maxsize)
                self.dry = not (self.outcomes or self.called)
                if self.stopping or self.recheck_version:  # it woke us for the next turn
                    self._wake()
                elif self.dry:
                    self._sleep_until(db.seconds_until_due())
        return (self.stopping or (self.config.once and self.dry)) and self._empty_handed()

    def _empty_handed(self) -> bool:
        with self.lock:  # an end goes from `running` to `outcomes`
            return not (self.ready or self.running or self.outcomes)

    def _collect(self) -> Outcomes:
        outcomes = Outcomes([], [], [], [])
        add = {kind: getattr(outcomes, kind).append for kind in KINDS}
        while self.outcomes:
            kind, value = self.outcomes.popleft()
            add[kind](value)
        return outcomes

    def _room(self, reporting: bool) -> int:
        """How many jobs to claim now. With a report always: an end may have freed a queue, and the round trip is paid for."""
        if self.dry and not reporting and time.monotonic() < self.claim_at:
            return 0
        if self.slots.expired():  # not to begin it at once means not to claim it; our parent will say more soon
            self.dry, self.claim_at = True, time.monotonic() + 1
            return 0
        in_hand = len(self.ready) + len(self.running)
        room = self.config.concurrency + self.prefetch - in_hand
        # Rather one large claim than many small ones, unless a handler would be idle.
        return room if in_hand < self.config.concurrency or room >= self.prefetch // 2 else 0

    def _exchange(self, outcomes: Outcomes, room: int) -> list[tuple[Any, ...]] | None:
        """Report and claim, in one round trip. None: the claim was lost with a report."""
        assert self.db is not None  # noqa: S101
        db = self.db
        self.called = False
        try:
            reports = outcomes.reports(db)
            replies: list[psycopg.Cursor[Any]] = []
            with db.conn.pipeline() if reports else contextlib.nullcontext() as pipeline:
                for call in reports:
                    # Each kind in a transaction of its own: each takes its jobs in the order of their ids, all together would not.
                    if replies and pipeline:
                        pipeline.sync()
                    replies.append(db.send(call))
                claim = db.send(self._claim(room, not reports)) if room else None
            for reply in replies:
                reply.fetchall()
            rows = claim.fetchall() if claim else []
            if self.measures and claim:
                self.measures.claimed(len(rows))
            return rows
        except psycopg.Error as error:
            if not sqlstate_of(error) or (isinstance(error, LOST) and sqlstate_of(error) not in TRY_AGAIN):
                # Did it commit? Say everything again: what was accepted is left out the second time.
                self._take_back(outcomes)
                raise
            with translated():
                if sqlstate_of(error) in ("PW004",):
                    raise
            log.warning("a report was refused, going on one by one: %s", str(error).strip().split("\n")[0])
            self._report_one_by_one(outcomes)
            return None

    def _names(self) -> list[str]:
        return self.config.only_tasks or sorted(self.tasks)

    def _claim(self, room: int, alone: bool) -> _sql.Call:
        assert self.db is not None  # noqa: S101
        return self.db.claim_call(
            self.worker_id, room, self._names(), self.config.queues or None, self.config.forbidden_flags or None, alone
        )

    def _report_one_by_one(self, outcomes: Outcomes) -> None:
        """After a report was refused as a whole: the refusal is the matter of one job, the others are to be heard."""
        assert self.db is not None  # noqa: S101
        for kind in KINDS:
            for item in getattr(outcomes, kind):
                one = Outcomes([], [], [], [])
                getattr(one, kind).append(item)
                try:
                    self.db.send(one.reports(self.db)[0]).fetchall()
                except psycopg.Error as error:
                    if isinstance(error, LOST):
                        self._take_back(one)
                        continue
                    with contextlib.suppress(ClaimLost), translated():
                        self._reporting_failed(kind, item, error)

    def _reporting_failed(self, kind: str, item: Any, error: psycopg.Error) -> None:
        assert self.db is not None  # noqa: S101
        if sqlstate_of(error) == "PW002":
            return  # the claim was lost: there is nothing to report any more
        job_id, run = (item["id"], item["run"]) if kind == "failed" else item[:2]
        log.error("job %s: its end could not be stored: %s", job_id, str(error).strip().split("\n")[0])
        failure = {"id": job_id, "run": run, "error": f"the outcome ({kind}) could not be stored: {error}"}
        self.db.send(self.db.fail_call([failure])).fetchall()

    def _take_back(self, outcomes: Outcomes) -> None:
        for kind in KINDS:
            self.outcomes.extend((kind, item) for item in getattr(outcomes, kind))

    def _sleep_until(self, due: float | None) -> None:
        # A notification ends the sleep early; the poll is for when none can come. It renews the mark by which those who add
        # jobs know that somebody waits to be notified: only on that condition may a worker sleep at all.
        poll = min(self.config.poll_interval, MARK_LASTS) * random.uniform(0.8, 1.2)  # noqa: S311
        if due is not None:
            poll = min(poll, max(due, 0.001))
        # A job added after the claim looked has its notification arrive with the claim's answer.
        self.dry = not self.called
        self.claim_at = time.monotonic() + poll

    def _pace(self, asked: int, got: int, reported: int) -> None:
        """Prefetch as much as was just used up in one turn, so that slow jobs are left to others and quick ones not waited for."""
        if got < asked:
            self.prefetch //= 2
        elif reported >= self.prefetch // 2:
            self.prefetch = min(MAX_PREFETCH, max(2 * self.prefetch, 2 * reported))
        else:
            self.prefetch = max(2 * reported, self.prefetch // 2)

    def _hand_back(self) -> None:
        """Stopping: what was not begun goes back at once; on abort also what is running, whose handlers end with this process."""
        with self.lock:
            for job in self.ready:
                self.outcomes.append(("released", (job.id, job.run)))
            self.ready.clear()
            if self.aborting:
                for job in self.running.values():
                    self.outcomes.append(("released", (job.id, job.run)))
                self.left |= self.running
                self.running.clear()

    def _wait(self) -> None:
        """Until a handler has ended, the database or the parent says something, or it is time to claim."""
        timeout: float | None = None
        if not self.stopping and self._room_when_due():
            timeout = max(self.claim_at - time.monotonic(), 0) if self.dry else 0.0
        if self.running:
            until = max(self.ask_at - time.monotonic(), 0)
            timeout = until if timeout is None else min(timeout, until)
        self._sleep(timeout, wake_at=sys.maxsize)
        if self.outcomes and len(self.ready) > self.prefetch // 2:
            # There is more to do, and reporting many costs little more than reporting one.
            self._sleep(LINGER, wake_at=self.prefetch // 2)

    def _sleep(self, timeout: float | None, wake_at: int) -> None:
        assert self.db is not None  # noqa: S101
        conn = self.db.conn
        self.wake_at = wake_at
        if self.outcomes and len(self.ready) <= wake_at:
            timeout = 0.0
        with selectors.DefaultSelector() as selector:
            selector.register(self.wake_read, selectors.EVENT_READ)
            selector.register(conn.fileno(), selectors.EVENT_READ)
            events = selector.select(timeout)
        self.wake_at = AWAKE
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_read, 4096)
        if any(key.fd != self.wake_read for key, _ in events):
            conn.pgconn.consume_input()
            while note := conn.pgconn.notifies():
                self._heard(note.extra.decode())
            if conn.pgconn.status != psycopg.pq.ConnStatus.OK:
                raise psycopg.OperationalError("the server closed the connection")

    def _room_when_due(self) -> bool:
        return len(self.ready) + len(self.running) < self.config.concurrency

    def _ask_for_cancels(self) -> None:
        assert self.db is not None  # noqa: S101
        with self.lock:
            mine = [*self.running.values(), *self.ready]
        if not mine:
            return
        gone = set(self.db.called_off([(job.id, job.run) for job in mine]))
        with self.lock:
            for job in [job for job in self.ready if job.id in gone]:
                self.ready.remove(job)
                self.outcomes.append(("released", (job.id, job.run)))  # ends cancelled there, if it is still ours
            for job in [job for job in self.running.values() if job.id in gone and not job.called_off]:
                job.called_off = True
                if isinstance(job.handler, Job):
                    job.handler._called_off = True  # pyright: ignore[reportPrivateUsage] - its reader is the handler
                elif job.handler is not None:
                    self._event_loop().call_soon_threadsafe(job.handler.cancel)
                self.slots.set(job.slot, job.id, job.run, time.monotonic() + CANCEL_GRACE)

    # -- handlers -------------------------------------------------------------------------------------------------

    def _start(self) -> list[Claimed]:
        """Give free slots to ready jobs; called with the lock held. The caller, no longer holding it, is to dispatch them."""
        begun: list[Claimed] = []
        if self.ready and self.slots.expired():  # we stood still; what is still ours goes back
            self.outcomes.extend(("released", (job.id, job.run)) for job in self.ready)
            self.ready.clear()
        while self.ready and len(self.running) < self.config.concurrency and not self.alone:
            if self.ready[0].crashes and self.running:
                break
            job = self.ready.popleft()
            self.alone = job.crashes > 0
            self.running[job.id] = job
            job.slot = self.free_slots.pop()
            limit = self.timeouts.get(job.task_identifier)
            self.slots.set(job.slot, job.id, job.run, time.monotonic() + limit if limit else 0.0)
            begun.append(job)
        return begun

    def _dispatch(self, begun: list[Claimed], in_thread: bool = False) -> Claimed | None:
        """Each to where its handler runs. A handler thread gets one back, to go on with: a hand-over costs more than many a handler."""
        mine: Claimed | None = None
        to_loop: list[Claimed] = []
        for job in begun:
            task = self.tasks.get(job.task_identifier)
            if task is not None and task.is_async:
                to_loop.append(job)
            elif in_thread and mine is None:
                mine = job
            else:
                self.thread_jobs.put(job)
                if self.threads < self.config.concurrency:
                    self.threads += 1
                    threading.Thread(target=self._handle, daemon=True, name=f"handler-{self.threads}").start()
        if to_loop:
            loop = self._event_loop()
            if asyncio._get_running_loop() is loop:
                self._spawn(to_loop)
            else:
                loop.call_soon_threadsafe(self._spawn, to_loop)
        return mine

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        if self.loop is None:
            new_event_loop = asyncio.new_event_loop
            if self.config.uvloop:
                with contextlib.suppress(ImportError):
                    from uvloop import new_event_loop
            self.loop = new_event_loop()
            threading.Thread(target=self.loop.run_forever, daemon=True, name="event-loop").start()
        return self.loop

    def _handle(self) -> None:
        while True:
            job = self.thread_jobs.get()
            while job:
                job = self._dispatch(self._ended(job, *self.context.copy().run(self._run_sync, job)), in_thread=True)

    def _spawn(self, jobs: list[Claimed]) -> None:
        assert self.loop is not None  # noqa: S101
        for job in jobs:
            # `running` keeps it from being collected; the loop itself has only weak references.
            job.handler = self.loop.create_task(self._run_async(job), context=self.context.copy())

    def _run_sync(self, job: Claimed) -> tuple[str, Any]:
        try:
            job.handler = made = job.made(Job, self.connections)
            made._called_off = job.called_off  # pyright: ignore[reportPrivateUsage]
            return self._answer(job, made)
        except BaseException as error:
            return self._failure(job, error)

    async def _run_async(self, job: Claimed) -> None:
        self._dispatch(self._ended(job, *await self._attempt(job)))

    async def _attempt(self, job: Claimed) -> tuple[str, Any]:
        limit, scope = None, None
        try:
            made = job.made(AsyncJob, self.connections)
            if job.called_off:
                raise asyncio.CancelledError
            limit = self.timeouts.get(job.task_identifier)
            if not limit:
                return await self._answer_async(job, made)
            # The parent has more patience with what can be cancelled.
            self.slots.set(job.slot, job.id, job.run, time.monotonic() + limit + CANCEL_GRACE)
            async with asyncio.timeout(limit) as scope:
                return await self._answer_async(job, made)
        except BaseException as error:
            if isinstance(error, TimeoutError) and scope is not None and scope.expired():
                error = TimeoutError(f"timed out after {limit:g} s")
            return self._failure(job, error)

    def _answer(self, job: Claimed, made: Job) -> tuple[str, Any]:
        task = self.tasks[job.task_identifier]
        if job.delivery == "at_most_once" and not self.connections.start_job(job.id, job.run):
            return "released", (job.id, job.run)
        if not _middleware.registered:
            return self._outcome(job, task, task.invoke(made))
        with _middleware.Around(made) as around:
            around.result = task.invoke(made)
            return self._outcome(job, task, around.result)

    async def _answer_async(self, job: Claimed, made: AsyncJob) -> tuple[str, Any]:
        task = self.tasks[job.task_identifier]
        if job.delivery == "at_most_once" and not await self.connections.start_job_async(job.id, job.run):
            return "released", (job.id, job.run)
        if not _middleware.registered:
            return self._outcome(job, task, await task.invoke(made))
        with _middleware.Around(made) as around:
            around.result = await task.invoke(made)
            return self._outcome(job, task, around.result)

    def _outcome(self, job: Claimed, task: tasks.Task[..., Any], value: Any) -> tuple[str, Any]:
        return outcome_of(job, task, value)

    def _failure(self, job: Claimed, error: BaseException) -> tuple[str, Any]:
        return failure_of(job, error)

    def _ended(self, job: Claimed, kind: str, value: Any) -> list[Claimed]:
        """Note how it went; what may begin in its place is returned, to be dispatched."""
        with self.lock:
            self.slots.clear(job.slot)
            self.free_slots.append(job.slot)
            self.alone = False
            if self.running.pop(job.id, None) is None:
                return []  # handed back meanwhile
            self.outcomes.append((kind, value))
            begun = self._start()
        if len(self.ready) <= self.wake_at:
            self.wake_at = AWAKE  # once is enough
            self._wake()
        return begun


if __name__ == "__main__":
    main()
