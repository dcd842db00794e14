"""results.json → README-like report with tables, targets and plots. Alone: python bench/report.py DIR"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from contenders import CONTENDERS, PEERS, version_of
from scenarios import FLOOR, FUNCTIONS, SCENARIOS

Results = dict[str, Any]
Medians = dict[tuple[str, str, str], dict[str, float]]
COLUMNS = {
    "jobs_s": ("jobs/s", ",.0f"), "client": ("client", ".4f"), "server": ("server", ".4f"), "cpu": ("CPU", ".4f"), "wal": ("WAL B/job", ",.0f"),
    "first_fifth": ("first fifth, jobs/s", ",.0f"), "last_fifth": ("last fifth, jobs/s", ",.0f"),
    "p50": ("p50 ms", ".2f"), "p95": ("p95 ms", ".2f"), "p99": ("p99 ms", ".2f"),
    "parent": ("parent MB", ".1f"), "child": ("child MB", ".1f"), "growth": ("growth", ".1%"), "idle": ("CPU ms a second, each", ".1f"),
    "n": ("jobs", ",.0f"),
}  # fmt: skip
BETTER = {
    "jobs_s": max,
    "cpu": min,
    "p50": min,
    "p99": min,
}  # what is compared with the best peer and with the floor


def medians(results: Results) -> Medians:
    rows: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for run in results["runs"]:
        if "error" not in run:
            rows.setdefault((run["scenario"], run["group"], run["contender"]), []).append(run)
    return {
        key: {name: statistics.median(run[name] for run in runs) for name in COLUMNS if all(name in run for run in runs)}
        for key, runs in rows.items()
    }  # fmt: skip


# -- the targets -------------------------------------------------------------------------------------------------------

Ask = Callable[[str, str, str, str], float]


def targets(m: Ask, groups: Callable[[str], list[str]]) -> list[tuple[str, str, float, Callable[[], float]]]:
    """What is promised, as (text, comparison, limit, how to find it); a missing measurement is a KeyError."""

    def best(letter: str, group: str, metric: str) -> float:
        found = []
        for peer in PEERS:
            with suppress(KeyError):
                found.append(m(letter, group, peer, metric))
        if not found:
            raise KeyError(group)
        return BETTER[metric](found)

    def ratio(
        letter: str, group: str, metric: str, other: str, ours: str = "pyworker"
    ) -> Callable[[], float]:
        return lambda: m(letter, group, ours, metric) / m(letter, group, other, metric)

    def within(letter: str, group: str, base: str, metric: str) -> Callable[[], float]:
        return lambda: m(letter, group, "pyworker", metric) / m(letter, base, "pyworker", metric)

    one, two, sql, many = "one process", "two processes", "SQL, 1 connections", "own client, 32 connections"
    at_it = "SQL, 32 connections, worker at it, notifications "
    pinned = max((g for g in groups("E") if g.endswith(" pinned")), key=_size, default="")
    pool = [
        ("drain, success deleted: CPU ÷ Graphile Worker's", "≤", 0.5, ratio("C", one, "cpu", "graphile-worker", "pyworker, deleted")),
        ("drain, history kept: CPU ÷ Graphile Worker's", "≤", 0.65, ratio("C", one, "cpu", "graphile-worker")),
        ("drain, one process: jobs/s ÷ the best peer's", "≥", 1.5, lambda: m("C", one, "pyworker", "jobs_s") / best("C", one, "jobs_s")),
        ("drain, two processes: jobs/s ÷ the best peer's", "≥", 1.5, lambda: m("C", two, "pyworker", "jobs_s") / best("C", two, "jobs_s")),
        ("drain: CPU ÷ a bare loop over the same functions", "≤", 1.6, ratio("C", one, "cpu", "functions, 500")),
        ("add_job: server CPU ÷ Graphile Worker's", "≤", 0.3, ratio("A", sql, "server", "graphile-worker")),
        ("add_job: server CPU ÷ a plain INSERT's", "≤", 2.5, ratio("A", sql, "server", "table, 100")),
        ("add_job, 32 connections: jobs/s ÷ Graphile Worker's", "≥", 4.0, ratio("A", many, "jobs_s", "graphile-worker")),
        ("the same by SQL alone", "≥", 4.0, ratio("A", "SQL, 32 connections", "jobs_s", "graphile-worker")),
        ("add_job, 32 connections: jobs/s ÷ the same without notifications", "≥", 0.85, within("A", at_it + "on", at_it + "off", "jobs_s")),
        ("add_jobs: CPU ÷ a plain INSERT … SELECT's", "≤", 4.0, ratio("B", "1,000 a call", "cpu", "table, 100")),
        ("latency, p50 ÷ the best peer's", "≤", 1.0, lambda: m("D", "20 jobs/s", "pyworker", "p50") / best("D", "20 jobs/s", "p50")),
        ("latency, p99 ÷ the best peer's", "≤", 1.0, lambda: m("D", "20 jobs/s", "pyworker", "p99") / best("D", "20 jobs/s", "p99")),
        ("pinned xmin: jobs/s ÷ unpinned", "≥", 0.95, within("E", pinned, pinned.replace(" pinned", " unpinned"), "jobs_s")),
        ("pinned xmin, last fifth: jobs/s ÷ unpinned", "≥", 0.95, within("E", pinned, pinned.replace(" pinned", " unpinned"), "last_fifth")),
    ]  # fmt: skip
    for letter, base, operation, limit, metric in (
        ("F", "alone", "≥", 0.97, "jobs_s"), ("G", "plain add", "≤", 1.5, "cpu"), ("H", "plain add", "≤", 1.5, "cpu"),
        ("H", "fresh", "≤", 1.0, "cpu"),
    ):  # fmt: skip
        for group in groups(letter):
            if group != base and (base != "fresh" or group == "duplicates"):
                name = f"{letter}: {group}: {COLUMNS[metric][0]} ÷ {base}"
                pool.append((name, operation, limit, within(letter, group, base, metric)))
    plain, sequence, *_ = [*groups("I"), "", ""]
    return [
        *pool,
        (f"{sequence or 'sequences'}: jobs/s ÷ plain", "≥", 0.5, within("I", sequence, plain, "jobs_s")),
        *((f"memory, {part} (MB)", "≤", limit, lambda part=part: m("L", "resident, MB", "pyworker", part)) for part, limit in (("parent", 30), ("child", 60))),
        ("memory, growth over all jobs", "≤", 0.05, lambda: m("L", "resident, MB", "pyworker", "growth")),
    ]  # fmt: skip


def by_round(
    results: Results, groups: Callable[[str], list[str]]
) -> dict[tuple[str, str, float], list[float]]:
    """Each target's value in each round: the machine is more alike within a round than over all of them."""
    values: dict[tuple[str, str, float], list[float]] = {}
    for turn in range(results["rounds"]):
        found = medians(results | {"runs": [run for run in results["runs"] if run["round"] == turn]})
        for *target, find in targets(lambda *key, found=found: found[key[:3]][key[3]], groups):
            with suppress(KeyError, ZeroDivisionError):  # not measured this time
                value = find()
                values.setdefault(tuple(target), []).append(value)
    return values


