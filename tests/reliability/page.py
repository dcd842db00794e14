"""Writes what histories show into docs/reliability.md, between its markers."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from textwrap import wrap

from tests.reliability.history import digest, found, lines
from tests.reliability.judge import PROMISES, History, Recovery, figures, recoveries, verdicts

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- made by make report -->", "<!-- end -->"
FAULTS = {
    "kill": "`kill -9` of a worker",
    "freeze": "a worker suspended for 28 s",
    "stop": "SIGTERM of a worker",
    "server": "immediate stop of PostgreSQL",
    "sessions": "all sessions terminated",
    "network": "all connections reset",
    "producer": "`kill -9` of a producer",
}


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    head = list(head)
    yield f"| {' | '.join(head)} |".replace("|  |", "| |")
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def item(text: str, indent: str = "") -> list[str]:
    """A line of a list, wrapped."""
    return wrap(text, 100, initial_indent=f"{indent}- ", subsequent_indent=f"{indent}  ")


def promises(histories: dict[str, History]) -> Iterator[str]:
    judged = {name: {v.promise: v for v in verdicts(h)} for name, h in histories.items()}

    def cell(name: str, promise: str) -> str:
        verdict = judged[name][promise]
        if verdict.found:
            return f"**violated**, {len(verdict.found)}"
        if verdict.judged:
            return "held"
        return "too short a run" if promise.startswith("a dead") else "not offered"

    yield from table(["", *histories], ([p, *(cell(name, p) for name in histories)] for p in PROMISES))


def again(it: Recovery) -> str:
    parts = []
    if it.again:
        parts.append(f"{statistics.median(it.again):.1f} s, worst {max(it.again):.1f} s, of {len(it.again)}")
    if it.not_again:
        many = "1 job" if len(it.not_again) == 1 else f"{len(it.not_again)} jobs"
        parts.append(f"{many} not within {min(it.not_again):.0f} to {max(it.not_again):.0f} s")
    if it.stayed:
        parts.append(f"{it.stayed} ended where they were, after the pause")
    return "; ".join(parts) or "nothing was running"


def recovered(histories: dict[str, History]) -> Iterator[str]:
    seen = {name: {r.name: r for r in recoveries(h)} for name, h in histories.items()}
    yield "What had been running began again elsewhere, median and worst, after:\n"
    for name, by_fault in seen.items():
        yield from item(f"**{name}**, documented: {histories[name].about['recovery']}.")
        for fault in ("kill", "freeze"):
            told = again(by_fault[fault]) if fault in by_fault else "not done"
            yield from item(f"{FAULTS[fault]}: {told}.", "  ")
    yield ""
    yield "The next job that was begun and done after the fault, by any worker: seconds, median and worst,"
    yield "and of how many faults:\n"
    rows = []
    for fault, told in FAULTS.items():
        cells = []
        for by_name in seen.values():
            it = by_name.get(fault)
            cells.append(
                f"{statistics.median(it.next_done):.1f}, {max(it.next_done):.1f} ({it.times})"
                if it and it.next_done
                else "not done"
            )
        rows.append([told, *cells])
    yield from table(["", *histories], rows)


def counted(histories: dict[str, History]) -> Iterator[str]:
    numbers = {name: figures(h) for name, h in histories.items()}
    what = next(iter(numbers.values()))
    yield from table(["", *histories], ([w, *(str(n[w]) for n in numbers.values())] for w in what))


def facts(paths: dict[str, Path], histories: dict[str, History]) -> Iterator[str]:
    first = next(iter(histories.values())).about
    yield f"PostgreSQL {first['postgres']}, {first['machine']}, {first['began'][:10]}.\n"
    for name, h in histories.items():
        yield from item(f"**{name}** {h.about['version']}: {h.about['settings']}")
    yield ""
    yield "```text"
    yield from (h.about["command"] for h in histories.values())
    yield "```\n"
    yield "The histories, with their SHA-256:\n"
    yield "```text"
    yield from (f"{digest(path)}  {path.name}" for path in paths.values())
    yield "```"


def report(paths: dict[str, Path], histories: dict[str, History]) -> str:
    parts = (
        ("### Promises", promises(histories)),
        ("### Recovery", recovered(histories)),
        ("### Counts", counted(histories)),
        ("### Who, how and with what", facts(paths, histories)),
    )
    return "\n".join(f"{title}\n\n" + "\n".join(lines_) for title, lines_ in parts)


def read(directory: Path) -> dict[str, History]:
    """pyworker first."""
    histories = {name: History(lines(path)) for name, path in found(directory).items()}
    return dict(sorted(histories.items(), key=lambda pair: (pair[0] != "pyworker", pair[0])))


def write(directory: Path, page: Path = PAGE) -> None:
    histories = read(directory)
    before, _, rest = page.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    made = report(found(directory), histories).strip()
    page.write_text(f"{before}{BEGIN}\n\n{made}\n\n{END}{after}", "utf-8")
