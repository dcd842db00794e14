"""A PostgreSQL, a fresh database for every measurement, and the contenders' programs on it."""

from __future__ import annotations

import json
import os
import select
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
from contenders import CONTENDERS, HERE, Contender, command
from measure import Reading, cpu, postmaster_of

from pyworker._dev.postgres import find_bindir, temporary_server

SETTINGS = dict(
    fsync="on",
    synchronous_commit="on",
    full_page_writes="on",
    wal_level="replica",
    autovacuum="on",
    jit="on",
    shared_buffers="1GB",
    max_wal_size="8GB",
    checkpoint_timeout="15min",
    max_connections="200",
    track_activities="on",
)
SHOWN = ("server_version", *SETTINGS, "checkpoint_completion_target", "autovacuum_naptime")
PATIENCE = 1200.0  # seconds that a contender may take for anything


class Program:
    """A contender's program. It reads verbs and answers each."""

    def __init__(self, argv: list[str], dsn: str, trail: Path, log: Path) -> None:
        environment = {
            **os.environ,
            "DATABASE_URL": dsn,
            "BENCH_TRAIL": str(trail),
            "PYTHONPATH": str(HERE.parent),
        }
        with log.open("a") as errors:
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
                start_new_session=True,
            )
        self.name, self.log = Path(argv[-1]).name, log
        self._answer("start")

    def ask(self, verb: str, *arguments: Any) -> Any:
        self.process.stdin.write(json.dumps([verb, *arguments]) + "\n")
        self.process.stdin.flush()
        return self._answer(verb)

    def _answer(self, verb: str) -> Any:
        if not select.select([self.process.stdout], [], [], PATIENCE)[0]:
            raise RuntimeError(f"{self.name} {verb}: no answer for {PATIENCE:.0f} s; see {self.log}")
        line = self.process.stdout.readline()
        answer = json.loads(line) if line else {"error": f"it ended; see {self.log}"}
        if "error" in answer:
            raise RuntimeError(f"{self.name} {verb}: {answer['error']}")
        return answer["ok"]

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Site:
    """A contender with a database of its own."""

    def __init__(self, stage: Stage, contender: Contender, dsn: str, conn: psycopg.Connection[Any]) -> None:
        self.stage, self.contender, self.dsn, self.conn = stage, contender, dsn, conn
        self.programs: list[Program] = []
        self.trail = stage.out / "trail.txt"
        self.trail.write_text("")
        self.floor = 0

    def start(self) -> Program:
        log = self.stage.out / f"{self.contender.name.split(',')[0]}.log"
        self.programs.append(Program(command(self.contender), self.dsn, self.trail, log))
        return self.programs[-1]

    def fill(self, jobs: int, task: str = "noop") -> None:
        """In the caller's transaction, if there is one."""
        chunk = self.contender.chunk
        for start in range(0, jobs, chunk):
            self.conn.execute(self.contender.fill, {"jobs": min(chunk, jobs - start), "task": task})

    def wait_drained(self) -> None:
        """Check every 50 ms, or every 20 times as long as a check takes."""
        began = time.monotonic()
        while True:
            asked = time.monotonic()
            if not self.conn.execute(self.contender.left, {"floor": self.floor}).fetchone():
                return
            if asked - began > PATIENCE:
                late = f"jobs are left after {PATIENCE:.0f} s; see its log in {self.stage.out}"
                raise RuntimeError(f"{self.contender.name}: {late}")
            time.sleep(max(0.05, 20 * (time.monotonic() - asked)))

    def raise_floor(self) -> None:
        """The jobs that are there now do not count as left."""
        if self.contender.newest:
            self.floor = self.conn.execute(self.contender.newest).fetchone()[0]

    def workers(self, count: int = 1, *options: Any) -> None:
        """Start workers on the empty queue, and let them do a few jobs."""
        for _ in range(count):
            self.start().ask("work", self.contender.concurrency, *options)
        self.fill(200)
        self.wait_drained()
        self.trail.write_text("")  # handlers hold it open

    def end(self) -> None:
        for program in self.programs:
            program.end()
        self.programs.clear()

    def read(self) -> Reading:
        postmaster = self.stage.postmaster
        wal = self.conn.execute("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()[0]
        return Reading(
            client=sum(cpu(program.process.pid) for program in self.programs),
            server=cpu(postmaster, without=self.conn.info.backend_pid) if postmaster else float("nan"),
            wal=int(wal),
        )

    @contextmanager
    def measured(self, jobs: int) -> Iterator[dict[str, float]]:
        """Fill in what so many jobs cost, or as many as the block says in `n`: jobs/s, CPU seconds per 1,000
        jobs, bytes of WAL per job."""
        found: dict[str, float] = {}
        before, began = self.read(), time.perf_counter()
        yield found
        seconds = time.perf_counter() - began
        used = self.read() - before
        jobs = int(found.get("n", jobs))
        client, server = used.client + found.pop("client_s", 0.0), used.server
        found |= {
            "jobs_s": jobs / seconds,
            "client": client / jobs * 1000,
            "server": server / jobs * 1000,
            "cpu": (client + server) / jobs * 1000,
            "wal": used.wal / jobs,
            "seconds": seconds,
            "n": jobs,
        }


class Stage:
    def __init__(self, url: str, out: Path, log: Path | None = None) -> None:
        self.url, self.out = url, out
        self.log = log  # the server's, if it is a private one
        self.conn = psycopg.connect(url, autocommit=True)
        self.postmaster = postmaster_of(self.conn)
        self.templates: dict[str, str] = {}
        version = "select name, setting || coalesce(unit, '') from pg_settings where name = any(%s)"
        self.settings = dict(self.conn.execute(version, [list(SHOWN)]).fetchall())
        self.can_checkpoint = True

    def checkpoint(self) -> None:
        if self.can_checkpoint:
            try:
                self.conn.execute("checkpoint")
            except psycopg.errors.InsufficientPrivilege:
                self.can_checkpoint = False

    def dsn(self, database: str) -> str:
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{database}"))

    def _template(self, contender: Contender) -> str:
        """The name of a database that is set up once, and copied for each measurement."""
        if contender.name not in self.templates:
            name = f"bench_template_{len(self.templates)}"
            self._drop(name)
            self.conn.execute(f"create database {name}")
            program = Program(
                command(contender), self.dsn(name), self.out / "trail.txt", self.out / "setup.log"
            )
            try:
                program.ask("setup", *contender.setup)
            finally:
                program.end()
            self._forget_connections(name)
            self.templates[contender.name] = name
        return self.templates[contender.name]

    def _forget_connections(self, name: str) -> None:
        while self.conn.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [name]
        ).fetchall():
            time.sleep(0.01)

    def _drop(self, name: str) -> None:
        self.conn.execute(f"drop database if exists {name} with (force)")

    @contextmanager
    def site(self, name: str) -> Iterator[Site]:
        contender = CONTENDERS[name]
        template = self._template(contender)
        self._drop("bench_run")
        self.conn.execute(f"create database bench_run template {template}")
        with psycopg.connect(self.dsn("bench_run"), autocommit=True) as conn:
            self.checkpoint()  # pages that are new since a checkpoint need no full page image
            site = Site(self, contender, self.dsn("bench_run"), conn)
            try:
                yield site
            finally:
                site.end()
        self._drop("bench_run")

    def close(self) -> None:
        for name in self.templates.values():
            self._drop(name)
        self.conn.close()