def _size(group: str) -> int:
    return int(group.split()[0].replace(",", ""))


# -- text --------------------------------------------------------------------------------------------------------------


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---" if i < 2 else "---:" for i in range(len(head))], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def in_groups(letter: str, found: Medians) -> Medians:
    order = [key[1] for key in found if key[0] == letter]
    return dict(
        sorted(((k, v) for k, v in found.items() if k[0] == letter), key=lambda row: order.index(row[0][1]))
    )


def scenario_table(letter: str, found: Medians) -> str:
    rows = in_groups(letter, found)
    columns = [
        name
        for name in COLUMNS
        if any(name in values and not math.isnan(values[name]) for values in rows.values())
    ]
    compared = [name for name in ("jobs_s", "cpu", "p50") if name in columns]
    against = {"best peer": PEERS, "floor": FLOOR}
    against = {what: names for what, names in against.items() if any(key[2] in names for key in rows)}
    text = []
    for (_, group, name), values in rows.items():
        line = [
            group,
            name,
            *(
                format(values[c], COLUMNS[c][1]) if not math.isnan(values.get(c, math.nan)) else ""
                for c in columns
            ),
        ]
        for what, names in against.items():
            for metric in compared:
                others = [
                    v[metric]
                    for k, v in rows.items()
                    if k[1] == group
                    and k[2] in names
                    and k[2] != name
                    and metric in v
                    and not (name in FLOOR and what == "floor")
                ]
                ratio = (
                    values.get(metric, math.nan) / BETTER[metric](others)
                    if others and BETTER[metric](others)
                    else math.nan
                )
                line.append("" if math.isnan(ratio) else f"{ratio:.2f}")
        text.append(line)
    head = [
        "",
        "",
        *(COLUMNS[c][0] for c in columns),
        *(f"{COLUMNS[c][0]} ÷ {what}" for what in against for c in compared),
    ]
    return table(head, text)


