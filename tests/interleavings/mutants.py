"""Which mutants of the SQL (tests/mutants) does the exploration notice by itself?

A mutant that changes what one session does alone changes the serial orders as well, so only the
invariants could notice it. The others take away a lock, a second look or a notification.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.interleavings.cases import cases
from tests.interleavings.explore import Case, explore
from tests.interleavings.schedule import play
from tests.interleavings.stage import Stage
from tests.interleavings.verbs import VERBS
from tests.mutants import MUTANTS, Mutant, functions

SECONDS = 60.0  # for one mutant
NEXT = re.compile(r"(?m)^(?:create |comment on|drop |do )")
# Mutants of which each test is one of races.
CONCURRENT = [mutant for mutant in MUTANTS if all(test.startswith("races/") for test in mutant.tests)]


def apply(conn: Any, mutant: Mutant) -> None:
    """Makes the mutant's function in this database."""
    ((path, start, end),) = mutant.places()
    text = path.read_text("utf-8")
    text = text[:start] + mutant.put + text[end:]
    begin = max(p for _, p, _ in functions()[mutant.function] if p <= start)
    following = NEXT.search(text, begin + 10)
    conn.execute("set search_path = pyworker, pg_temp")
    conn.execute(text[begin : following.start() if following else len(text)])
    conn.execute("reset search_path")


@contextmanager
def mutated(url: str, mutant: Mutant | None) -> Iterator[Stage]:
    """A stage on a copy of the database, with this mutant in it."""
    name = "pyworker_interleavings"
    with psycopg.connect(url, autocommit=True) as conn:
        copy, of = sql.Identifier(name), sql.Identifier(conn.info.dbname + "_template")
        conn.execute(sql.SQL("drop database if exists {} with (force)").format(copy))
        conn.execute(sql.SQL("create database {} template {}").format(copy, of))
    there = make_conninfo(url, dbname=name)
    if mutant:
        with psycopg.connect(there, autocommit=True) as conn:
            apply(conn, mutant)
    it = Stage(there)
    try:
        yield it
    finally:
        it.close()


def ran_by(it: Stage) -> dict[tuple[str, str], set[str]]:
    """The functions that each verb runs, from each state, with another one beside it that does nothing."""
    found = {}
    for verb, start in product(VERBS, ("waiting", "running", "dead", "ended")):
        if start in VERBS[verb].starts:
            it.restore(start)
            run = play([it.actor(0, verb, "rc", "commit")], it.steps, 0, (), lambda run: None)
            found[verb, start] = {entry.name.partition(":")[0] for entry in run.trace}
    return found


def callers(it: Stage, name: str) -> set[str]:
    """The functions with steps that call this one, or that itself if it has steps."""
    stepped = {step.function for step in it.steps.steps.values()}
    found, waiting = set(), {name}
    while waiting:
        one = waiting.pop()
        if one in found:
            continue
        found.add(one)
        if one not in stepped:
            waiting |= {
                f.name
                for f in it.steps.catalog.functions
                if re.search(rf"\b{one}\(", f.body) and f.name != one
            }
    return found & stepped


def chosen(it: Stage, mutant: Mutant, ran: dict[tuple[str, str], set[str]]) -> list[Case]:
    """The cases in which it can matter, the likeliest first."""
    names = callers(it, mutant.function)
    levels = ["rr", "rc"] if "old snapshot" in mutant.name else ["rc", "rr"]
    reached = any(functions & names for functions in ran.values())
    ranked = []
    for case in cases([], levels, ["commit-commit", "rollback-commit", "commit-rollback"]):
        touched = [bool(ran[verb, case.start] & names) for verb in case.verbs]
        if any(touched) or not reached:  # else it is reached only by two sessions at once
            ranked.append((levels.index(case.level), case.hows != ("commit", "commit"), -sum(touched), case))
    ranked.sort(key=lambda item: item[:3])
    return [item[-1] for item in ranked]


def judged(url: str, mutant: Mutant, ran: dict[tuple[str, str], set[str]]) -> tuple[str | None, str, float]:
    """The schedule that notices it, why, and after how many seconds."""
    began, schedules = time.monotonic(), 0
    with mutated(url, mutant) as it:
        for case in chosen(it, mutant, ran):
            found = explore(it, case, stop=True)
            schedules += found.schedules
            for id, fault in found.faults.items():
                return id, fault.splitlines()[0], time.monotonic() - began
            if time.monotonic() - began > SECONDS:
                break
    return None, f"{schedules} schedules", time.monotonic() - began


def run(url: str, names: list[str]) -> int:
    with mutated(url, None) as it:
        ran = ran_by(it)
    survived = 0
    for mutant in MUTANTS if names else CONCURRENT:
        if names and not any(mutant.name.startswith(name) for name in names):
            continue
        id, why, seconds = judged(url, mutant, ran)
        survived += id is None
        print(
            f"{'killed' if id else 'SURVIVED':8}  {mutant.name}  {seconds:.0f} s  {id or ''}  {why[:160]}",
            flush=True,
        )
    return survived
