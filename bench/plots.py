"""A plot of a scenario, as PNG and SVG."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from contenders import FLOOR, FUNCTIONS, PEERS
from figures import COLUMNS, Medians, Results, in_groups

# What the summary shows: scenario, group, and what the plot calls it.
SUMMARY = (
    ("A", "SQL, 1 connections", "an add by SQL"),
    ("A", "own client, 1 connections", "an add by its own client"),
    ("H", "fresh", "a unique add"),
    ("D", "steadily 100 jobs/s, 5 ms each", "100 jobs/s, added and run"),
    ("D", "steadily 300 jobs/s, 5 ms each", "300 jobs/s"),
    ("S", "1,000 jobs/s", "1,000 jobs/s"),
    ("S", "1,000 jobs/s, pinned", "the same, under an old snapshot"),
    ("C", "one process", "a drain"),
    ("C", "one process, without statistics", "the same, without statistics"),
    ("K", "mixed", "a mixture, with failures"),
    ("J", "1 MB", "payloads of 1 MB"),
)
PARTS = {"D": ("p50", "p95", "p99"), "E": ("first_fifth", "last_fifth")}  # the others: jobs/s and CPU


def plot(letter: str, title: str, found: Medians, results: Results, out: Path) -> str | None:
    """Returns the name of the PNG; None where matplotlib is not installed."""
    if (pyplot := _pyplot()) is None:
        return None
    figure = _memory(pyplot, results) if letter == "L" else _bars(pyplot, letter, found)
    figure.suptitle(f"{letter}. {title}", fontsize=10)
    return _save(pyplot, figure, out, letter)


def summary(found: Medians, out: Path) -> str | None:
    """All contenders at one look: what a job costs in each situation. None where too little was measured."""
    rows = {
        label: {name: row["cpu"] for (_, at, name), row in in_groups(letter, found).items() if at == group}
        for letter, group, label in SUMMARY
        if any(case[:2] == (letter, group) for case in found)
    }
    if len(rows) < 2 or (pyplot := _pyplot()) is None:
        return None
    figure, axes = pyplot.subplots(figsize=(9, 1.5 + 0.42 * len(rows)))
    for number, name in enumerate(("pyworker", *PEERS)):
        points = [(cpu[name], place) for place, cpu in enumerate(rows.values()) if cpu.get(name)]
        if points:
            style = (
                dict(marker="D", s=70, color="#1b6")
                if name == "pyworker"
                else dict(marker="osv^<>P"[number % 7], s=38, color=pyplot.get_cmap("tab10")(number))
            )
            axes.scatter(*zip(*points, strict=True), label=name, zorder=3, **style)
    axes.set(xscale="log", xlabel="CPU seconds per 1,000 jobs, clients and server together (less is better)")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_yticks(range(len(rows)), list(rows), fontsize=9)
    axes.invert_yaxis()
    axes.grid(axis="y", color="#ddd")
    axes.legend(fontsize=8, ncols=4, loc="lower center", bbox_to_anchor=(0.4, 1.0), frameon=False)
    return _save(pyplot, figure, out, "summary")


def _pyplot() -> Any:
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return None
    return pyplot


def _save(pyplot: Any, figure: Any, out: Path, name: str) -> str:
    figure.tight_layout()
    for kind in ("png", "svg"):
        figure.savefig(out / f"{name}.{kind}", dpi=120)
    pyplot.close(figure)
    return f"{name}.png"


def _memory(pyplot: Any, results: Results) -> Any:
    """Resident memory of each process after each drain of the first round."""
    figure, axes = pyplot.subplots(figsize=(8, 4))
    for run in results["runs"]:
        if run["scenario"] == "L" and "series" in run and run["round"] == 0:
            processes = list(zip(*run["series"], strict=True))
            names = ["parent", *["worker"] * (len(processes) - 1)] if len(processes) > 1 else ["worker"]
            for name, sizes in zip(names, processes, strict=True):
                axes.plot(sizes, label=f"{run['contender']} {name}")
    axes.set(xlabel="drains", ylabel="resident MB", ylim=(0, None))
    axes.legend()
    return figure


def _bars(pyplot: Any, letter: str, found: Medians) -> Any:
    """One row of plots for each group, one bar for each contender."""
    rows = in_groups(letter, found)
    if letter == "N":  # one contender: its groups take the place of contenders
        rows = {(letter, "pyworker", case[1]): row for case, row in rows.items() if "jobs_s" in row}
    groups: dict[str, dict[str, dict[str, float]]] = {}
    for (_, group, name), row in reversed(rows.items()):  # bars are drawn from the bottom
        groups.setdefault(group, {})[name] = row
    height = 1.2 + sum(0.4 + 0.3 * len(bars) for bars in groups.values())
    columns = 1 if letter in PARTS else 2
    figure, grid = pyplot.subplots(len(groups), columns, squeeze=False, figsize=(11, height))
    for (group, bars), cells in zip(reversed(groups.items()), grid, strict=True):
        cells[0].set_title(group, fontsize=9)
        if letter in PARTS:
            _several(cells[0], bars, PARTS[letter])
        else:
            _rate_and_cpu(cells, bars)
        for cell in cells:
            cell.tick_params(labelsize=8)
    return figure


def _rate_and_cpu(cells: Any, bars: dict[str, dict[str, float]]) -> None:
    names = list(bars)
    client, server, total, rate = (
        [row.get(metric, 0.0) for row in bars.values()] for metric in ("client", "server", "cpu", "jobs_s")
    )
    cells[0].barh(names, rate, color=[_color(name) for name in names])
    cells[0].set_xlabel("jobs/s", fontsize=8)
    cells[1].barh(names, client, color="#fb5", label="client")
    cells[1].barh(names, server, left=client, color="#a52", label="server")
    cells[1].set_xlabel("CPU seconds per 1,000 jobs", fontsize=8)
    cells[1].set_xlim(0, min(max(total), 10 * statistics.median(total)) * 1.1)  # cuts the slowest bars off
    cells[1].legend(fontsize=7)


def _several(cell: Any, bars: dict[str, dict[str, float]], parts: tuple[str, ...]) -> None:
    """Thin bars side by side for each contender; one of them bears its name."""
    height = 0.8 / len(parts)
    for number, part in enumerate(reversed(parts)):
        places = [place + number * height for place in range(len(bars))]
        values = [row.get(part, 0.0) for row in bars.values()]
        names = list(bars) if number == 1 else None
        cell.barh(places, values, height=height, label=COLUMNS[part][0], tick_label=names)
    cell.legend(fontsize=7)


def _color(name: str) -> str:
    return "#1b6" if name.startswith("pyworker") else "#aaa" if name in FLOOR + FUNCTIONS else "#47a"
