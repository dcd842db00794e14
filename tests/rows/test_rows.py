"""What a call reads depends on the jobs that it is about, not on those beside them: counted in rows, index
entries and pages. With the plans that a session made while the tables were small, with the statistics of
small tables, and with those of large ones."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rows import crowds, world
from tests.rows.allowed import ALLOWED
from tests.rows.growth import MANY, grown
from tests.rows.measure import Place
from tests.rows.verbs import VERBS, Verb


def alike() -> list[Any]:
    """All crowds, together with those beside which the same verbs may read more. Those beside which none may
    are the most, and first: they are for each change, the others for `make slow`."""
    groups: dict[frozenset[str], list[str]] = {}
    for name in crowds.CROWDS:
        verbs = frozenset(verb for verb, crowd, *_ in ALLOWED if crowd == name)
        groups.setdefault(verbs, []).append(name)
    free = groups.pop(frozenset())
    return [free, *(pytest.param(names, marks=pytest.mark.slow) for names in groups.values())]


@pytest.mark.parametrize("names", alike(), ids=lambda names: f"{names[0]} and {len(names) - 1} more")
def test_no_call_reads_more_beside_more_of_several_crowds(place: Place, names: list[str]) -> None:
    found = grown(place, names, 4, 800)
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("crowd", crowds.CROWDS)
def test_no_call_reads_more_beside_a_larger_crowd(place: Place, crowd: str) -> None:
    found = grown(place, [crowd], 40, MANY)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("crowd", [
    "of many queues", "of a family that takes turns", "of many sequences",
    "that wait for one job",
])  # fmt: skip
def test_what_a_promotion_reads_grows_no_faster_than_what_it_lets_in(place: Place, crowd: str) -> None:
    place.rows("set plan_cache_mode = force_generic_plan; analyze")
    named = world.make(place.rows)
    each = list[float]()
    for count in (500, 4000):
        crowds.make(place.rows, crowd, count)
        reads = place.reads(Verb("select pyworker.promote_jobs()"), named)
        each.append((reads.rows + reads.pages) / count)
        crowds.settle(place.rows)
    assert each[1] < 1.5 * each[0] + 5, reads


def test_each_public_function_is_measured(place: Place) -> None:
    public = {
        row["proname"]
        for row in place.rows(
            "select distinct proname from pg_proc where pronamespace = 'pyworker'::regnamespace"
            " and proname !~ '^_'"
        )
    }
    assert public - {name.partition(":")[0] for name in VERBS} == set()


@pytest.mark.slow
def test_ten_thousand_families_are_set_in_a_row(place: Place) -> None:
    crowds.make(place.rows, "families", 10_000)
    place.rows("select pyworker.add_job('t', queue_name => 'serial')")
    crowds.settle(place.rows)
    assert len(place.rows("select from pyworker.queues")) == 10_000
    place.rows("select pyworker.work(pyworker.register_worker(), null, null, null, null, 10)")
    assert len(place.rows("select from pyworker.jobs where state = 'running'")) == 1
