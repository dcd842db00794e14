"""Explores verbs that meet, or replays one schedule.

    python -m tests.interleavings                        all pairs, from every state, at READ COMMITTED
    python -m tests.interleavings finish claim+cancel    the pairs of one verb, one pair
    python -m tests.interleavings mutants [NAME …]       which mutants of the SQL the exploration notices
    python -m tests.interleavings finish+cancel/running/rc/commit-commit/A.A7.B3     replays, with its story

The last column is the number of faults; the id of the first one, and what is wrong, follows.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pyworker._db.migrations import migrate
from pyworker._dev.postgres import temporary_server
from tests.interleavings import mutants
from tests.interleavings.cases import cases, drawn, part_of, triples
from tests.interleavings.explore import SAMPLE, Case, explore, parse
from tests.interleavings.oracle import Fault, Oracle, Outcomes
from tests.interleavings.stage import Stage
from tests.interleavings.states import STARTS
from tests.interleavings.story import story
from tests.interleavings.verbs import LEVELS


@contextmanager
def installed() -> Iterator[str]:
    """The URL of a server with pyworker in the template of its database."""
    with temporary_server(in_memory=True, settings={"autovacuum": "off"}) as server:
        with psycopg.connect(server.url(), autocommit=True) as conn:
            template = f"{conn.info.dbname}_template"
            conn.execute(sql.SQL("create database {}").format(sql.Identifier(template)))
        with psycopg.connect(make_conninfo(server.url(), dbname=template), autocommit=True) as conn:
            migrate(conn, movable_clock=True)
        yield server.url()


def replay(it: Stage, id: str) -> int:
    case, first, switches = parse(id)
    run = it.play(case.verbs, case.start, case.level, case.hows, first, switches)
    print(story(run))
    try:
        Oracle(Outcomes(it), case.verbs, case.start).judge(run, case.level, case.hows)
    except Fault as fault:
        print(fault)
        return 1
    print("right")
    return 0


def tried(it: Stage, chosen: list[Case], sample: int | None, seed: int) -> int:
    """Explores the cases and prints a line of each; returns the number of faults."""
    began, schedules, unreduced, faults = time.monotonic(), 0, 0, 0
    here = Outcomes(it)
    for case in chosen:
        random = Random(f"{seed} {case.name}") if sample else None
        found = explore(here, case, chosen=random, some=sample or 0)
        schedules, unreduced = schedules + found.schedules, unreduced + found.unreduced
        faults += len(found.faults)
        counts = f"{found.schedules:6} of {found.unreduced:6} {found.seconds:7.2f} s"
        print(f"{case.name:60} {counts} {len(found.faults) or ''}", flush=True)
        for id, fault in list(found.faults.items())[:1]:
            print("    " + "\n    ".join([id, *fault.splitlines()]), flush=True)
    seconds = time.monotonic() - began
    print(f"{len(chosen)} cases, {schedules} schedules of {unreduced}, {faults} faults, {seconds:.0f} s")
    return faults


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m tests.interleavings", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="verbs, pairs, triples, or the ids of schedules")
    parser.add_argument("--starts", default=",".join(STARTS), help=f"of {','.join(STARTS)}")
    parser.add_argument("--levels", default="rc", help=f"of {','.join(LEVELS)}")
    parser.add_argument(
        "--ends", default="commit-commit", help="of commit-commit,rollback-commit,commit-rollback"
    )
    parser.add_argument("--part", default="1/1", help="2/3: the second third of the cases, or of the mutants")
    parser.add_argument("--triples", type=int, metavar="N", help="instead: N cases of three verbs, at random")
    parser.add_argument("--each", type=int, metavar="N", help="of each pair N cases, at random")
    parser.add_argument(
        "--sample", type=int, nargs="?", const=SAMPLE, metavar="N",
        help="of each case N schedules with one switch and N with two, at random",
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=120, help="for each mutant")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main() -> int:
    options = arguments()
    levels, ends = options.levels.split(","), options.ends.split(",")
    with installed() as url:
        if options.names[:1] == ["mutants"]:
            return mutants.run(url, options.names[1:], options.part, options.seconds) > 0
        with mutants.mutated(url, None) as it:
            if any("/" in name for name in options.names):
                return max(replay(it, name) for name in options.names)
            if options.triples:
                chosen = triples(options.triples, options.seed, levels, ends)
            else:
                chosen = cases(options.names, levels, ends, options.starts.split(","))
            if options.each:
                chosen = drawn(chosen, options.each, options.seed)
            return tried(it, part_of(chosen, options.part), options.sample, options.seed) > 0


if __name__ == "__main__":
    sys.exit(main())
