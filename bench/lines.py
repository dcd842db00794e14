"""What a line of job.log costs: jobs that log one line beside jobs that log none.

    python bench/lines.py [CHECKOUT] [--rounds N] [--jobs N]

One private server and one `pyworker run` per drain, as in serial.py; the cases take turns within each
round. "kept" is a line of level debug: kept with the job, and not sent on by the worker's logging, which
begins at info. "kept and shown" is of level info: Python's logging formats it and writes it, too.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from serial import SETTINGS, Cost, Scenario, Version, report, temporary_server

TASKS = """
import pyworker
from pyworker import AsyncJob, Job
@pyworker.task
def none(payload, job: Job): pass
@pyworker.task
def kept(payload, job: Job): job.log("page 4 has no text", "debug")
@pyworker.task
def shown(payload, job: Job): job.log("page 4 has no text")
@pyworker.task
async def none_async(payload, job: AsyncJob): pass
@pyworker.task
async def kept_async(payload, job: AsyncJob): job.log("page 4 has no text", "debug")
@pyworker.task
async def shown_async(payload, job: AsyncJob): job.log("page 4 has no text")
"""
CASES = {"no line": "none", "kept": "kept", "kept and shown": "shown"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", nargs="?", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=20_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, temporary_server(settings=SETTINGS) as server:
        (Path(directory) / "serial_tasks.py").write_text(TASKS)
        version = Version(options.checkout.resolve(), server, 0)
        print(f"PostgreSQL {server.version}, {options.rounds} rounds", flush=True)
        for kind, suffix in ("sync", ""), ("async", "_async"):
            costs: dict[str, list[Cost]] = {name: [] for name in CASES}
            for turn in range(options.rounds):
                for name in list(CASES)[:: 1 if turn % 2 else -1]:
                    scenario = Scenario(1, 10, f"'identifier', '{CASES[name]}{suffix}'")
                    costs[name].append(version.drain(Path(directory), scenario, options.jobs))
            report(kind, costs)


if __name__ == "__main__":
    main()
