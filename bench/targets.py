"""The targets: what is promised as a ratio, and what each round shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from contenders import PEERS
from figures import BEST, COLUMNS, Medians, Results, groups_of, medians

Target = tuple[str, str, float]  # text, comparison, limit
Ask = Callable[[], float]  # raises KeyError where something was not measured


class Ratios:
    """Ratios of what was measured, each to be asked for later."""

    def __init__(self, found: Medians) -> None:
        self.found = found

    def value(self, letter: str, group: str, contender: str, metric: str) -> float:
        return self.found[letter, group, contender][metric]

    def best_peer(self, letter: str, group: str, metric: str) -> float:
        values = []
        for peer in PEERS:
            with suppress(KeyError):
                values.append(self.value(letter, group, peer, metric))
        if not values:
            raise KeyError(group)
        return BEST[metric](values)

    def to(self, other: str, letter: str, group: str, metric: str, ours: str = "pyworker") -> Ask:
        """pyworker's figure ÷ that of another contender."""
        return lambda: self.value(letter, group, ours, metric) / self.value(letter, group, other, metric)

    def to_best(self, letter: str, group: str, metric: str) -> Ask:
        """pyworker's figure ÷ the best peer's."""
        return lambda: self.value(letter, group, "pyworker", metric) / self.best_peer(letter, group, metric)

    def to_group(self, base: str, letter: str, group: str, metric: str) -> Ask:
        """pyworker's figure ÷ its own in another group."""
        return lambda: (
            self.value(letter, group, "pyworker", metric) / self.value(letter, base, "pyworker", metric)
        )


def drain_targets(ratios: Ratios) -> Iterator[tuple[str, str, float, Ask]]:
    one, two = "one process", "two processes"
    graphile, deleted = "graphile-worker", "pyworker, deleted"
    yield (
        "drain, success deleted: CPU ÷ Graphile Worker's",
        "≤",
        0.5,
        ratios.to(graphile, "C", one, "cpu", ours=deleted),
    )
    yield "drain, history kept: CPU ÷ Graphile Worker's", "≤", 0.65, ratios.to(graphile, "C", one, "cpu")
    yield "drain, one process: jobs/s ÷ the best peer's", "≥", 1.5, ratios.to_best("C", one, "jobs_s")
    yield "drain, two processes: jobs/s ÷ the best peer's", "≥", 1.5, ratios.to_best("C", two, "jobs_s")
    yield (
        "drain: CPU ÷ a bare loop over the same functions",
        "≤",
        1.6,
        ratios.to("functions, 500", "C", one, "cpu"),
    )


def add_targets(ratios: Ratios) -> Iterator[tuple[str, str, float, Ask]]:
    graphile, table = "graphile-worker", "table, 100"
    sql, many, own = "SQL, 1 connections", "SQL, 32 connections", "own client, 32 connections"
    notified = "SQL, 32 connections, with a worker, notifications on"
    silent = "SQL, 32 connections, with a worker, notifications off"
    yield (
        "add_job: server CPU ÷ Graphile Worker's",
        "≤",
        0.3,
        ratios.to(graphile, "A", sql, "server"),
    )
    yield "add_job: server CPU ÷ a plain INSERT's", "≤", 2.5, ratios.to(table, "A", sql, "server")
    yield (
        "add_job, 32 connections: jobs/s ÷ Graphile Worker's",
        "≥",
        4.0,
        ratios.to(graphile, "A", own, "jobs_s"),
    )
    yield "the same by SQL alone", "≥", 4.0, ratios.to(graphile, "A", many, "jobs_s")
    yield (
        "add_job, 32 connections: jobs/s ÷ the same without notifications",
        "≥",
        0.85,
        ratios.to_group(silent, "A", notified, "jobs_s"),
    )
    yield (
        "add_jobs: CPU ÷ a plain INSERT … SELECT's",
        "≤",
        4.0,
        ratios.to(table, "B", "1,000 a call", "cpu"),
    )


def latency_targets(ratios: Ratios) -> Iterator[tuple[str, str, float, Ask]]:
    for percentile in ("p50", "p99"):
        text = f"latency, {percentile} ÷ the best peer's"
        yield text, "≤", 1.0, ratios.to_best("D", "20 jobs/s", percentile)


def growth_targets(
    ratios: Ratios, groups: Callable[[str], list[str]]
) -> Iterator[tuple[str, str, float, Ask]]:
    pinned = max((group for group in groups("E") if group.endswith(" pinned")), key=_size, default="")
    unpinned = pinned.replace(" pinned", " unpinned")
    for part, metric in (("", "jobs_s"), (", last fifth", "last_fifth")):
        text = f"pinned xmin{part}: jobs/s ÷ unpinned"
        yield text, "≥", 0.95, ratios.to_group(unpinned, "E", pinned, metric)
    for letter, base, comparison, limit, metric in (
        ("F", "alone", "≥", 0.97, "jobs_s"),
        ("G", "plain add", "≤", 1.5, "cpu"),
        ("H", "plain add", "≤", 1.5, "cpu"),
        ("H", "fresh", "≤", 1.0, "cpu"),
    ):
        for group in groups(letter):
            if group != base and (base != "fresh" or group == "duplicates"):
                text = f"{letter}: {group}: {COLUMNS[metric][0]} ÷ {base}"
                yield text, comparison, limit, ratios.to_group(base, letter, group, metric)
    plain, sequence, *_ = [*groups("I"), "", ""]
    text = f"{sequence or 'sequences'}: jobs/s ÷ plain"
    yield text, "≥", 0.5, ratios.to_group(plain, "I", sequence, "jobs_s")


def memory_targets(ratios: Ratios) -> Iterator[tuple[str, str, float, Ask]]:
    for text, limit, part in (
        ("memory, parent (MB)", 30, "parent"),
        ("memory, child (MB)", 60, "child"),
        ("memory, growth over all jobs", 0.05, "growth"),
    ):
        yield text, "≤", limit, lambda part=part: ratios.value("L", "resident, MB", "pyworker", part)


def by_round(results: Results, found: Medians) -> dict[Target, list[float]]:
    """Each target's value in each round: the machine differs less within a round than between rounds."""

    def groups(letter: str) -> list[str]:
        return groups_of(letter, found)

    values: dict[Target, list[float]] = {}
    for number in range(results["rounds"]):
        runs = [run for run in results["runs"] if run["round"] == number]
        ratios = Ratios(medians(results | {"runs": runs}))
        for text, comparison, limit, ask in (
            *drain_targets(ratios),
            *add_targets(ratios),
            *latency_targets(ratios),
            *growth_targets(ratios, groups),
            *memory_targets(ratios),
        ):
            with suppress(KeyError, ZeroDivisionError):  # not measured in this round
                value = ask()
                values.setdefault((text, comparison, limit), []).append(value)
    return values


def _size(group: str) -> int:
    return int(group.split()[0].replace(",", ""))
