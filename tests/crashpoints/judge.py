"""What must hold after each crash: of the rows, and of all that the sessions do next."""

from __future__ import annotations

from random import Random
from typing import Any

import psycopg

from tests.crashpoints.aftermath import Aftermath
from tests.crashpoints.crash import Wreck, answered, expected, known, lost, must_be_kept
from tests.crashpoints.recording import UNLOGGED, Point, Recording, state_of
from tests.support import ROOT

INVARIANTS = (ROOT / "tests" / "invariants.sql").read_text("utf-8")


class Verdict:
    def __init__(self, point: Point) -> None:
        self.point, self.faults, self.story = point, list[str](), list[str]()

    def tell(self, line: str) -> None:
        self.story.append(line)

    def fault(self, what: str) -> None:
        self.faults.append(what)
        self.story.append(f"WRONG: {what}")


def judge(wreck: Wreck, point: Point, seed: int = 1, whole: bool = True, behind: int = 0) -> Verdict:
    """Crashes there, and judges what is left, and what comes after unless told not to.

    `seed`: which workers report before they are swept. `behind`: a standby takes over that was so many
    statements behind; what it had not received is lost, and no promise but that of the fence is left."""
    random = Random(seed * 1_000_003 + point.number)
    after = wreck.recording.points[point.number + 1 : point.number + 2]
    # Half of the next record at most: the last bytes of a record may be zero, as is what was not written.
    torn = random.randrange(after[0].record.length // 2) if after else 0
    verdict = Verdict(point)
    if not behind:
        acknowledged(wreck.recording, point, verdict)
    with wreck.crashed(point, torn) as server, psycopg.connect(server.url(), autocommit=True) as conn:
        rows(conn, wreck.recording, point, verdict)
        violations(conn, verdict, "after the crash", but="I1")  # the script's clock has run ahead of sweeps
        if whole:
            told = known(wreck.recording, point, behind)
            Aftermath(conn, told, verdict, random, behind > 0).live_through()
            violations(conn, verdict, "when all jobs have ended")
    return verdict


def acknowledged(recording: Recording, point: Point, verdict: Verdict) -> None:
    """What was answered is in the log, but for what docs/delivery.md leaves out."""
    told = answered(recording, point)
    for step in told:
        if lost(step, point):
            verdict.tell(f"lost, though it was answered: {step.name}")
            if must_be_kept(recording, step):
                verdict.fault(f"{step.name} was answered, and its commit is lost: {step.sql}")
    for step in recording.steps:
        if len(step.commits) > 1:
            verdict.fault(f"{step.name} has committed {len(step.commits)} times: {step.sql}")
    if told:
        verdict.tell(f"the last statement that was answered: {told[-1].name}")


def rows(conn: psycopg.Connection[Any], recording: Recording, point: Point, verdict: Verdict) -> None:
    """All tables are as the last commit in the log left them."""
    state, step = expected(recording, point)
    found = state_of(conn)
    verdict.tell(f"the last commit in the log: {step.name if step else 'none'}")
    for table in sorted(state.keys() | found.keys()):
        if state.get(table) != found.get(table):
            verdict.fault(f"{table} is not as {step.name if step else 'the beginning'} left it")
    for table in UNLOGGED:
        if conn.execute(f"select from pyworker.{table}").rowcount:  # type: ignore[arg-type]
            verdict.fault(f"{table} has rows")


def violations(conn: psycopg.Connection[Any], verdict: Verdict, when: str, but: str = "") -> None:
    with conn.transaction():
        conn.execute("set local search_path = pyworker, pg_temp")
        for row in conn.execute(INVARIANTS).fetchall():  # type: ignore[arg-type]
            if row[0] != but:
                verdict.fault(f"{when}, an invariant does not hold: {row}")
