"""Who takes part: their programs, how they are set, and what their tables say of jobs that are not done."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support import ROOT

HERE = Path(__file__).parent / "programs"
sys.path.insert(0, str(ROOT / "bench"))
import contenders as bench  # noqa: E402  the benchmark installs the rivals, and pins their versions

PYTHON_PATH = f"{HERE}:{ROOT}"


@dataclass(frozen=True)
class Contender:
    name: str
    program: str  # with the verbs setup, produce and work
    kinds: tuple[str, ...]  # of jobs that it has
    left: str  # op, state, and whether it is still to run, of each job that is not completed
    settings: str
    recovery: str  # of a dead worker's jobs, as its documentation has it
    within: float  # the same in seconds, or infinite
    missing: str = ""  # which kinds it does not have


CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender(
            "pyworker",
            "pyworker_.py",
            ("plain", "once", "unique", "sequence", "effect"),
            left="select (payload ->> 'op')::integer, concat_ws(', ', state, reason), state <> 'discarded' "
            "from pyworker.live_jobs",
            settings='the defaults: `pyworker run` with 10 handlers; `delivery="at_most_once"`, '
            "`unique_policy`, `sequence_policy`, `job.transaction()`",
            recovery="4 s after a `kill -9`, 25 s after a suspension",
            within=25,
        ),
        Contender(
            "graphile-worker",
            "graphile.mjs",
            ("plain", "once", "unique", "sequence"),
            left="select (payload ->> 'op')::integer, "
            "case when locked_at is null then 'unlocked' else 'locked' end, attempts < max_attempts "
            "from graphile_worker._private_jobs",
            settings="`run()` with 10 jobs at once; `max_attempts` 1, `job_key`, `queue_name`",
            recovery="4 hours, fixed",
            within=14400,
            missing="its completion is not part of the handler's transaction",
        ),
        Contender(
            "river",
            "river.go",
            ("plain", "once", "unique", "effect"),
            left="select (args ->> 'op')::integer, state::text, state not in ('cancelled', 'discarded') "
            "from river_job where state <> 'completed'",
            settings="the defaults with 10 workers; `MaxAttempts` 1, `UniqueOpts`, `JobCompleteTx`",
            recovery="`RescueStuckJobsAfter`, 1 hour by default",
            within=3600,
            missing="sequences are in its paid edition",
        ),
        Contender(
            "pg-boss",
            "pgboss.mjs",
            ("plain", "once", "unique", "sequence"),
            left="select (data ->> 'op')::integer, state::text, state in ('created', 'retry', 'active') "
            "from pgboss.job where state <> 'completed' and name = any('{plain,once,unique,sequence}')",
            settings="LISTEN/NOTIFY, polling each 0.5 s; `heartbeatSeconds` 10, the least (off by "
            "default: then `expireInSeconds`, 15 minutes), supervision each second; `retryLimit` 0, "
            "policies `short` and `key_strict_fifo`",
            recovery="10 s without a heartbeat",
            within=15,
            missing="its completion is not part of the handler's transaction",
        ),
        Contender(
            "procrastinate",
            "procrastinate_.py",
            ("plain", "once", "unique", "sequence"),
            left="select (args ->> 'op')::integer, status::text, status in ('todo', 'doing') "
            "from procrastinate_jobs where status <> 'succeeded' and task_name <> 'retry_stalled_jobs'",
            settings="10 jobs at once, and the documentation's periodic task that retries stalled jobs, "
            "each minute (there: each ten minutes); `retry` 25 or none, `queueing_lock`, `lock`",
            recovery="by that task: after 30 s without a heartbeat, at the next full minute",
            within=90,
            missing="its completion is not part of the handler's transaction",
        ),
    )
}


def install(names: list[str]) -> dict[str, str]:
    """Returns why some cannot take part."""
    missing = bench.install(names)
    if {"graphile-worker", "pg-boss"} & set(names) - missing.keys():
        for program in HERE.glob("*.mjs"):
            shutil.copy(program, _node())  # beside node_modules, where its imports are found
    if "river" in set(names) - missing.keys():
        try:
            _build_river()
        except subprocess.CalledProcessError as error:
            missing["river"] = f"cannot be built: {error.stderr[-300:]}"
    return missing


def _node() -> Path:
    place = bench.SCRATCH / "node" / "reliability"
    place.mkdir(exist_ok=True)
    return place


def _build_river() -> None:
    """With the benchmark's go.mod, and so the same versions."""
    place = bench.SCRATCH / "river-reliability"
    place.mkdir(parents=True, exist_ok=True)
    for name in ("go.mod", "go.sum"):
        shutil.copy(bench.RIVALS / "river" / name, place)
    shutil.copy(HERE / "river.go", place / "main.go")
    command = ["go", "build", "-o", "program", "."]
    subprocess.run(command, cwd=place, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def command(contender: Contender, verb: str) -> list[str]:
    path = HERE / contender.program
    if contender.name == "pyworker":
        if verb == "work":
            return [sys.executable, "-m", "pyworker", "run", "pyworker_tasks"]
        return [sys.executable, str(path), verb]
    if contender.program.endswith(".py"):
        return [bench.PYTHON, str(path), verb]
    if contender.program.endswith(".go"):
        return [str(bench.SCRATCH / "river-reliability" / "program"), verb]
    own = bench.SCRATCH / "node" / "node_modules" / ".bin" / "node"
    return [str(own) if own.exists() else "node", str(_node() / contender.program), verb]


def version(contender: Contender) -> str:
    if contender.name == "pyworker":
        import pyworker

        return pyworker.__version__
    return bench.version_of(contender.name).rstrip(": ")
