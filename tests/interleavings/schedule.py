"""One schedule: an order of the statements of two sessions, and its run.

A schedule names the session that begins, and at most a few places at which the other one takes over
although the first could go on: `A7.B3` means that A makes 7 steps, then B until it has made 3, then
A. Where a session waits for a lock, ends, or has just been let go, the other one takes over by itself.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.interleavings.footprint import Footprint, writes
from tests.interleavings.rewrite import Rewritten
from tests.interleavings.sessions import STUCK, Answer, Session, Stuck

Switches = tuple[tuple[int, int], ...]  # (session, its steps until then)


@dataclass
class Entry:
    """One step as it was made."""

    session: int
    count: int  # how many steps the session had made before
    name: str  # function:line, or call, commit, rollback
    text: str
    touches: Footprint
    ends: frozenset[str] | None  # of the end of a transaction: the tables that it wrote
    other_can: bool  # the other session could have moved instead
    forced: bool  # the session before it was blocked or had ended
    changes: list[object] = field(default_factory=list)
    blocked: bool = False


@dataclass
class Run:
    trace: list[Entry]
    answers: list[list[Answer]]  # of each session, one for each statement
    notified: bool = False  # worker 3, since it looked last
    told: float | None = None  # when to look again, if it has looked
    taken: Counter[str] = field(default_factory=Counter)  # what it would have claimed then


@dataclass
class Actor:
    """A session and what it is to do in one transaction."""

    session: Session
    level: str
    script: list[str]
    end: int  # the position of its commit or rollback
    done: bool = False
    next: int = 0  # in the script
    count: int = 0
    wrote: frozenset[str] = frozenset()
    began: bool = False
    answers: list[Answer] = field(default_factory=list)

    def begin(self) -> None:
        self.session.run(f"begin isolation level {self.level}")

    def upcoming(self, steps: Rewritten) -> tuple[str, str, Footprint, frozenset[str] | None]:
        at = self.session.at
        if at is not None:
            step = steps.steps[at]
            touches = step.touches
            if self.level != "read committed" and self.next <= self.end:
                # Its snapshot is that of the first call; what was committed since can only be in the way.
                touches = frozenset(t for t in touches if t[0] != "read")
            if not self.began and writes(touches):
                touches |= {("begin", "transactions")}
            return f"{step.function}:{step.line}", step.text, touches, None
        statement = self.script[self.next]
        if self.next == self.end:
            return statement, statement, frozenset(), self.wrote if statement == "commit" else frozenset()
        first = self.level != "read committed" and self.next == 0
        return "call", statement, frozenset({("snapshot", "*")} if first else ()), None

    def advance(self, steps: Rewritten) -> None:
        self.count += 1
        session = self.session
        if session.at is not None:
            written = writes(steps.steps[session.at].touches)
            self.wrote |= written
            self.began = self.began or bool(written)
            session.move()
        else:
            statement, self.next = self.script[self.next], self.next + 1
            session.send(statement)

    def settled(self) -> None:
        """Its session has stopped: between two statements it may have come to the end."""
        if not self.session.active and self.next > len(self.answers):
            self.answers.append(self.session.answer)
            if self.session.answer.sqlstate and self.next < self.end:
                self.next = self.end  # the transaction has failed
            self.done = self.next == len(self.script)


def play(
    actors: list[Actor], steps: Rewritten, first: int, switches: Switches, ended: Callable[[Run], None]
) -> Run:
    """Runs one schedule from its beginning to the end of both transactions; calls `ended` at each end."""
    for actor in actors:
        actor.begin()
    run = Run([], [actor.answers for actor in actors])
    current, left, forced = first, list(switches), False
    while not all(actor.done for actor in actors):
        me, other = actors[current], actors[1 - current]
        if me.done or me.session.blocked:
            if other.done or other.session.blocked:
                await_either(actors)
                continue
            current, forced = 1 - current, True
            continue
        can = not other.done and not other.session.blocked
        if left and can and left[0] == (current, me.count):
            left.pop(0)
            current = 1 - current
            continue
        name, text, touches, ends = me.upcoming(steps)
        entry = Entry(current, me.count, name, text, touches, ends, can, forced)
        run.trace.append(entry)
        forced = False
        me.session.changes = []
        me.advance(steps)
        me.session.settle([other.session])
        entry.blocked = me.session.blocked
        me.settled()
        if other.session.blocked:
            other.session.settle([me.session])
            other.settled()
        entry.changes = me.session.changes
        if ends is not None:
            ended(run)
    return run


def await_either(actors: list[Actor]) -> None:
    """Both wait for each other: the server ends one wait, by a timeout or as a deadlock."""
    deadline = time.monotonic() + STUCK
    while all(actor.done or actor.session.blocked for actor in actors):
        for n, actor in enumerate(actors):
            if not actor.done:
                actor.session.settle([actors[1 - n].session])
                actor.settled()
        if time.monotonic() > deadline:
            raise Stuck("both sessions wait, and no wait ends")
