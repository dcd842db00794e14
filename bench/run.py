"""Run pyworker and its peers on one PostgreSQL, in turn, and write the report.

python bench/run.py [SCENARIO …] [--only CONTENDER,…] [--jobs N] [--rounds N] [--out DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from contenders import CONTENDERS, install
from measure import stolen
from report import write
from scenarios import SCENARIOS, Measure, cases
from stage import Stage, say, stage

# A measurement during which the host took more than this share of the CPU is repeated, twice at most. That
# of memory is not: it does not depend on time.
STOLEN = 0.15


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Scenarios: " + "; ".join(f"{letter} {what}" for letter, (what, _) in SCENARIOS.items())
    )
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=" ".join(SCENARIOS))
    parser.add_argument(
        "--only", default="", metavar="CONTENDER,…", help="contenders: " + "; ".join(CONTENDERS)
    )
    parser.add_argument(
        "--jobs", type=int, default=200_000, metavar="N", help="size of a drain; other sizes follow"
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--out", type=Path, default=Path("bench/results"), metavar="DIR")
    options = parser.parse_args()
    letters = [letter.upper() for letter in options.scenarios] or list(SCENARIOS)
    if unknown := [letter for letter in letters if letter not in SCENARIOS]:
        parser.error(f"no such scenario: {unknown[0]} (known: {' '.join(SCENARIOS)})")
    only = set(filter(None, options.only.split(",")))
    plan = {letter: cases(letter, options.jobs, only) for letter in letters}
    missing = install(sorted({case[1] for found in plan.values() for case in found}))
    for name, why in missing.items():
        say(f"{name} does not take part: {why}")
    results: dict[str, Any] = {
        "machine": _machine(),
        "began": time.strftime("%Y-%m-%d %H:%M:%S"),
        "command": " ".join(sys.argv),
        "jobs": options.jobs,
        "rounds": options.rounds,
        "missing": missing,
        "runs": [],
    }
    with stage(options.out.absolute()) as here:
        results["settings"] = here.settings
        say("PostgreSQL:", *(f"{name}={value}" for name, value in sorted(here.settings.items())))
        for letter, found in plan.items():
            for turn in range(options.rounds):
                for group, name, measure in found:
                    if name in missing:
                        continue
                    row = {"scenario": letter, "group": group, "contender": name, "round": turn}
                    row |= _measured(here, name, measure)
                    results["runs"].append(row)
                    say(f"{letter}{turn} {group}, {name}:", _line(row))
                    (here.out / "results.json").write_text(json.dumps(results, indent=1))
    write(results, options.out)
    say(f"{options.out / 'report.md'}, results.json, and a plot of each scenario as PNG and SVG")


def _measured(stage: Stage, name: str, measure: Measure) -> dict[str, Any]:
    """The least disturbed of up to three measurements."""
    tries = [_tried(stage, name, measure)]
    while tries[-1]["stolen"] > STOLEN and "growth" not in tries[-1] and len(tries) < 3:
        say(f"again, because the host took {tries[-1]['stolen']:.0%} of the time:", _line(tries[-1]))
        tries.append(_tried(stage, name, measure))
    best = min(tries, key=lambda tried: ("error" in tried, tried["stolen"]))
    return best | {"tries": len(tries)}


def _tried(stage: Stage, name: str, measure: Measure) -> dict[str, Any]:
    row: dict[str, Any] = {}
    before, began = stolen(), time.monotonic()
    try:
        with stage.site(name) as site:
            row |= measure(site)
    except Exception as error:
        traceback.print_exc()
        row["error"] = str(error)
    lost, had = stolen(before)
    return row | {"stolen": lost / (lost + had), "took": time.monotonic() - began}


def _line(row: dict) -> str:
    return row.get("error") or " ".join(
        f"{key}={value:.4g}" for key, value in row.items() if isinstance(value, float)
    )


def _machine() -> dict[str, Any]:
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


if __name__ == "__main__":
    main()
