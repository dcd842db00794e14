"""Which mutants of the SQL (tests/mutants) does the exploration notice by itself?

The schedules run on the mutant, and their serial orders on the SQL without it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from math import prod
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.interleavings.cases import cases, part_of
from tests.interleavings.explore import Case, explore
from tests.interleavings.oracle import Outcomes
from tests.interleavings.schedule import play
from tests.interleavings.stage import Stage
from tests.interleavings.states import STARTS
from tests.interleavings.verbs import VERBS
from tests.mutants import MUTANTS, Mutant, functions

Ran = dict[tuple[str, str], list[str]]  # verb and state: the functions of its steps
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
def mutated(url: str, mutant: Mutant | None, name: str = "pyworker_interleavings") -> Iterator[Stage]:
    """A stage on a copy of the database, with this mutant in it."""
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


def ran_by(it: Stage) -> Ran:
    """The functions of the steps that each verb makes, from each state, with no other one beside it."""
    found = {}
    for verb, start in product(VERBS, STARTS):
        if start in VERBS[verb].starts:
            it.restore(start)
            run = play([it.actor(0, verb, "rc", "commit")], it.steps, 0, (), lambda run: None)
            found[verb, start] = [entry.name.partition(":")[0] for entry in run.trace]
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


def chosen(it: Stage, mutant: Mutant, ran: Ran) -> list[Case]:
    """The cases in which it can matter, the shortest first."""
    names = callers(it, mutant.function)
    levels = ["rr", "rc"] if "old snapshot" in mutant.name else ["rc", "rr"]
    touching = {key for key, functions in ran.items() if set(functions) & names}
    reached = touching or set(ran)  # else it is reached only by two sessions at once

    def cost(case: Case) -> tuple[int, int]:
        keys = [(verb, case.start) for verb in case.verbs]
        steps = prod(len(ran[key]) for key in keys)
        return levels.index(case.level), steps * (1 if all(key in reached for key in keys) else 3)

    pairs = cases([], levels, ["commit-commit", "rollback-commit", "commit-rollback"])
    pairs = [case for case in pairs if any((verb, case.start) in reached for verb in case.verbs)]
    return sorted(pairs, key=cost)


def judged(
    url: str, mutant: Mutant, ran: Ran, right: Outcomes, seconds: float
) -> tuple[str | None, str, float]:
    """The schedule that notices it, why, and after how many seconds."""
    began, schedules, tried = time.monotonic(), 0, 0
    with mutated(url, mutant) as it:
        here = Outcomes(it)
        for case in chosen(it, mutant, ran):
            found = explore(here, case, stop=True, right=right)
            schedules, tried = schedules + found.schedules, tried + 1
            for id, fault in found.faults.items():
                return id, " ".join(fault.splitlines()[:3]), time.monotonic() - began
            if time.monotonic() - began > seconds:
                break
    return None, f"{schedules} schedules of {tried} cases", time.monotonic() - began


def run(url: str, names: list[str], part: str, seconds: float) -> int:
    survived = 0
    with mutated(url, None, "pyworker_right") as it:
        ran, right = ran_by(it), Outcomes(it)
        wanted = [m for m in MUTANTS if any(m.name.startswith(name) for name in names)] if names else CONCURRENT
        for mutant in part_of(wanted, part):
            id, why, took = judged(url, mutant, ran, right, seconds)
            survived += id is None
            print(
                f"{'killed' if id else 'SURVIVED':8}  {mutant.name}  {took:.0f} s  {id or ''}  {why[:200]}",
                flush=True,
            )
    return survived
