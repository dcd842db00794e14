"""results.json as medians, and the names of what is measured."""

from __future__ import annotations

import statistics
from typing import Any

Results = dict[str, Any]
Case = tuple[str, str, str]  # scenario, group, contender
Medians = dict[Case, dict[str, float]]

# Metric: its heading and its format.
COLUMNS = {
    "jobs_s": ("jobs/s", ",.0f"),
    "client": ("client", ".4f"),
    "server": ("server", ".4f"),
    "adds": ("adds' part of server", ".4f"),
    "cpu": ("CPU", ".4f"),
    "commits": ("commits/job", ".2f"),
    "wal": ("WAL B/job", ",.0f"),
    "size": ("larger by B/job", ",.0f"),
    "first_fifth": ("first fifth, jobs/s", ",.0f"),
    "last_fifth": ("last fifth, jobs/s", ",.0f"),
    "p50": ("p50 ms", ".2f"),
    "p95": ("p95 ms", ".2f"),
    "p99": ("p99 ms", ".2f"),
    "parent": ("parent MB", ".1f"),
    "child": ("child MB", ".1f"),
    "growth": ("growth", ".1%"),
    "idle": ("CPU ms a second, each", ".1f"),
    "n": ("jobs", ",.0f"),
}
# Of the metrics that are compared with the best peer and with the floor: which value is the best.
BEST = {"jobs_s": max, "cpu": min, "p50": min, "p99": min}


def medians(results: Results) -> Medians:
    """Of each case, over its rounds, every metric that all of its runs have."""
    cases: dict[Case, list[dict[str, Any]]] = {}
    for run in results["runs"]:
        if "error" not in run:
            cases.setdefault((run["scenario"], run["group"], run["contender"]), []).append(run)
    return {
        case: {
            metric: statistics.median(run[metric] for run in runs)
            for metric in COLUMNS
            if all(metric in run for run in runs)
        }
        for case, runs in cases.items()
    }


def groups_of(letter: str, found: Medians) -> list[str]:
    """The groups of a scenario, in the order in which they were measured."""
    return list(dict.fromkeys(group for scenario, group, _ in found if scenario == letter))


def in_groups(letter: str, found: Medians) -> Medians:
    """The cases of a scenario, those of a group together."""
    groups = groups_of(letter, found)
    cases = [case for case in found if case[0] == letter]
    return {case: found[case] for case in sorted(cases, key=lambda case: groups.index(case[1]))}