def write(results: Results, out: Path) -> None:
    found = medians(results)
    groups = lambda letter: list(dict.fromkeys(key[1] for key in found if key[0] == letter))
    lines = [
        "# pyworker and its peers on one PostgreSQL", "",
        f"{results['began']}, {results['machine']['cores']} cores of {results['machine']['cpu']}, {results['machine']['system']}, "
        f"Python {results['machine']['python']}. Medians of {results['rounds']} interleaved rounds; a drain is {results['jobs']:,} jobs where nothing else is said."
        f" The host took {statistics.median(run.get('stolen', 0.0) for run in results['runs']):.1%} of the CPU, at most {max(run.get('stolen', 0.0) for run in results['runs']):.0%}.",
        "", "client, server, CPU (their sum): CPU seconds per 1,000 jobs. What is measured how: bench/README.md.", "",
        "PostgreSQL: " + ", ".join(f"{name} {value}" for name, value in sorted(results["settings"].items())), "",
    ]  # fmt: skip
    lines += ["## Targets", ""]
    verdicts = []
    for (text, operation, limit), values in by_round(results, groups).items():
        value = statistics.median(values)
        met = value <= limit if operation == "≤" else value >= limit
        spread = f"{min(values):.2f} to {max(values):.2f}" if len(values) > 1 else ""
        verdicts.append(
            [text, f"{operation} {limit:g}", f"{value:.3f}", spread, "met" if met else "**not met**"]
        )
    lines += [
        table(["", "target", "median of the rounds", "all", ""], verdicts)
        if verdicts
        else "None was measured.",
        "",
    ]
    for letter in SCENARIOS:
        if any(key[0] == letter for key in found):
            lines += [f"## {letter}. {SCENARIOS[letter][0]}", "", scenario_table(letter, found)]
            if picture := plot(letter, found, results, out):
                lines += [f"![]({picture})", ""]
    took_part = {key[2] for key in found}
    lines += ["## Settings", "", table(["", ""], [[name, version_of(name) + c.settings + (f"; {c.share:g} of a drain's jobs" if c.share < 1 else "")] for name, c in CONTENDERS.items() if name in took_part])]  # fmt: skip
    failed = [
        f"- {r['scenario']} {r['group']}, {r['contender']}: {r['error'].strip().splitlines()[-1]}"
        for r in results["runs"]
        if "error" in r
    ]
    failed += [f"- {name}: {why}" for name, why in results["missing"].items()]
    if failed:
        lines += ["## Failed", "", *failed, ""]
    (out / "report.md").write_text("\n".join(lines))


# -- pictures ----------------------------------------------------------------------------------------------------------


def plot(letter: str, found: Medians, results: Results, out: Path) -> str | None:
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return None
    rows = in_groups(letter, found)
    if letter == "N":  # one contender: its groups beside each other
        rows = {(letter, "pyworker", key[1]): values for key, values in rows.items() if "jobs_s" in values}
    groups = list(dict.fromkeys(key[1] for key in rows))
    if letter == "L":
        figure, axes = pyplot.subplots(figsize=(8, 4))
        for run in results["runs"]:
            if run["scenario"] == "L" and "series" in run and run["round"] == 0:
                for i, line in enumerate(zip(*run["series"], strict=True)):
                    axes.plot(
                        line,
                        label=f"{run['contender']} {'parent' if i == 0 and len(run['series'][0]) > 1 else 'worker'}",
                    )
        axes.set(xlabel="drains", ylabel="resident MB", ylim=(0, None))
        axes.legend()
    else:
        parts = {"D": ("p50", "p95", "p99"), "E": ("first_fifth", "last_fifth")}.get(
            letter, ("jobs_s", "client", "server")
        )
        figure, grid = pyplot.subplots(len(groups), 2 if parts[0] == "jobs_s" else 1, squeeze=False, figsize=(11, 1.2 + sum(0.4 + 0.3 * sum(k[1] == g for k in rows) for g in groups)))  # fmt: skip
        for group, cells in zip(groups, grid, strict=True):
            names = [key[2] for key in rows if key[1] == group][::-1]
            colors = [
                "#1b6" if n.startswith("pyworker") else "#aaa" if n in FLOOR + FUNCTIONS else "#47a"
                for n in names
            ]

            def value(metric: str, group: str = group, names: list[str] = names) -> list[float]:
                return [rows[letter, group, n].get(metric, 0.0) for n in names]

            cells[0].set_title(group, fontsize=9)
            if parts[0] == "jobs_s":
                cells[0].barh(names, value("jobs_s"), color=colors)
                cells[0].set_xlabel("jobs/s", fontsize=8)
                cells[1].barh(names, value("client"), color="#fb5", label="client")
                cells[1].barh(names, value("server"), left=value("client"), color="#a52", label="server")
                cells[1].set_xlabel("CPU seconds per 1,000 jobs", fontsize=8)
                totals = value("cpu")
                cells[1].set_xlim(
                    0, min(max(totals), 10 * statistics.median(totals)) * 1.1
                )  # the slowest run out of it
                cells[1].legend(fontsize=7)
            else:
                for i, part in enumerate(reversed(parts)):
                    places = [y + i * 0.8 / len(parts) for y in range(len(names))]
                    cells[0].barh(places, value(part), height=0.8 / len(parts), label=COLUMNS[part][0], tick_label=names if i == 1 else None)  # fmt: skip
                cells[0].legend(fontsize=7)
            for cell in cells:
                cell.tick_params(labelsize=8)
    figure.suptitle(f"{letter}. {SCENARIOS[letter][0]}", fontsize=10)
    figure.tight_layout()
    for kind in ("png", "svg"):
        figure.savefig(out / f"{letter}.{kind}", dpi=120)
    pyplot.close(figure)
    return f"{letter}.png"


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    write(json.loads((directory / "results.json").read_text()), directory)
