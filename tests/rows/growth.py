"""What verbs read beside a few and beside many, compared."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from tests.rows import crowds, world
from tests.rows.allowed import ALLOWED
from tests.rows.measure import Place, Reads
from tests.rows.verbs import VERBS, Verb

MANY = int(os.environ.get("PYWORKER_ROWS", "10000"))
# What a call reads beside a large crowd: half as much again as beside a small one, and so much. Walks pass
# the pages of dead entries until a vacuum removes them.
ROWS, PAGES = 400, max(400, MANY // 25)
STATISTICS = {
    "a plan of small tables": "",
    "the statistics of small tables": "discard plans; reset plan_cache_mode",
    "the statistics of large tables": "vacuum (analyze)",
}


def beside(place: Place, named: dict[str, Any], names: Iterable[str], count: int) -> None:
    """A crowd has come, and nothing waits for a promotion."""
    for name in names:
        crowds.make(place.rows, name, count)
    place.rows("select pyworker.advance_clock('2 hours')")
    place.rows("select pyworker.heartbeat(%(worker)s), pyworker.heartbeat(%(other)s)", named)
    crowds.settle(place.rows)
    place.rows("reset pyworker.floor_ready; reset pyworker.floor_due; reset pyworker.floor_expired")


def verb_of(name: str) -> Verb:
    verb = VERBS[name]
    return verb if isinstance(verb, Verb) else Verb(verb)


def grown(
    place: Place, names: list[str], few: int, many: int, verbs: Iterable[str] = VERBS, more: int = 0
) -> list[str]:
    """The verbs that read more beside a larger crowd, and what. `more`: how much more each may read."""
    place.rows("set plan_cache_mode = force_generic_plan; analyze")
    named = world.make(place.rows)
    beside(place, named, names, few)
    named["last"] = place.rows("select id from pyworker.add_job('last')")[0]["id"]
    for _ in range(2):  # the first time, a session reads more
        small = {name: place.reads(verb_of(name), named) for name in verbs}
    beside(place, named, names, many)
    named["last"] = place.rows("select id from pyworker.add_job('last')")[0]["id"]
    found = list[str]()
    for statistics, sql in STATISTICS.items():
        if sql:
            place.rows(sql)
        for name in verbs:
            most = allowance(name, names, small[name], more)
            large = place.reads(verb_of(name), named)
            for _ in range(3):  # the first walks along an index pass what is dead
                if not within(large, most):
                    place.await_the_end_of_other_snapshots()
                    large = place.reads(verb_of(name), named)
            if not within(large, most):
                found.append(f"{name}, {statistics}: {small[name]} beside {few}, {large} beside {many}")
    return found


def allowance(name: str, names: list[str], small: Reads, more: int) -> tuple[int, int]:
    allowed = more + max((most for verb, crowd, most, _ in ALLOWED
                   if _matches(verb, name)
                   and (not crowd or crowd in names)), default=0)  # fmt: skip
    return int(1.5 * small.rows) + ROWS + allowed, int(1.5 * small.pages) + PAGES + allowed


def _matches(verb: str, name: str) -> bool:
    return name == verb or name.partition(":")[0] == verb


def within(reads: Reads, most: tuple[int, int]) -> bool:
    return reads.rows <= most[0] and reads.pages <= most[1]
