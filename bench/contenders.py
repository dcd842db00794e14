"""Who takes part: how a contender is installed, what adds jobs to it in a transaction of the benchmark, and
what tells that it has done them all."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

HERE = Path(__file__).parent
RIVALS = HERE / "rivals"
SCRATCH = HERE.parent / ".bench"
PYTHON = str(SCRATCH / "python" / "bin" / "python")
OURS = ("pyworker", "pyworker, deleted")
FLOOR = ("table, 100", "table, 500", "table, two steps")
FUNCTIONS = ("functions, 100", "functions, 500", "functions, 500, deleted")
PEERS = ("graphile-worker", "pg-boss", "river", "procrastinate", "pgqueuer", "chancy", "oban")


@dataclass(frozen=True)
class Contender:
    """%(jobs)s, %(task)s and %(floor)s in its statements are parameters."""

    name: str
    command: tuple[str, ...]
    fill: str  # adds so many jobs of this task
    left: str  # a row as long as jobs with an id above the floor are left
    settings: str  # for throughput, and where its documentation recommends them
    concurrency: int = 24
    setup: tuple[str, ...] = ()  # arguments of the verb
    chunk: int = 10_000  # jobs per call of `fill`
    share: float = 1.0  # of the others' number of jobs: a slow contender would take hours
    newest: str = ""  # the highest id so far; empty where ids do not grow


PAYLOAD = "json_build_object('n', i, 'to', 'ada@example.org')"
JOBS = "generate_series(1, %(jobs)s) i"


def left_in(table: str, which: str) -> str:
    """For a contender whose ids do not grow."""
    return f"select 1 from {table} where {which} limit 1"


def left_above(table: str, which: str = "true") -> dict[str, str]:
    return dict(
        left=f"select 1 from {table} where id > %(floor)s and {which} order by id desc limit 1",
        newest=f"select coalesce(max(id), 0) from {table}",
    )


def bare(kind: str, batch: int) -> tuple[str, ...]:
    return sys.executable, str(RIVALS / "bare.py"), kind, str(batch)


SPEC = f"jsonb_build_object('identifier', %(task)s::text, 'payload', {PAYLOAD})"
BY_FUNCTIONS = dict(
    fill=f"select count(*) from pyworker.add_jobs((select jsonb_agg({SPEC}) from {JOBS}))",
    chunk=1000,
    **left_above("pyworker.live_jobs", "state <> 'discarded'"),
)
BY_WORKER = dict(command=(sys.executable, str(RIVALS / "ours.py")), concurrency=10, **BY_FUNCTIONS)
BY_TABLE = dict(
    fill=f"insert into jobs (task, payload) select %(task)s, {PAYLOAD} from {JOBS}", **left_above("jobs")
)
DELETED = "select pyworker.configure(completed_retention => '0')"

_WORKERS = (
    Contender(
        "pyworker",
        **BY_WORKER,
        settings="the defaults: 10 handlers at once, async handler, history kept, asyncio's event loop",
    ),
    Contender(
        "pyworker, deleted",
        **BY_WORKER,
        settings="the same, `configure(completed_retention => '0')`",
        setup=(DELETED,),
    ),
    Contender(
        "pyworker, uvloop",
        **BY_WORKER | dict(command=(*BY_WORKER["command"], "uvloop")),
        settings="the defaults, with uvloop installed",
    ),
)
_FLOORS = (
    Contender(
        "table, 100",
        bare("table", 100),
        **BY_TABLE,
        settings="the floor: DELETE … SKIP LOCKED, 100 at a time",
    ),
    Contender("table, 500", bare("table", 500), **BY_TABLE, settings="the floor: the same, 500 at a time"),
    Contender(
        "table, two steps",
        bare("two steps", 500),
        **BY_TABLE,
        settings="UPDATE … SKIP LOCKED at the claim, DELETE at the end, 500 at a time: no job is lost",
    ),
    Contender(
        "functions, 100",
        bare("functions", 100),
        **BY_FUNCTIONS,
        settings="claim_jobs and finish_jobs from a bare loop, 100 at a time",
    ),
    Contender("functions, 500", bare("functions", 500), **BY_FUNCTIONS, settings="the same, 500 at a time"),
    Contender(
        "functions, 500, deleted",
        bare("functions", 500),
        **BY_FUNCTIONS,
        settings="the same, history off",
        setup=(DELETED,),
    ),
)
_PEERS = (
    Contender(
        "graphile-worker",
        ("node", "graphile.mjs"),
        fill=f"""
            select count(*) from graphile_worker.add_jobs(array(
                select row(%(task)s, {PAYLOAD}, null, null, null, null, null, null)::graphile_worker.job_spec
                from {JOBS}))""",
        **left_above("graphile_worker._private_jobs"),
        settings="24 jobs at once, localQueue.size 500, completeJobBatchDelay 0, failJobBatchDelay 0 "
        "(worker.graphile.org/docs/performance); for latency without them",
    ),
    Contender(
        "pg-boss",
        ("node", "pgboss.mjs"),
        fill=f"insert into pgboss.job (name, data) select %(task)s, {PAYLOAD}::jsonb from {JOBS}",
        left=left_in("pgboss.job", "name in ('noop', 'fail') and state < 'completed'"),
        settings="batchSize 500, localConcurrency 2, burstWhenBatchFull, priority off, orderByCreatedOn off; "
        "for latency batchSize 1, useListenNotify (its type documentation)",
    ),
    Contender(
        "river",
        (str(SCRATCH / "river"),),
        share=0.5,
        fill=f"""
            insert into river_job (kind, args, max_attempts)
            select %(task)s, {PAYLOAD}::jsonb, 25 from {JOBS}""",
        left=left_in("river_job", "state in ('available', 'running', 'retryable')"),
        settings="MaxWorkers 2000, FetchCooldown 2 ms, FetchPollInterval 20 ms (as `river bench` sets them)",
    ),
    Contender(
        "procrastinate",
        (PYTHON, str(RIVALS / "procrastinate_.py")),
        share=0.02,
        fill=f"""
            insert into procrastinate_jobs (queue_name, task_name, args)
            select 'default', %(task)s, {PAYLOAD}::jsonb from {JOBS}""",
        left=left_in("procrastinate_jobs", "status in ('todo', 'doing')"),
        settings="concurrency 24, LISTEN/NOTIFY (the default)",
    ),
    Contender(
        "pgqueuer",
        (PYTHON, str(RIVALS / "pgqueuer_.py")),
        share=0.5,
        fill=f"""
            insert into pgqueuer (priority, entrypoint, payload, status)
            select 0, %(task)s, convert_to({PAYLOAD}::text, 'UTF8'), 'queued' from {JOBS}""",
        **left_above("pgqueuer"),
        settings="asyncpg, uvloop, batch_size 100; for latency 10, the default",
    ),
    Contender(
        "chancy",
        (PYTHON, str(RIVALS / "chancy_.py")),
        share=0.1,
        fill=f"""
            insert into chancy_jobs (id, queue, func, kwargs)
            select gen_random_uuid(), 'default', 'chancy_.noop_job', {PAYLOAD} from {JOBS}""",
        left=left_in("chancy_jobs", "state in ('pending', 'running', 'retrying')"),
        settings="AsyncExecutor, concurrency 1000, eager_polling",
    ),
    Contender(
        "oban",
        (str(SCRATCH / "oban" / "bin" / "python"), str(RIVALS / "oban_.py")),
        share=0.1,
        fill=f"""
            insert into oban_jobs (worker, args) select 'oban_.Noop', {PAYLOAD}::jsonb from {JOBS}""",
        left=left_in("oban_jobs", "state in ('available', 'executing', 'retryable')"),
        settings="one queue, limit 100 (Python 3.12 or newer)",
    ),
)
CONTENDERS = {contender.name: contender for contender in (*_WORKERS, *_FLOORS, *_PEERS)}


def install(names: list[str]) -> dict[str, str]:
    """Install the rivals, each once; return why some cannot take part."""
    missing: dict[str, str] = {}
    for members, files, action in (
        ({"graphile-worker", "pg-boss"}, ("package.json", "*.mjs"), _install_node),
        ({"river"}, ("river/*",), _install_river),
        (
            {"procrastinate", "pgqueuer", "chancy"},
            ("python.txt",),
            partial(_install_python, "python", (3, 11)),
        ),
        ({"oban"}, ("oban.txt",), partial(_install_python, "oban", (3, 12))),
    ):
        wanted = members & set(names)
        stamp, now = SCRATCH / f"{min(members)}.stamp", _fingerprint(files)
        if not wanted or (stamp.exists() and stamp.read_text() == now):
            continue
        try:
            SCRATCH.mkdir(exist_ok=True)
            action()
            stamp.write_text(now)
        except (subprocess.CalledProcessError, OSError) as error:
            reason = str(getattr(error, "stderr", None) or error).strip()[-300:]
            missing |= dict.fromkeys(wanted, f"cannot be installed: {reason}")
    return missing


def _fingerprint(patterns: tuple[str, ...]) -> str:
    files = sorted(path for pattern in patterns for path in RIVALS.glob(pattern))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _run(*command: str, cwd: Path) -> None:
    subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def _install_river() -> None:
    _run("go", "build", "-o", str(SCRATCH / "river"), ".", cwd=RIVALS / "river")


def _install_python(name: str, at_least: tuple[int, int]) -> None:
    _run(_interpreter(at_least), "-m", "venv", str(SCRATCH / name), cwd=SCRATCH)
    _run(str(SCRATCH / name / "bin" / "pip"), "install", "-q", "-r", str(RIVALS / f"{name}.txt"), cwd=SCRATCH)


def _interpreter(at_least: tuple[int, int]) -> str:
    newer = [f"python3.{minor}" for minor in range(14, 10, -1)]
    pyenv = sorted(map(str, Path.home().glob(".pyenv/versions/3.*/bin/python3")), reverse=True)
    for candidate in [sys.executable, *newer, *pyenv]:
        probe = [candidate, "-c", f"import sys, venv, ensurepip; sys.exit(sys.version_info < {at_least})"]
        with suppress(OSError):
            if subprocess.run(probe, capture_output=True).returncode == 0:
                return candidate
    raise OSError(f"there is no Python {'.'.join(map(str, at_least))} here")


def _install_node() -> None:
    """pg-boss needs Node 22, which npm can install, too."""
    place = SCRATCH / "node"
    place.mkdir(parents=True, exist_ok=True)
    before = (place / "package.json").read_text() if (place / "package.json").exists() else ""
    for path in [RIVALS / "package.json", *RIVALS.glob("*.mjs")]:
        shutil.copy(path, place)
    if before != (RIVALS / "package.json").read_text() or not (place / "node_modules").exists():
        _run("npm", "install", "--no-fund", "--no-audit", "--silent", cwd=place)


def version_of(name: str) -> str:
    """The pinned version, for the report."""
    files = ("package.json", "python.txt", "oban.txt", "river/go.mod")
    found = re.search(rf"\b{name}\W+v?(\d[\d.]+)", "\n".join((RIVALS / file).read_text() for file in files))
    return f"{found[1]}: " if found else ""


def command(contender: Contender) -> list[str]:
    program, *arguments = contender.command
    if program == "node":
        own = SCRATCH / "node" / "node_modules" / ".bin" / "node"
        return [str(own) if own.exists() else "node", str(SCRATCH / "node" / arguments[0]), *arguments[1:]]
    return [program, *arguments]
