"""One schedule: an order of the statements of two or three sessions, and its run.

A schedule names the session that begins, and a few places at which another one takes over:
`A.A7.B3` means that A makes 7 steps, then B until it has made 3, then A. Where a session has ended or
waits for a lock, the next one takes over by itself.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.interleavings.footprint import Footprint, writes
from tests.interleavings.rewrite import Rewritten
from tests.interleavings.sessions import ALL, STUCK, Answer, Session, Stuck

Switches = tuple[tuple[int, int, int], ...]  # (session, its steps until then, the session that takes over)


@dataclass
class Entry:
    """One step as it was made."""

    session: int
    count: int  # how many steps the session had made before
    name: str  # function:line, or call, commit, rollback
    text: str
    touches: Footprint
    ends: frozenset[str] | None  # of the end of a transaction: the tables that it wrote, or locked rows of
    able: frozenset[int]  # the other sessions that could have moved instead
    changes: list[Any] = field(default_factory=list)
    blocked: bool = False
    behind: frozenset[int] = frozenset()  # the sessions that it waits for
    awaits: tuple[str, int | None] | None = None  # the row for which it waits: its table, its id


@dataclass
class Run:
    trace: list[Entry]
    answers: list[list[Answer]]  # of each session, one for each statement
    moved: set[int] = field(default_factory=set)  # jobs that workers have let in meanwhile
    notified: bool = False  # worker 3, since it looked last
    told: float | None = None  # when to look again, if it has looked
    taken: Counter[str] = field(default_factory=Counter)  # what it would have claimed then
    knot: list[str] = field(default_factory=list)  # where sessions waited for each other

    def spans(self, session: int) -> list[tuple[int, int]]:
        """Of each of its transactions: the places in the trace of its call and of its end."""
        found, began = [], None
        for place, entry in enumerate(self.trace):
            if entry.session == session:
                began = place if began is None and entry.text != "begin" else began
                if entry.ends is not None and began is not None:
                    found.append((began, place))
                    began = None
        return found


@dataclass
class Actor:
    """A session and what it is to do, in one transaction or two."""

    session: Session
    level: str
    script: list[str]
    ends: tuple[int, ...]  # the positions of commit or rollback
    done: bool = False
    next: int = 0  # in the script
    count: int = 0
    wrote: frozenset[str] = frozenset()
    began: bool = False
    answers: list[Answer] = field(default_factory=list)

    @property
    def able(self) -> bool:
        return not self.done and not self.session.blocked

    def begin(self) -> None:
        self.session.run(f"begin isolation level {self.level}")

    def step(self, steps: Rewritten, id: int) -> tuple[str, str, Footprint, frozenset[str] | None]:
        """What it does in a step; it has made the steps before."""
        step = steps.steps[id]
        touches = step.touches
        if self.level != "read committed" and self.next <= self.ends[0]:
            # Its snapshot is that of the first call; what was committed since can only be in the way.
            touches = frozenset(t for t in touches if t[0] != "read")
        written = writes(step.touches)
        if not self.began and writes(touches):
            touches |= {("begin", "transactions")}
        self.count, self.wrote, self.began = self.count + 1, self.wrote | written, self.began or bool(written)
        return f"{step.function}:{step.line}", step.text, touches, None

    def statement(self) -> tuple[str, str, Footprint, frozenset[str] | None]:
        """What it does by its next statement, up to the first step."""
        if self.next - 1 in self.ends:
            self.wrote, self.began = frozenset(), False
        statement, position = self.script[self.next], self.next
        self.count, self.next = self.count + 1, self.next + 1
        if position in self.ends:
            return statement, statement, frozenset(), self.wrote
        first = self.level != "read committed" and position == 0
        return "call", statement, frozenset({("snapshot", "*")} if first else ()), None

    def settled(self) -> None:
        """Its session has stopped: between two statements it may have come to the end."""
        if not self.session.active and self.next > len(self.answers):
            self.answers.append(self.session.answer)
            if self.session.answer.sqlstate and self.next - 1 not in self.ends:  # the transaction has failed
                self.next = next((end for end in self.ends if end >= self.next), self.next)
            self.done = self.next == len(self.script)


def play(
    actors: list[Actor], steps: Rewritten, first: int, switches: Switches, ended: Callable[[Run], None]
) -> Run:
    """Runs one schedule from its beginning to the end of both transactions; calls `ended` at each end."""
    for actor in actors:
        actor.begin()
    run = Run([], [actor.answers for actor in actors])
    current, left = first, list(switches)
    while not all(actor.done for actor in actors):
        me = actors[current]
        able = [
            n % len(actors) for n in range(current + 1, current + len(actors)) if actors[n % len(actors)].able
        ]
        if left and left[0][:2] == (current, me.count) and left[0][2] in able:
            current = left.pop(0)[2]
        elif me.able:
            most = ALL
            if any(actor.session.blocked for actor in actors):
                most = 1  # one that waits may go on after any of them
            elif left and left[0][0] == current and left[0][1] > me.count:
                most = left[0][1] - me.count
            make_steps(run, actors, current, steps, frozenset(able), most)
            if run.trace[-1].ends is not None:
                ended(run)
        elif able:
            current = able[0]
        elif not look_again(actors):  # one that waited for a place in a queue may go on by now
            run.knot = run.knot or [waiting(run, n) for n, actor in enumerate(actors) if not actor.done]
            await_any(actors)
    return run


def make_steps(
    run: Run, actors: list[Actor], n: int, steps: Rewritten, able: frozenset[int], most: int
) -> None:
    """Lets a session make so many steps at most, of one statement."""
    me, at = actors[n], actors[n].session.at
    others = [actor.session for actor in actors if actor is not me]
    first = Entry(n, me.count, *(me.statement() if at is None else me.step(steps, at)), able)
    if at is None:
        me.session.send(first.text, most)
    else:
        me.session.move(most)
    me.session.settle(others)
    made = [first]
    for id in me.session.noticed if me.session.at is None else me.session.noticed[:-1]:
        made.append(Entry(n, me.count, *me.step(steps, id), able))
    for entry, changes in zip(made, me.session.changes, strict=False):
        entry.changes = changes
    run.trace += made
    if me.session.blocked:
        made[-1].blocked = True
        made[-1].behind = frozenset(
            m for m, actor in enumerate(actors) if actor.session.pid in me.session.blockers
        )
        made[-1].awaits = me.session.controller.awaited(me.session.pid)
    me.settled()
    for actor in actors:
        if actor is not me and actor.session.blocked:
            actor.session.settle([x.session for x in actors if x is not actor])
            actor.settled()


def waiting(run: Run, n: int) -> str:
    """The step at which a session waits."""
    return next(f"{'ABC'[n]} at {entry.name}" for entry in reversed(run.trace) if entry.session == n)


def look_again(actors: list[Actor]) -> bool:
    """Looks who still waits; is there one that does not?"""
    for actor in actors:
        if not actor.done:
            actor.session.settle([x.session for x in actors if x is not actor])
            actor.settled()
    return any(actor.able for actor in actors) or all(actor.done for actor in actors)


def await_any(actors: list[Actor]) -> None:
    """All wait for each other: the server ends one wait, by a timeout or as a deadlock."""
    deadline = time.monotonic() + STUCK
    while not look_again(actors):
        if time.monotonic() > deadline:
            raise Stuck("all sessions wait, and no wait ends")
