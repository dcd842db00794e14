"""Who takes part: how it is installed, how a transaction of our own adds jobs to it, how we see that it has done them all."""

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
PEERS = ("graphile-worker", "pg-boss", "river", "procrastinate", "pgqueuer", "chancy", "oban")


@dataclass(frozen=True)
class Contender:
    name: str
    command: tuple[str, ...]
    fill: str  # adds %(n)s jobs named %(task)s
    left: str  # a row as long as jobs that came after id %(floor)s are left
    settings: str  # for throughput, and where its documentation says so
    concurrency: int = 24
    setup: tuple[str, ...] = ()  # arguments of the verb
    chunk: int = 10_000  # jobs per call of `fill`
    share: float = 1.0  # of the jobs that the others get: the slow ones would take hours
    newest: str = ""  # the highest id so far; jobs with ids that do not grow have none


PAYLOAD = "json_build_object('n', i, 'to', 'ada@example.org')"
OURS = dict(
    command=(sys.executable, str(RIVALS / "ours.py")),
    fill=f"""select count(*) from pyworker.add_jobs((select jsonb_agg(jsonb_build_object('identifier', %(task)s::text, 'payload', {PAYLOAD}))
             from generate_series(1, %(n)s) i))""",
    left="select 1 from pyworker.live_jobs where id > %(floor)s and state <> 'discarded' order by id desc limit 1",
    newest="select coalesce(max(id), 0) from pyworker.live_jobs",
    chunk=1000,
)
BARE = dict(
    fill=f"insert into jobs (task, payload) select %(task)s, {PAYLOAD} from generate_series(1, %(n)s) i",
    left="select 1 from jobs where id > %(floor)s order by id desc limit 1",
    newest="select coalesce(max(id), 0) from jobs",
)
DELETED = "select pyworker.configure(completed_retention => '0')"


def bare(kind: str, batch: int) -> tuple[str, ...]:
    return sys.executable, str(RIVALS / "bare.py"), kind, str(batch)


CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender("pyworker", **OURS, settings="the defaults: 10 handlers at once, async handler, history kept, asyncio's event loop", concurrency=10),
        Contender("pyworker, deleted", **OURS, settings="the same, `configure(completed_retention => '0')`", concurrency=10, setup=(DELETED,)),
        Contender("pyworker, uvloop", **OURS | dict(command=(*OURS["command"], "uvloop")), settings="the defaults, with uvloop installed", concurrency=10),
        Contender("table, 100", command=bare("table", 100), **BARE, settings="the floor: DELETE … SKIP LOCKED, 100 at a time"),
        Contender("table, 500", command=bare("table", 500), **BARE, settings="the floor: the same, 500 at a time"),
        Contender("table, two steps", command=bare("two steps", 500), **BARE, settings="UPDATE … SKIP LOCKED when taken, DELETE when done, 500 at a time: no job is lost"),
        Contender("functions, 100", **OURS | dict(command=bare("functions", 100)), settings="claim_jobs and finish_jobs from a bare loop, 100 at a time"),
        Contender("functions, 500", **OURS | dict(command=bare("functions", 500)), settings="the same, 500 at a time"),
        Contender("functions, 500, deleted", **OURS | dict(command=bare("functions", 500)), settings="the same, history off", setup=(DELETED,)),
        Contender(
            "graphile-worker", ("node", "graphile.mjs"),
            fill=f"""select count(*) from graphile_worker.add_jobs(array(
                     select row(%(task)s, {PAYLOAD}, null, null, null, null, null, null)::graphile_worker.job_spec from generate_series(1, %(n)s) i))""",
            left="select 1 from graphile_worker._private_jobs where id > %(floor)s order by id desc limit 1",
            newest="select coalesce(max(id), 0) from graphile_worker._private_jobs",
            settings="24 jobs at once, localQueue.size 500, completeJobBatchDelay 0, failJobBatchDelay 0 "
                     "(worker.graphile.org/docs/performance); for latency without them",
        ),
        Contender(
            "pg-boss", ("node", "pgboss.mjs"),
            fill=f"insert into pgboss.job (name, data) select %(task)s, {PAYLOAD}::jsonb from generate_series(1, %(n)s) i",
            left="select 1 from pgboss.job where name in ('noop', 'fail') and state < 'completed' and %(floor)s is not null limit 1",
            settings="batchSize 500, localConcurrency 2, burstWhenBatchFull, priority off, orderByCreatedOn off; "
                     "for latency batchSize 1, useListenNotify (its type documentation)",
        ),
        Contender(
            "river", (str(SCRATCH / "river"),), share=0.5,
            fill=f"insert into river_job (kind, args, max_attempts) select %(task)s, {PAYLOAD}::jsonb, 25 from generate_series(1, %(n)s) i",
            left="select 1 from river_job where state in ('available', 'running', 'retryable') and %(floor)s is not null limit 1",
            settings="MaxWorkers 2000, FetchCooldown 2 ms, FetchPollInterval 20 ms (the settings of `river bench`)",
        ),
        Contender(
            "procrastinate", (PYTHON, str(RIVALS / "procrastinate_.py")), share=0.02,
            fill=f"""insert into procrastinate_jobs (queue_name, task_name, args)
                     select 'default', %(task)s, {PAYLOAD}::jsonb from generate_series(1, %(n)s) i""",
            left="select 1 from procrastinate_jobs where status in ('todo', 'doing') and %(floor)s is not null limit 1",
            settings="concurrency 24, LISTEN/NOTIFY (the default)",
        ),
        Contender(
            "pgqueuer", (PYTHON, str(RIVALS / "pgqueuer_.py")), share=0.5,
            fill=f"""insert into pgqueuer (priority, entrypoint, payload, status)
                     select 0, %(task)s, convert_to({PAYLOAD}::text, 'UTF8'), 'queued' from generate_series(1, %(n)s) i""",
            left="select 1 from pgqueuer where id > %(floor)s order by id desc limit 1",
            newest="select coalesce(max(id), 0) from pgqueuer",
            settings="asyncpg, uvloop, batch_size 100; for latency 10, the default",
        ),
        Contender(
            "chancy", (PYTHON, str(RIVALS / "chancy_.py")), share=0.1,
            fill=f"""insert into chancy_jobs (id, queue, func, kwargs)
                     select gen_random_uuid(), 'default', 'chancy_.noop_job', {PAYLOAD} from generate_series(1, %(n)s) i
                     where %(task)s::text is not null""",
            left="select 1 from chancy_jobs where state in ('pending', 'running', 'retrying') and %(floor)s is not null limit 1",
            settings="AsyncExecutor, concurrency 1000, eager_polling",
        ),
        Contender(
            "oban", (str(SCRATCH / "oban" / "bin" / "python"), str(RIVALS / "oban_.py")), share=0.1,
            fill=f"""insert into oban_jobs (worker, args) select 'oban_.Noop', {PAYLOAD}::jsonb from generate_series(1, %(n)s) i
                     where %(task)s::text is not null""",
            left="select 1 from oban_jobs where state in ('available', 'executing', 'retryable') and %(floor)s is not null limit 1",
            settings="one queue, limit 100 (Python 3.12 or newer)",
        ),
    )
}  # fmt: skip


def install(names: list[str]) -> dict[str, str]:
    """Brings the rivals in, once; returns why some cannot take part."""
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
            missing |= dict.fromkeys(
                wanted, f"cannot be installed: {str(getattr(error, 'stderr', None) or error).strip()[-300:]}"
            )
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
    """pg-boss wants Node 22, which npm can bring along."""
    place = SCRATCH / "node"
    place.mkdir(parents=True, exist_ok=True)
    before = (place / "package.json").read_text() if (place / "package.json").exists() else ""
    for path in [RIVALS / "package.json", *RIVALS.glob("*.mjs")]:
        shutil.copy(path, place)
    if before != (RIVALS / "package.json").read_text() or not (place / "node_modules").exists():
        _run("npm", "install", "--no-fund", "--no-audit", "--silent", cwd=place)


def version_of(name: str) -> str:
    """As pinned, for the report."""
    files = ("package.json", "python.txt", "oban.txt", "river/go.mod")
    found = re.search(rf"\b{name}\W+v?(\d[\d.]+)", "\n".join((RIVALS / file).read_text() for file in files))
    return f"{found[1]}: " if found else ""


def command(contender: Contender) -> list[str]:
    program, *arguments = contender.command
    if program == "node":
        own = SCRATCH / "node" / "node_modules" / ".bin" / "node"
        return [str(own) if own.exists() else "node", str(SCRATCH / "node" / arguments[0]), *arguments[1:]]
    return [program, *arguments]
