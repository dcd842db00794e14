"""Real workers: `pyworker run handlers` in processes of their own, and a look at what becomes of
their jobs."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import namedtuple_row

from tests.support import DEADLINE, PYTHONPATH
from tests.support.databases import copy_of

GATES = 77  # the class of the advisory locks at which handlers wait

# What the handlers tell of themselves. The trigger's sequence keeps the order.
TABLE = """
    create table if not exists public.seen (
        at bigserial primary key, job_id bigint, run bigint, task text, attempts integer, pid integer,
            told json);
    create table if not exists public.runs (job_id bigint);
    truncate public.seen, public.runs restart identity"""


@contextmanager
def ends_of(pids: list[int]) -> Iterator[None]:
    """After the block: wait until all these processes are gone."""
    handles = {}
    for pid in pids:
        with suppress(ProcessLookupError):
            handles[pid] = os.pidfd_open(pid)  # before the deed: the number may be used again after it
    try:
        yield
        for pid, handle in handles.items():
            assert select.select([handle], [], [], DEADLINE)[0], (
                f"a process outlived its time\n{state_of(pid)}"
            )
    finally:
        for handle in handles.values():
            os.close(handle)


def state_of(pid: int) -> str:
    """What its threads are doing, as far as the kernel tells."""
    found = []
    for pattern in ("cmdline", "status", "task/*/wchan", "task/*/stack"):
        for file in Path("/proc", str(pid)).glob(pattern):
            with suppress(OSError):
                found.append(f"{file}: {file.read_text()}")
    return "\n".join(found)


class Queue:
    """One database with pyworker in it, and the workers that a test starts there."""

    def __init__(self, dsn: str, tmp_path: Path, schema: str = "pyworker") -> None:
        self.dsn, self.schema = dsn, schema
        self.conn = psycopg.connect(dsn, autocommit=True, row_factory=namedtuple_row)
        self.conn.execute(TABLE)
        self._directory = tmp_path
        self._gate = psycopg.connect(dsn, autocommit=True)
        self.workers: list[Worker] = []
        self._adds_up, self._waited = False, 0.0

    def rows(self, sql: str, *params: Any) -> list[Any]:
        cursor = self.conn.execute(sql.replace("pyworker.", f'"{self.schema}".'), params)  # type: ignore[arg-type]
        result = cursor.pgresult  # not cursor.description: `select from …` gives rows without a column
        return cursor.fetchall() if result and result.status == psycopg.pq.ExecStatus.TUPLES_OK else []

    def value(self, sql: str, *params: Any) -> Any:
        return self.rows(sql, *params)[0][0]

    def add(self, identifier: str, payload: Any = None, **options: Any) -> int:
        """Add a job as any SQL client would; returns its id."""
        named = "".join(f", {name} => %s" for name in options)
        sql = f"select (pyworker.add_job(%s, %s::json{named})).id"
        return self.value(sql, identifier, json.dumps({} if payload is None else payload), *options.values())

    def job(self, job_id: int) -> Any:
        return self.rows("select * from pyworker.get_job(%s)", job_id)[0]

    def states(self, *job_ids: int) -> list[str]:
        return [self.job(job_id).state for job_id in job_ids]

    def seen(self, *job_ids: int) -> list[Any]:
        """What handlers told, in order: of these jobs, or of all."""
        return self.rows(
            "select * from public.seen where %s = '{}' or job_id = any (%s) order by at",
            list(job_ids),
            list(job_ids),
        )

    def runs(self, *job_ids: int) -> list[int]:
        """The last run of each: to be compared, as a run is the time of its claim."""
        return [self.job(job_id).run for job_id in job_ids]

    def begun(self, job_id: int) -> list[tuple[int, int]]:
        """Each time that the job's handler told of itself: in which of its runs (1 is the first),
        and attempts."""
        seen = self.seen(job_id)
        runs = sorted({one.run for one in seen})
        assert runs[-1:] == self.runs(job_id), "it was claimed again, and no handler told of it"
        return [(runs.index(one.run) + 1, one.attempts) for one in seen]

    def until(self, sql: str, *params: Any) -> Any:
        """Ask until the answer is true, and return it; give up at the deadline."""
        answer: Any = None

        def ask() -> bool:
            nonlocal answer
            rows = self.rows(sql, *params)
            answer = rows[0][0] if rows else None
            return bool(answer)

        self.until_so(f"{sql} {params}", ask)
        return answer

    def until_so(self, what: str, condition: Callable[[], bool]) -> None:
        """The same for what the database cannot tell."""
        waited = 0.0
        while not condition():
            # The longer it takes, the longer a pause: many tests wait at once.
            pause = min(max(0.01, waited / 5), 0.1)
            waited += pause
            assert self._waited + waited < DEADLINE, f"never came true: {what}\n{self.report()}"
            self.conn.execute("select pg_sleep(%s)", [pause])
        if self._adds_up:
            self._waited += waited

    @contextmanager
    def in_one_deadline(self) -> Iterator[None]:
        """All that is awaited in the block has to come true within one deadline: what polling
        would take longer for."""
        self._adds_up = True
        yield
        self._adds_up, self._waited = False, 0.0

    def until_state(self, state: str, *job_ids: int) -> None:
        self.until(
            "select bool_and((pyworker.get_job(i)).state = %s) from unnest(%s) i", state, list(job_ids)
        )

    def close_gate(self, *numbers: int) -> None:
        """Handlers with {"gate": number} will wait …"""
        for number in numbers:
            self._gate.execute("select pg_advisory_lock(%s, %s)", [GATES, number])

    def open_gate(self, *numbers: int) -> None:
        """… until now."""
        for number in numbers:
            self._gate.execute("select pg_advisory_unlock(%s, %s)", [GATES, number])

    def until_waiting(self, number: int, handlers: int = 1) -> None:
        """Until so many handlers stand at this gate."""
        waiting = "locktype = 'advisory' and not granted and classid = %s and objid = %s"
        here = "database = (select oid from pg_database where datname = current_database())"
        self.until(f"select count(*) >= %s from pg_locks where {waiting} and {here}", handlers, GATES, number)

    ends_of = staticmethod(ends_of)

    @staticmethod
    def ps(column: str, parent: int) -> list[str]:
        """pid or state of the children of a process; bare machines have no ps."""
        found: list[str] = []
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                text = status.read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            state, ppid = text.rpartition(")")[2].split()[:2]
            if int(ppid) == parent:
                found.append(status.parent.name if column == "pid" else state)
        return found

    def start(
        self, *options: str, modules: str = "handlers", within: Sequence[str] = (), **environment: str
    ) -> Worker:
        log = self._directory / f"worker-{len(self.workers)}.log"
        command = [*within, sys.executable, "-m", "pyworker", "run", *modules.split(), *options]
        self.workers.append(Worker(self, log, command, environment))
        return self.workers[-1]

    def run_once(self, *options: str, modules: str = "handlers", **environment: str) -> Worker:
        """Run what there is to run, and expect no trouble."""
        worker = self.start("--once", *options, modules=modules, **environment)
        assert worker.wait() == 0, worker.log
        return worker

    def report(self) -> str:
        jobs = self.rows(
            "select id, task_identifier, state, attempts, run, locked_by, last_error from pyworker.jobs "
            "order by id limit 20"
        )
        return "\n".join([*map(str, jobs), *(worker.log for worker in self.workers)])

    def close(self) -> None:
        self._gate.close()
        for worker in self.workers:
            worker.end()
        self.conn.close()


class Worker:
    """`pyworker run` as a process of its own, its log in a file."""

    def __init__(self, queue: Queue, log: Path, command: list[str], environment: dict[str, str]) -> None:
        self._log = log
        env = {
            name: value for name, value in os.environ.items() if not name.startswith(("PG", "PYWORKER_RUN"))
        }
        env |= {
            "DATABASE_URL": queue.dsn,
            "PYWORKER_SCHEMA": queue.schema,
            "PYTHONPATH": PYTHONPATH,
            "PYWORKER_RUN_NO_UVLOOP": "1",  # as without it; tests that want it say so
        } | environment
        self._started = queue.value("select clock_timestamp()")
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, cwd=log.parent, env=env, stderr=output, stdin=subprocess.DEVNULL
            )
        self._queue = queue

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return self._log.read_text()

    def until_ready(self, processes: int = 1) -> Worker:
        """Until its children have looked for jobs and found none: from now on a new job is a surprise.

        A session of a worker that a test has killed may be there for a while yet."""
        idle = (
            "state = 'idle' and query ~ '[.]work[(]' and datname = current_database() and backend_start > %s"
        )
        self._queue.until(
            f"select count(*) >= %s from pg_stat_activity where {idle}", processes, self._started
        )
        return self

    def until_log(self, word: str) -> None:
        """Until the log has this word."""
        self._queue.until_so(f"{word!r} is in the log", lambda: word in self.log)

    def children(self) -> list[int]:
        return [int(pid) for pid in self._queue.ps("pid", self.pid)]

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        try:
            return self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker did not end\n{self._queue.report()}") from None

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        self.signal()
        return self.wait()

    def end(self) -> None:
        if self.process.poll() is None:
            children = self.children()
            self.process.kill()
            self.process.wait()
            with ends_of(children):
                pass


@contextmanager
def one_worker(
    template: Any, name: str, directory: Path, *options: str, modules: str = "handlers", **environment: str
) -> Iterator[Queue]:
    """A database of this name with one worker that is there until the block ends."""
    with copy_of(template, name) as dsn:
        queue = Queue(dsn, directory)
        try:
            worker = queue.start(*options, modules=modules, **environment)
            queue.until("select count(*) > 0 from pyworker.live_workers")  # it hears signals from now on
            yield queue
            assert worker.stop() == 0
        finally:
            queue.close()
