"""Crashes a PostgreSQL after the records of its log, and judges what is left and what comes after.

python -m tests.crashpoints                    a part of the points, chosen by --seed
python -m tests.crashpoints --all              all points
python -m tests.crashpoints --at commit-last.2 one point, with its story
python -m tests.crashpoints --list             the steps of the script, and how many points each has
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing import get_context
from random import Random

from tests.crashpoints import wal
from tests.crashpoints.crash import Wreck, answered, expected
from tests.crashpoints.judge import Verdict, judge
from tests.crashpoints.recording import Point, Recording, recorded
from tests.crashpoints.script import script


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m tests.crashpoints", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--all", action="store_true", help="all points, at synchronous_commit on and off")
    parser.add_argument("--at", metavar="POINT", help="one point: STEP.N, the N-th record of a step")
    parser.add_argument("--list", action="store_true", help="print the steps")
    parser.add_argument("--points", type=int, default=100, metavar="N", help="so many points (default: 100)")
    parser.add_argument("--off", action="store_true", help="with synchronous_commit off for all sessions")
    parser.add_argument(
        "--behind",
        type=int,
        default=0,
        metavar="N",
        help="instead, a standby takes over, N statements behind",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="at once (default: 2)")
    return parser.parse_args()


def some(recording: Recording, count: int, seed: int) -> list[Point]:
    """Points of as many steps as possible, the last record before a commit among them."""
    random = Random(seed)
    steps = [step for step in recording.steps if any(p.step is step for p in recording.points)]
    chosen = list[Point]()
    while len(chosen) < count:
        for step in random.sample(steps, min(count - len(chosen), len(steps))):
            chosen.append(random.choice([p for p in recording.points if p.step is step]))
    return chosen


def new(recording: Recording, points: list[Point]) -> set[int]:
    """Of all points with the same rows and answers the last: after it, sessions act as after the others."""
    keys = {p.number: (id(expected(recording, p)[1]), len(answered(recording, p))) for p in points}
    return set({key: number for number, key in keys.items()}.values())


def judged(recording: Recording, points: list[Point], options: argparse.Namespace) -> Iterator[Verdict]:
    """Some processes, each with a server of its own: it ends with the thread that started it."""
    fork = get_context("fork")  # they share the recording
    queue, whole = fork.SimpleQueue(), new(recording, points)

    def work(part: list[Point]) -> None:
        with ExitStack() as stack:
            wreck = Wreck(stack, recording)
            for point in part:
                queue.put(judge(wreck, point, options.seed, point.number in whole, options.behind))

    parts = [points[n :: options.jobs] for n in range(options.jobs)]
    processes = [fork.Process(target=work, args=[part]) for part in parts if part]
    for process in processes:
        process.start()
    for _ in points:
        yield queue.get()
    for process in processes:
        process.join()


def tried(options: argparse.Namespace, synchronous: bool) -> int:
    began = time.monotonic()
    with recorded(script, synchronous) as recording:
        points = recording.points if options.all else some(recording, options.points, options.seed)
        faults = 0
        for count, verdict in enumerate(judged(recording, points, options), 1):
            if sys.stderr.isatty() or count % 500 == 0:
                print(f"{count} of {len(points)}", end="\r", file=sys.stderr, flush=True)
            faults += bool(verdict.faults)
            for fault in verdict.faults[:3]:
                print(f"{verdict.point.name:24} {fault}", flush=True)
        print(
            f"synchronous_commit {'on' if synchronous else 'off'}"
            f"{f', a standby {options.behind} statements behind' if options.behind else ''}: "
            f"{len(points)} crashes, "
            f"{len(new(recording, points))} of them lived through to the end, in {len(recording.steps)} "
            f"statements; {faults} with faults; {time.monotonic() - began:.0f} s"
        )
    return faults


def told(options: argparse.Namespace) -> int:
    with recorded(script, not options.off) as recording, ExitStack() as stack:
        verdict = judge(
            Wreck(stack, recording), recording.point(options.at), options.seed, True, options.behind
        )
    point = verdict.point
    print(f"{point.name}: the log ends at {wal.shown(point.record.end)}, after {point.record.kind} "
          f"{point.record.told}, in\n    {point.step.session}: {point.step.sql}\n")  # fmt: skip
    print("\n".join(f"  {line}" for line in verdict.story))
    print("\n" + ("WRONG" if verdict.faults else "right"))
    return len(verdict.faults)


def listed(options: argparse.Namespace) -> int:
    with recorded(script, not options.off) as recording:
        counts = Counter(id(point.step) for point in recording.points)
        for step in recording.steps:
            print(f"{step.name:24} {counts[id(step)]:4}  {step.session:12} {step.sql[:100]}")
    return 0


def main() -> int:
    options = arguments()
    if options.list:
        return listed(options)
    if options.at:
        return told(options) > 0
    modes = [True, False] if options.all else [not options.off]
    return sum(tried(options, synchronous) for synchronous in modes) > 0


if __name__ == "__main__":
    sys.exit(main())
