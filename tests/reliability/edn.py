"""Writes a history as EDN, one operation a line, for checkers that others have written.

queue.edn        for jepsen.checker/total-queue: an add is an :enqueue, a run of a handler a :dequeue. A
                 rolled-back add is a :fail. The checker takes a :fail for an attempt, so it does not notice
                 if such a job ran; the next file is for that
list-append.edn  for Elle's elle.list-append (elle-cli --model list-append --consistency-models
                 strict-serializable): an add is a transaction that appends its number to a list, the list of
                 its sequence or a list of its own. In the end an observer reads each list: a sequence's in
                 the order in which its jobs first began, else each begin of a job that may begin once, each
                 row of one whose effect happens once, and of the others that they ran. A rolled-back add in a
                 list is G1a, a second run a duplicate element, a lost one and a wrong order are cycles with
                 real time. What the queue still has to run in the end is not read

A process of these checkers does one thing after the other, and none after an :info; so calls and handlers get
numbers of their own.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.reliability.judge import History

PHASES = {"ok": ":ok", "rolled back": ":fail", "abandoned": ":fail", "unknown": ":info"}
Span = tuple[float, float, str, str, str, str]  # begin, end, type, f, value at begin and at end


class Lanes:
    """The smallest number of a process that is free."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._busy: list[tuple[float, int]] = []
        self._next = 0

    def take(self, begin: float, end: float, for_good: bool) -> int:
        while self._busy and self._busy[0][0] < begin:
            heapq.heappush(self._free, heapq.heappop(self._busy)[1])
        if self._free:
            lane = heapq.heappop(self._free)
        else:
            lane, self._next = self._next, self._next + 1
        if not for_good:
            heapq.heappush(self._busy, (end, lane))
        return lane


def operations(spans: list[Span]) -> Iterator[str]:
    lanes, told = Lanes(), []
    for begin, end, kind, f, asked, answer in sorted(spans):
        lane = lanes.take(begin, end, kind == ":info")
        told += [(begin, 1, lane, ":invoke", f, asked), (end, 0, lane, kind, f, answer)]
        if begin == end:
            told[-1] = (end, 2, lane, kind, f, answer)
    for index, (t, _, lane, kind, f, value) in enumerate(sorted(told)):
        yield (
            f"{{:index {index}, :time {int(t * 1e9)}, :process {lane}, :type {kind}, :f {f}, :value {value}}}"
        )


def _adds(h: History) -> Iterator[tuple[int, dict[str, Any], float, str]]:
    for op, add in h.adds.items():
        outcome = h.outcomes.get(op, {})
        yield op, add, max(outcome.get("t", h.until), add["t"]), PHASES[h.phase(op)]


def queue(h: History) -> Iterator[str]:
    spans: list[Span] = []
    for op, add, end, kind in _adds(h):
        if add["kind"] != "unique":  # many adds, one job
            spans.append((add["t"], end, kind, ":enqueue", str(op), str(op)))
    for op, starts in h.starts.items():
        if h.adds.get(op, {}).get("kind") != "unique":
            for start in starts:
                ended = any(end["attempt"] == start["attempt"] and end["process"] == start["process"]
                            for end in h.ends[op])  # fmt: skip
                kind, value = (":ok", str(op)) if ended else (":info", "nil")
                spans.append((start["t"], h.end_of(start), kind, ":dequeue", "nil", value))
    return operations(spans)


def _list_of(op: int, add: dict[str, Any]) -> str:
    return f'"{add["key"]}"' if add["kind"] == "sequence" else f'"job {op}"'


def lists(h: History) -> dict[str, list[int]]:
    """What the observer reads."""
    found: dict[str, list[int]] = {}
    waiting: set[str] = set()
    for op, add in sorted(
        h.adds.items(), key=lambda pair: min((s["t"] for s in h.starts[pair[0]]), default=0)
    ):
        if add["kind"] == "unique":
            continue
        name, starts, kind = _list_of(op, add), len(h.starts[op]), add["kind"]
        times = {"once": starts, "effect": h.effects[op]}.get(kind, min(starts, 1))
        found.setdefault(name, []).extend([op] * times)
        if op in h.left and not times:
            waiting.add(name)
    return {name: ops for name, ops in found.items() if name not in waiting}


def list_append(h: History) -> Iterator[str]:
    spans: list[Span] = []
    for op, add, end, kind in _adds(h):
        if add["kind"] != "unique":
            call = f"[[:append {_list_of(op, add)} {op}]]"
            spans.append((add["t"], end, kind, ":txn", call, call))
    for n, (name, ops) in enumerate(lists(h).items(), 1):
        value, at = f"[{' '.join(map(str, ops))}]", h.until + n
        spans.append((at, at + 0.5, ":ok", ":txn", f"[[:r {name} nil]]", f"[[:r {name} {value}]]"))
    return operations(spans)


def export(h: History, directory: Path) -> list[Path]:
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for name, told in (("queue", queue(h)), ("list-append", list_append(h))):
        written.append(directory / f"{name}.edn")
        written[-1].write_text("".join(f"{line}\n" for line in told))
    return written
