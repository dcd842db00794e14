"""Tries the schedules of a pair of verbs: those with at most two switches that a session did not need.

A session is interrupted only before a step that meets a later step of the other one: one writes what
the other reads or writes. What does not meet can be reordered without a difference.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from tests.interleavings.footprint import meet, shown_by
from tests.interleavings.oracle import Fault, Oracle, Outcomes
from tests.interleavings.schedule import Entry, Run, Switches

SWITCHES = 2
SAMPLE = 10  # schedules with one switch, and with two, where not all are tried


@dataclass(frozen=True)
class Case:
    """Verbs that meet, the state they begin from, their level, and how each transaction ends."""

    verbs: tuple[str, ...]
    start: str
    level: str
    hows: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{'+'.join(self.verbs)}/{self.start}/{self.level}/{'-'.join(self.hows)}"

    def id(self, first: int, switches: Switches) -> str:
        """Of two sessions it goes without saying which one takes over."""
        to = len(self.verbs) > 2
        order = [f"{'ABC'[n]}{count}{'ABC'[other] if to else ''}" for n, count, other in switches]
        return f"{self.name}/{'.'.join(['ABC'[first], *order])}"


def parse(id: str) -> tuple[Case, int, Switches]:
    verbs, start, level, hows, order = id.split("/")
    first, *switches = order.split(".")
    case = Case(tuple(verbs.split("+")), start, level, tuple(hows.split("-")))

    def switch(text: str) -> tuple[int, int, int]:
        n = "ABC".index(text[0])
        if len(case.verbs) > 2:
            return n, int(text[1:-1]), "ABC".index(text[-1])
        return n, int(text[1:]), 1 - n

    return case, "ABC".index(first), tuple(switch(text) for text in switches)


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
    if b.ends is not None and b.name == "rollback":  # it shows nothing, but frees what others pass over
        return any(how in ("add", "lock") and what in b.ends for how, what in a.touches)
    if b.ends is not None:
        snapshot = any(how == "snapshot" for how, _ in a.touches)
        return (snapshot and bool(b.ends)) or shown_by(a.touches, b.ends)
    return meet(a.touches, b.touches, unique)


def branches(
    run: Run, switches: Switches, used: int, unique: set[str], known: list[list[Entry]]
) -> Iterator[tuple[Switches, int]]:
    """The schedules that leave this run by one more switch, after its last one; and how many of their
    switches no session needed."""
    trace = run.trace
    place = {(entry.session, entry.count): p for p, entry in enumerate(trace)}
    begin, interrupted = 0, None
    if switches:
        session, count, _ = switches[-1]
        if (session, count - 1) not in place:
            return  # the session took another way, and ended before
        begin = place[session, count - 1] + 1
        if not trace[begin - 1].blocked and (session, count) in place:
            interrupted = trace[place[session, count]]
    for p in range(begin + 1, len(trace)):
        entry, before = trace[p], trace[p - 1]
        if before.session != entry.session:  # it was its turn: another one's, if there is a third
            yield from (
                ((*switches, (before.session, before.count + 1, other)), used)
                for other in entry.able - {before.session}
            )
            continue
        # Else the interrupted step could as well have come first.
        between = [e for e in trace[begin:p] if interrupted and e.session != interrupted.session]
        if interrupted and not any(together(interrupted, e, unique) for e in between):
            continue
        if used == SWITCHES:
            continue
        for other in entry.able:
            seen = max((e.count for e in trace[:p] if e.session == other), default=-1)
            later = [e for e in trace[p + 1 :] if e.session == other]
            later += [e for e in known[other] if e.count > seen]
            if any(together(entry, e, unique) for e in later):
                yield (*switches, (entry.session, entry.count, other)), used + 1


def unreduced(lengths: list[int]) -> int:
    """How many schedules with at most two such switches there are of sessions of so many steps, if every
    step were a place for a switch."""
    if len(lengths) > 2:
        return 0
    a, b = lengths[0] - 1, lengths[1] - 1
    return 2 + a + b + 2 * a * b


def explore(
    here: Outcomes,
    case: Case,
    stop: bool = False,
    chosen: Random | None = None,
    right: Outcomes | None = None,
    some: int = SAMPLE,
) -> Found:
    """All schedules of the case; with `stop`, until the first fault; with `chosen`, `some` at random
    of those with one switch, and of those with two.
    `right`: see Oracle."""
    began, stage = time.monotonic(), here.stage
    oracle, found = Oracle(here, case.verbs, case.start, right), Found(case)
    unique = stage.steps.catalog.unique
    n = len(case.verbs)
    known: list[list[Entry]] = [[] for _ in case.verbs]
    waiting: list[tuple[int, Switches, int]] = [(first, (), 0) for first in range(n)]
    while waiting:
        runs = []
        for first, switches, used in waiting:
            run = stage.play(case.verbs, case.start, case.level, case.hows, first, switches)
            found.schedules += 1
            runs.append((first, switches, used, run))
            try:
                oracle.judge(run, case.level, case.hows)
            except Fault as fault:
                found.faults[case.id(first, switches)] = str(fault)
                if stop:
                    return found
        if not found.unreduced:
            for *_, run in runs:
                for entry in run.trace:
                    known[entry.session].append(entry)
            found.unreduced = unreduced([sum(e.session == m for e in runs[0][-1].trace) for m in range(n)])
        waiting = [
            (first, *more)
            for first, switches, used, run in runs
            for more in branches(run, switches, used, unique, known)
        ]
        if chosen and len(waiting) > some:
            waiting = chosen.sample(waiting, some)
    found.seconds = time.monotonic() - began
    return found
