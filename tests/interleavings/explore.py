"""Tries the schedules of a pair of verbs: those with at most two switches that a session did not need.

A session is interrupted only before a step that meets a later step of the other one: one writes what
the other reads or writes. What does not meet can be reordered without a difference.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.interleavings.footprint import meet, shown_by
from tests.interleavings.oracle import Fault, Oracle
from tests.interleavings.schedule import Entry, Run, Switches
from tests.interleavings.stage import Stage

SWITCHES = 2


@dataclass(frozen=True)
class Case:
    """A pair of verbs, the state they begin from, their level, and how each transaction ends."""

    verbs: tuple[str, str]
    start: str
    level: str = "rc"
    hows: tuple[str, str] = ("commit", "commit")

    def id(self, first: int, switches: Switches) -> str:
        order = ".".join([f"{'AB'[first]}", *(f"{'AB'[n]}{count}" for n, count in switches)])
        return f"{'+'.join(self.verbs)}/{self.start}/{self.level}/{'-'.join(self.hows)}/{order}"


def parse(id: str) -> tuple[Case, int, Switches]:
    verbs, start, level, hows, order = id.split("/")
    first, *switches = order.split(".")
    a, b = verbs.split("+")
    c, d = hows.split("-")
    return (
        Case((a, b), start, level, (c, d)),
        "AB".index(first),
        tuple(("AB".index(switch[0]), int(switch[1:])) for switch in switches),
    )


@dataclass
class Found:
    """What the exploration of one case has come to."""

    case: Case
    schedules: int = 0
    unreduced: int = 0  # as many would be tried if each step met each other one
    faults: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


def together(a: Entry, b: Entry, unique: set[str]) -> bool:
    """Can it matter which of these two steps comes first?"""
    if a.ends is not None and b.ends is not None:
        return False
    if a.ends is not None:
        a, b = b, a
    if b.ends is not None:
        snapshot = any(how == "snapshot" for how, _ in a.touches)
        return (snapshot and bool(b.ends)) or shown_by(a.touches, b.ends)
    return meet(a.touches, b.touches, unique)


def branches(run: Run, switches: Switches, unique: set[str], known: list[list[Entry]]) -> Iterator[Switches]:
    """The schedules that leave this run by one more switch, after its last one."""
    trace = run.trace
    place = {(entry.session, entry.count): p for p, entry in enumerate(trace)}
    begin, interrupted = 0, None
    if switches:
        session, count = switches[-1]
        if (session, count) not in place:
            return  # the session took another way, and ended before
        begin, interrupted = place[session, count - 1] + 1, trace[place[session, count]]
    for p in range(begin + 1, len(trace)):
        entry = trace[p]
        if not entry.other_can or trace[p - 1].session != entry.session:
            continue
        # Else the interrupted step could as well have come first.
        if interrupted and not any(together(interrupted, e, unique) for e in trace[begin:p]):
            continue
        seen = max((e.count for e in trace[:p] if e.session != entry.session), default=-1)
        later = [e for e in trace[p + 1 :] if e.session != entry.session]
        later += [e for e in known[1 - entry.session] if e.count > seen]
        if any(together(entry, e, unique) for e in later):
            yield (*switches, (entry.session, entry.count))


def explore(stage: Stage, case: Case, bound: int = SWITCHES, stop: bool = False) -> Found:
    """All schedules of the case; with `stop`, until the first fault."""
    began = time.monotonic()
    oracle, found = Oracle(stage, case.verbs, case.start), Found(case)
    unique = stage.steps.catalog.unique
    known: list[list[Entry]] = [[], []]
    waiting: list[tuple[int, Switches]] = [(0, ()), (1, ())]
    runs: list[tuple[int, Switches, Run]] = []
    while waiting:
        for first, switches in waiting:
            run = stage.play(case.verbs, case.start, case.level, case.hows, first, switches)
            found.schedules += 1
            runs.append((first, switches, run))
            try:
                oracle.judge(run, case.level, case.hows)
            except Fault as fault:
                found.faults[case.id(first, switches)] = str(fault)
                if stop:
                    return found
        if not found.unreduced:
            for _, _, run in runs:
                for entry in run.trace:
                    known[entry.session].append(entry)
            a, b = (sum(e.session == n for e in runs[0][2].trace) - 1 for n in (0, 1))
            found.unreduced = 2 + a + b + 2 * a * b
        waiting = [
            (first, more)
            for first, switches, run in runs
            if len(switches) < bound
            for more in branches(run, switches, unique, known)
        ]
        runs = []
    found.seconds = time.monotonic() - began
    return found
