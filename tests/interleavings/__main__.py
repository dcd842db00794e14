"""Explores pairs of verbs, or replays one schedule.

python -m tests.interleavings                        all pairs, from every state, at READ COMMITTED
python -m tests.interleavings finish claim+cancel    the pairs of one verb, one pair
python -m tests.interleavings mutants [NAME …]       which mutants the exploration notices
python -m tests.interleavings finish+cancel/running/rc/commit-commit/A.A7.B3     replays, with its story
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pyworker._db.migrations import migrate
from pyworker._dev.postgres import temporary_server
from tests.interleavings import mutants
from tests.interleavings.cases import cases
from tests.interleavings.explore import explore, parse
from tests.interleavings.oracle import Fault, Oracle
from tests.interleavings.stage import Stage
from tests.interleavings.story import story
from tests.interleavings.verbs import LEVELS, STARTS


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


@contextmanager
def stage() -> Iterator[Stage]:
    with installed() as url, mutants.mutated(url, None) as it:
        yield it


def replay(it: Stage, id: str) -> int:
    case, first, switches = parse(id)
    run = it.play(case.verbs, case.start, case.level, case.hows, first, switches)
    print(story(run))
    try:
        Oracle(it, case.verbs, case.start).judge(run, case.level, case.hows)
    except Fault as fault:
        print(fault)
        return 1
    print("right")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser("tests.interleavings", description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--starts", default=",".join(STARTS))
    parser.add_argument("--levels", default="rc", help=f"of {','.join(LEVELS)}")
    parser.add_argument(
        "--ends", default="commit-commit", help="of commit-commit,rollback-commit,commit-rollback"
    )
    parser.add_argument("--faults", type=Path, help="a file for the faults, with their stories")
    options = parser.parse_args()
    if options.names[:1] == ["mutants"]:
        with installed() as url:
            return mutants.run(url, options.names[1:]) > 0
    with stage() as it:
        if any("/" in name for name in options.names):
            return max(replay(it, name) for name in options.names)
        began, schedules, unreduced, faulty = time.monotonic(), 0, 0, 0
        for case in cases(
            options.names,
            options.levels.split(","),
            options.ends.split(","),
            tuple(options.starts.split(",")),
        ):
            found = explore(it, case)
            schedules, unreduced = schedules + found.schedules, unreduced + found.unreduced
            faulty += len(found.faults)
            counts = f"{found.schedules:6} of {found.unreduced:6} {found.seconds:7.2f} s"
            print(f"{case.name:60} {counts} {len(found.faults) or ''}", flush=True)
            if options.faults and found.faults:
                with options.faults.open("a") as file:
                    for id, fault in found.faults.items():
                        file.write(f"## {id}\n{fault}\n\n")
        print(f"{schedules} schedules of {unreduced}, {faulty} faults, {time.monotonic() - began:.0f} s")
    return faulty > 0


if __name__ == "__main__":
    sys.exit(main())
