"""Runs queues under a menu of faults, and judges what happened from the histories alone.

python -m tests.reliability check DIRECTORY       judge its histories again; needs nothing but Python
python -m tests.reliability export DIRECTORY      write them as EDN, for Jepsen's and Elle's checkers
python -m tests.reliability run --only pyworker   record histories
python -m tests.reliability page DIRECTORY        write docs/reliability.md from histories
python -m tests.reliability report                record all, judge them, write the page (make report)
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from tests.reliability import edn, page
from tests.reliability.judge import History, figures, recoveries, verdicts

ROOT = Path(__file__).parents[2]
HISTORIES = ROOT / "docs" / "reliability"
SECONDS = float(os.environ.get("PYWORKER_REPORT_SECONDS", "600"))
SHOWN = 10  # ids of each promise


def told(name: str, h: History) -> bool:
    """Prints what a history shows. Returns whether all promises hold."""
    about = h.about
    print(f"\n{name} {about.get('version', '')}: {len(h.events)} events in {h.until:.0f} s, "
          f"seed {about.get('seed', 'unknown')}")  # fmt: skip
    found = verdicts(h)
    for verdict in found:
        print(f"  {verdict.promise:54} {verdict.word}")
        for which, what in verdict.found[:SHOWN]:
            print(f"      {which} {what}")
        if (more := len(verdict.found) - SHOWN) > 0:
            print(f"      and {more} more")
    for it in recoveries(h):
        if it.name in ("kill", "freeze"):
            print(f"  after {it.name + ', again':48} {page.again(it)}")
    for what, count in figures(h).items():
        print(f"  {what:54} {count}")
    return not any(verdict.found for verdict in found)


def check(directory: Path, blamed: Callable[[str], bool] = lambda name: True) -> int:
    """Judges all. Returns 1 if one that is to blame violates a promise."""
    histories = page.read(directory)
    if not histories:
        print(f"there is no history (*.jsonl, *.jsonl.gz) in {directory}", file=sys.stderr)
        return 2
    held = {name: told(name, h) for name, h in histories.items()}
    return 1 if any(blamed(name) and not fine for name, fine in held.items()) else 0


def export(directory: Path, out: Path) -> int:
    for name, h in page.read(directory).items():
        for path in edn.export(h, out / name):
            print(path)
    return 0


def record(names: list[str], seconds: float, seed: str, out: Path) -> None:
    from tests.reliability.contenders import CONTENDERS, install
    from tests.reliability.run import run

    missing = install(names)
    for name, why in missing.items():
        print(f"{name} {why}", file=sys.stderr)
    for name in [name for name in CONTENDERS if name in names and name not in missing]:
        print(f"{name}: {seconds:.0f} s", file=sys.stderr, flush=True)
        run(name, seconds, seed, out)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.reliability", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("check", "export", "page"):
        one = commands.add_parser(name)
        one.add_argument("directory", type=Path, nargs="?", default=HISTORIES)
        if name == "export":
            one.add_argument("--out", type=Path, default=Path("edn"))
    for name in ("run", "report"):
        one = commands.add_parser(name)
        one.add_argument("--only", default="pyworker,graphile-worker,river,pg-boss,procrastinate")
        one.add_argument("--seconds", type=float, help="for each; else a share of PYWORKER_REPORT_SECONDS")
        one.add_argument("--seed", default=os.environ.get("PYWORKER_SEED", "1"))
        one.add_argument("--out", type=Path, default=HISTORIES)
    return parser.parse_args()


def main() -> int:
    given = arguments()
    if given.command == "check":
        return check(given.directory)
    if given.command == "export":
        return export(given.directory, given.out)
    if given.command == "page":
        page.write(given.directory)
        return 0
    names = given.only.split(",")
    record(names, given.seconds or SECONDS / len(names), given.seed, given.out)
    if given.command == "report":
        page.write(given.out)
        return check(given.out, lambda name: name == "pyworker")  # a report about others has not failed
    return 0


if __name__ == "__main__":
    sys.exit(main())
