"""What a call reads depends on the jobs that it is about, not on those beside them: counted in rows, index
entries and pages. With the plans that a session made while the tables were small, with the statistics of
small tables, and with those of large ones."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import psycopg
import pytest

from tests.rows import crowds, world
from tests.rows.allowed import ALLOWED
from tests.rows.measure import Place, Reads
from tests.rows.verbs import PROGRAMS, VERBS, Verb

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
    place.rows("reset pyworker.walk_claim; reset pyworker.walk_due; reset pyworker.walk_requests")


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


# Beside it, nearly all reads more: each look-up of a queue's limits reads all families.
FAMILIES = "families"


def alike() -> list[Any]:
    """All crowds, together with those beside which the same verbs may read more. Those beside which none may
    are the most, and first: they are for each change, the others for `make torture`."""
    groups: dict[frozenset[str], list[str]] = {}
    for name in crowds.CROWDS:
        if name != FAMILIES:
            verbs = frozenset(verb for verb, crowd, *_ in ALLOWED if crowd == name)
            groups.setdefault(verbs, []).append(name)
    free = groups.pop(frozenset())
    return [free, *(pytest.param(names, marks=pytest.mark.torture) for names in groups.values())]


@pytest.mark.parametrize("names", alike(), ids=lambda names: f"{names[0]} and {len(names) - 1} more")
def test_no_call_reads_more_beside_more_of_several_crowds(place: Place, names: list[str]) -> None:
    found = grown(place, names, 4, 800)
    assert not found, "\n".join(found)


@pytest.mark.torture
@pytest.mark.parametrize("crowd", [name for name in crowds.CROWDS if name != FAMILIES])
def test_no_call_reads_more_beside_a_larger_crowd(place: Place, crowd: str) -> None:
    found = grown(place, [crowd], 40, MANY)
    assert not found, "\n".join(found)


# A session remembers a walk along an index if it read more than this.
SHORT = 3000
# A session has just taken all that was ready except for two jobs, and so walked past all that has gone.
A_TURN_BEFORE = """
    select from pyworker.add_jobs('[{"identifier": "available"}, {"identifier": "available"}]');
    select from pyworker.work(%(worker)s, null, null, null, null, (
        select count(*)::integer - 2 from pyworker.live_jobs j
        where j.ready_at is not null and j.state = 'available'));
    select from pyworker.promote_jobs(); select from pyworker.beat(%(worker)s, '{}', '{}')"""


def grown_under_an_old_snapshot(place: Place, names: list[str], few: int, many: int) -> list[str]:
    with psycopg.connect(place.dsn) as old:
        old.execute("set transaction isolation level repeatable read")
        old.execute("select from pyworker.jobs")
        place.old = old.info.backend_pid
        place.before_each = A_TURN_BEFORE
        return grown(place, names, few, many, PROGRAMS, SHORT)


def test_no_call_of_a_program_reads_what_has_expired_under_an_old_snapshot(place: Place) -> None:
    found = grown_under_an_old_snapshot(place, ["gone: expired"], 40, 9000)
    assert not found, "\n".join(found)


@pytest.mark.torture
@pytest.mark.parametrize("crowd", crowds.GONE)
def test_no_call_of_a_program_reads_what_has_gone_under_an_old_snapshot(place: Place, crowd: str) -> None:
    found = grown_under_an_old_snapshot(place, [crowd], MANY // 20, MANY)
    assert not found, "\n".join(found)


def test_each_public_function_is_measured(place: Place) -> None:
    public = {
        row["proname"]
        for row in place.rows(
            "select distinct proname from pg_proc where pronamespace = 'pyworker'::regnamespace"
            " and proname !~ '^_'"
        )
    }
    assert public - {name.partition(":")[0] for name in VERBS} == set()


@pytest.mark.torture
def test_ten_thousand_families_are_set_in_a_row(place: Place) -> None:
    crowds.make(place.rows, FAMILIES, 10_000)
    place.rows("select pyworker.add_job('t', queue_name => 'serial')")
    crowds.settle(place.rows)
    assert len(place.rows("select from pyworker.queues")) == 10_000
    place.rows("select pyworker.work(pyworker.register_worker(), null, null, null, null, 10)")
    assert len(place.rows("select from pyworker.jobs where state = 'running'")) == 1
