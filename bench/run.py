"""pyworker and its peers on the same PostgreSQL, in turn, and the report about it.

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

sys.path.insert(0, str(Path(__file__).parents[1]))

from contenders import CONTENDERS, install
from report import write
from scenarios import SCENARIOS, cases
from stage import say, stage


def main() -> None:
    parser = argparse.ArgumentParser(description="Scenarios: " + "; ".join(f"{k} {v[0]}" for k, v in SCENARIOS.items()))
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=" ".join(SCENARIOS))
    parser.add_argument("--only", default="", metavar="CONTENDER,…", help="contenders: " + "; ".join(CONTENDERS))
    parser.add_argument(
        "--jobs", type=int, default=200_000, metavar="N", help="size of a drain; all else scales with it"
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
    results = {
        "machine": {"cpu": _cpu(), "cores": len(os.sched_getaffinity(0)), "system": platform.platform(), "python": platform.python_version()},
        "began": time.strftime("%Y-%m-%d %H:%M:%S"), "command": " ".join(sys.argv), "jobs": options.jobs, "rounds": options.rounds,
        "missing": missing, "runs": [],
    }  # fmt: skip
    with stage(options.out.absolute()) as site_of:
        results["settings"] = site_of.settings
        say("PostgreSQL:", *(f"{name}={value}" for name, value in sorted(site_of.settings.items())))
        for letter, found in plan.items():
            found = [case for case in found if case[1] not in missing]
            for turn in range(options.rounds):
                for group, name, measure in found:
                    row = {"scenario": letter, "group": group, "contender": name, "round": turn}
                    began = time.monotonic()
                    try:
                        with site_of.site(name) as site:
                            row |= measure(site)
                    except Exception as error:
                        traceback.print_exc()
                        row["error"] = str(error)
                    results["runs"].append(row)
                    say(f"{letter}{turn} {group}, {name}:", _line(row), f"({time.monotonic() - began:.0f} s)")
                    (site_of.out / "results.json").write_text(json.dumps(results, indent=1))
    write(results, options.out)
    say(f"{options.out / 'report.md'}, results.json, and a plot of each scenario as PNG and SVG")


def _line(row: dict) -> str:
    return row.get("error") or " ".join(f"{key}={value:.4g}" for key, value in row.items() if isinstance(value, float))


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


if __name__ == "__main__":
    main()
