"""What a job costs whose handler gets a batch of jobs, beside one whose handler gets it alone.

    python bench/batches.py [CHECKOUT] [--rounds N] [--jobs N] [--processes N] [--deleted]

One private server and one `pyworker run` per drain, as in serial.py; the cases take turns within each
round. The handlers do nothing. The ratios are to "one by one"; the last figure is jobs a second. --deleted:
completed jobs are deleted, not kept as history.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from serial import SETTINGS, Cost, Scenario, Version, report, temporary_server

TASKS = """
import pyworker
@pyworker.task
async def single_async(payload): pass
@pyworker.task
def single(payload): pass
@pyworker.task(batch=100)
async def batch_100_async(jobs): pass
@pyworker.task(batch=100)
def batch_100(jobs): pass
@pyworker.task(batch=1000)
async def batch_1000_async(jobs): pass
@pyworker.task(batch=1000)
def batch_1000(jobs): pass
"""
CASES = {"one by one": "single", "batches of 100": "batch_100", "batches of 1,000": "batch_1000"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", nargs="?", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=200_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--deleted", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, temporary_server(settings=SETTINGS) as server:
        (Path(directory) / "serial_tasks.py").write_text(TASKS)
        version = Version(options.checkout.resolve(), server, 0)
        if options.deleted:
            version.configure("completed_retention => '0'")
        print(f"PostgreSQL {server.version}, {options.rounds} rounds", flush=True)
        run = ("--processes", str(options.processes))
        for kind, suffix in ("async", "_async"), ("sync", ""):
            costs: dict[str, list[Cost]] = {name: [] for name in CASES}
            for turn in range(options.rounds):
                for name in list(CASES)[:: 1 if turn % 2 else -1]:
                    task = f"{CASES[name]}{suffix}"
                    scenario = Scenario(1, 10, f"'identifier', '{task}'", (*run, "--task", task))
                    costs[name].append(version.drain(Path(directory), scenario, options.jobs))
            report(kind, costs)


if __name__ == "__main__":
    main()
