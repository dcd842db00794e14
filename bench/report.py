"""The report about results.json: tables, targets and plots. Alone: python bench/report.py DIR"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from contenders import CONTENDERS, FLOOR, PEERS, version_of
from figures import BEST, COLUMNS, Medians, Results, in_groups, medians
from plots import plot, summary
from scenarios import SCENARIOS
from targets import by_round


def write(results: Results, out: Path) -> None:
    found = medians(results)
    lines = [*introduction(results)]
    if picture := summary(found, out):
        lines += ["## At one look", "", f"![]({picture})", ""]
    lines += ["## Targets", "", verdicts(results, found), ""]
    for letter, (title, _) in SCENARIOS.items():
        if any(case[0] == letter for case in found):
            lines += [f"## {letter}. {title}", "", scenario_table(letter, found)]
            if picture := plot(letter, title, found, results, out):
                lines += [f"![]({picture})", ""]
    lines += ["## Settings", "", settings({contender for _, _, contender in found})]
    if failed := [*failures(results)]:
        lines += ["## Failed", "", *failed, ""]
    (out / "report.md").write_text("\n".join(lines))


def introduction(results: Results) -> Iterator[str]:
    machine = results["machine"]
    stolen = [run.get("stolen", 0.0) for run in results["runs"]]
    server = ", ".join(f"{name} {value}" for name, value in sorted(results["settings"].items()))
    yield from ("# pyworker and its peers on one PostgreSQL", "")
    yield (
        f"{results['began']}, {machine['cores']} cores of {machine['cpu']}, {machine['system']}, "
        f"Python {machine['python']}. Medians of {results['rounds']} interleaved rounds; a drain is "
        f"{results['jobs']:,} jobs where nothing else is said. The host took {statistics.median(stolen):.1%} "
        f"of the CPU, at most {max(stolen):.0%}."
    )
    yield ""
    yield (
        "client, server, CPU (their sum): CPU seconds per 1,000 jobs. "
        "How each figure is measured: bench/README.md."
    )
    yield from ("", f"PostgreSQL: {server}", "")


def verdicts(results: Results, found: Medians) -> str:
    """A table of the targets, met or not met."""
    rows = []
    for (text, comparison, limit), values in by_round(results, found).items():
        value = statistics.median(values)
        met = value <= limit if comparison == "≤" else value >= limit
        spread = f"{min(values):.2f} to {max(values):.2f}" if len(values) > 1 else ""
        verdict = "met" if met else "**not met**"
        rows.append([text, f"{comparison} {limit:g}", f"{value:.3f}", spread, verdict])
    return table(["", "target", "median of the rounds", "all", ""], rows) if rows else "None was measured."


def scenario_table(letter: str, found: Medians) -> str:
    """The figures of each case, and their ratios to the best peer and to the floor in its group."""
    rows = in_groups(letter, found)
    metrics = [metric for metric in COLUMNS if any(_is_there(row, metric) for row in rows.values())]
    compared = [metric for metric in ("jobs_s", "cpu", "p50") if metric in metrics]
    against = {
        what: names
        for what, names in (("best peer", PEERS), ("floor", FLOOR))
        if any(case[2] in names for case in rows)
    }
    head = ["", "", *(COLUMNS[metric][0] for metric in metrics)]
    head += [f"{COLUMNS[metric][0]} ÷ {what}" for what in against for metric in compared]
    lines = []
    for case, row in rows.items():
        line = [case[1], case[2]]
        line += [
            format(row[metric], COLUMNS[metric][1]) if _is_there(row, metric) else "" for metric in metrics
        ]
        for names in against.values():
            line += [ratio_to(names, rows, case, metric) for metric in compared]
        lines.append(line)
    return table(head, lines)


def ratio_to(names: tuple[str, ...], rows: Medians, case: tuple[str, str, str], metric: str) -> str:
    """A case's figure ÷ the best of the others in its group that have these names."""
    _, group, contender = case
    others = [
        row[metric]
        for (_, other_group, name), row in rows.items()
        if other_group == group and name in names and name != contender and metric in row
    ]
    if (names is FLOOR and contender in FLOOR) or not others or not BEST[metric](others):
        return ""
    ratio = rows[case].get(metric, math.nan) / BEST[metric](others)
    return "" if math.isnan(ratio) else f"{ratio:.2f}"


def _is_there(row: dict[str, float], metric: str) -> bool:
    return not math.isnan(row.get(metric, math.nan))


def settings(took_part: set[str]) -> str:
    rows = []
    for name, contender in CONTENDERS.items():
        if name in took_part:
            share = f"; {contender.share:g} of a drain's jobs" if contender.share < 1 else ""
            rows.append([name, version_of(name) + contender.settings + share])
    return table(["", ""], rows)


def failures(results: Results) -> Iterator[str]:
    for run in results["runs"]:
        if "error" in run:
            last_line = run["error"].strip().splitlines()[-1]
            yield f"- {run['scenario']} {run['group']}, {run['contender']}: {last_line}"
    for name, why in results["missing"].items():
        yield f"- {name}: {why}"


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, [*["---"] * 2, *["---:"] * (len(head) - 2)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    write(json.loads((directory / "results.json").read_text()), directory)