@contextmanager
def stage(out: Path) -> Iterator[Stage]:
    """On the server of DATABASE_URL, whose role may create databases, or on a private one."""
    out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        url, log = os.environ.get("DATABASE_URL"), None
        if not url:
            server = stack.enter_context(temporary_server(settings=SETTINGS))
            url, log = server.url(), Path(server.host).with_name("log")
        found = Stage(url, out, log)
        stack.callback(found.close)
        yield found


def pgbench() -> str | None:
    path = find_bindir() / "pgbench"
    return str(path) if path.exists() else None


def rates(trail: Path, fifths: int = 5) -> tuple[float, float]:
    """Jobs a second in the first and in the last fifth, from the times that handlers recorded."""
    marks = sorted(tuple(map(float, line.split())) for line in trail.read_text().splitlines())
    size = len(marks) // fifths
    if size < 2:
        return float("nan"), float("nan")
    first, last = marks[: size + 1], marks[-size - 1 :]
    return tuple(sum(jobs for _, jobs in part[1:]) / (part[-1][0] - part[0][0]) for part in (first, last))


def percentiles(trail: Path) -> dict[str, float]:
    delays = [float(line) * 1000 for line in trail.read_text().splitlines()]
    cuts = statistics.quantiles(delays, n=100, method="inclusive")
    return {"p50": cuts[49], "p95": cuts[94], "p99": cuts[98], "n": len(delays)}


def say(*words: Any) -> None:
    print(*words, file=sys.stderr, flush=True)
