"""Which mutants of the SQL (tests/mutants) does the exploration notice by itself?

The schedules run on the mutant, and their serial orders on the SQL without it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from math import log, sqrt
from random import Random
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.interleavings.cases import cases, part_of
from tests.interleavings.explore import Case, explore, parse
from tests.interleavings.noticed import NOTICED, PUT_BACK
from tests.interleavings.oracle import Fault, Oracle, Outcomes
from tests.interleavings.schedule import play
from tests.interleavings.sessions import Stuck
from tests.interleavings.stage import Stage
from tests.interleavings.verbs import VERBS
from tests.mutants import MUTANTS, Mutant, functions

Ran = dict[tuple[str, str], "Alone"]  # by verb and state
SAMPLE = 4  # schedules of a case with one switch, and with two
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


@dataclass
class Alone:
    """What a verb does with no other one beside it."""

    functions: list[str]  # of its steps
    rows: set[tuple[str, Any]]  # that it changes


def alone(it: Stage, verb: str, start: str) -> Alone:
    it.restore(start)
    run = play([it.actor(0, verb, "rc", "commit")], it.steps, 0, (), lambda run: None)
    rows: set[tuple[str, Any]] = set()
    for _, table, old, new in (change for entry in run.trace for change in entry.changes):
        if table not in ("promotion_requests", "claims", "audit_log"):
            row = old or new
            rows |= {(table, row[name]) for name in ("job_key", "unique_key", "queue_name") if row.get(name)}
            if row.get("id", 11) <= 10:  # else it is new
                rows.add((table, row["id"]))
    return Alone([entry.name.partition(":")[0] for entry in run.trace], rows)


@cache
def all_alone(it: Stage) -> Ran:
    return {(verb, start): alone(it, verb, start) for verb in VERBS for start in VERBS[verb].starts}


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
    """The cases in which it can matter, at random, but the likelier earlier: those of verbs that change the
    same rows, of few steps."""
    names, random = callers(it, mutant.function), Random(mutant.name)
    touching = {key for key, found in ran.items() if set(found.functions) & names}
    touching = touching or set(ran)  # else it is reached only by two sessions at once
    old = "old snapshot" in mutant.name

    def rank(case: Case) -> float:
        a, b = (ran[verb, case.start] for verb in case.verbs)
        weight = (1.0 if (case.level == "rr") == old else 0.2) * (8 if a.rows & b.rows else 1)
        weight *= 1 if len(touching & {(verb, case.start) for verb in case.verbs}) > 1 else 0.5
        return log(random.random()) * sqrt(len(a.functions) * len(b.functions)) / weight

    pairs = cases([], ["rc", "rr"], ["commit-commit", "rollback-commit", "commit-rollback"])
    pairs = [case for case in pairs if any((verb, case.start) in touching for verb in case.verbs)]
    return sorted(pairs, key=rank, reverse=True)


def is_right(here: Outcomes, id: str) -> bool:
    """A schedule proves nothing if it is also wrong without the mutant."""
    case, first, switches = parse(id)
    run = here.stage.play(case.verbs, case.start, case.level, case.hows, first, switches)
    try:
        Oracle(here, case.verbs, case.start).judge(run, case.level, case.hows)
    except Fault:
        return False
    return True


def judged(url: str, mutant: Mutant, right: Outcomes, seconds: float) -> tuple[str | None, str]:
    """The schedule that notices it, if one does, and why."""
    began, schedules, tried = time.monotonic(), 0, 0
    with mutated(url, mutant) as it:
        here = Outcomes(it)

        def likely() -> Iterator[tuple[Case, Random | None]]:
            if mutant.name in NOTICED:
                yield parse(f"{NOTICED[mutant.name]}/A")[0], None
            elif mutant.name in PUT_BACK:
                yield parse(PUT_BACK[mutant.name])[0], None
            for case in chosen(it, mutant, all_alone(right.stage)):
                yield case, Random(case.name)

        for case, random in likely():
            try:
                found = explore(here, case, stop=True, chosen=random, right=right, some=SAMPLE)
            except Stuck as stuck:
                return case.name, str(stuck)
            schedules, tried = schedules + found.schedules, tried + 1
            for id, fault in found.faults.items():
                if is_right(right, id):
                    return id, f"the {schedules}th schedule: {' '.join(fault.splitlines()[:3])}"
                print(f"  wrong without a mutant, too: {id}", flush=True)
            if time.monotonic() - began > seconds:
                break
    return None, f"{schedules} schedules of {tried} cases"


def run(url: str, names: list[str], part: str, seconds: float) -> int:
    survived = 0
    with mutated(url, None, "pyworker_right") as it:
        right = Outcomes(it)
        wanted = [m for m in MUTANTS if any(m.name.startswith(name) for name in names)]
        for mutant in part_of(wanted or CONCURRENT, part):
            began = time.monotonic()
            id, why = judged(url, mutant, right, seconds)
            survived += id is None
            took = f"{time.monotonic() - began:.0f} s"
            print(
                f"{'killed' if id else 'SURVIVED':8}  {mutant.name}  {took}  {id or ''}  {why[:160]}",
                flush=True,
            )
    return survived
