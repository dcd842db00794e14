"""What queues with a rate or turns cost: a claim looks at few rows, however many have started, wait, or take
turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.plans import touched
from tests.support.queues import add, answered, claim

pytestmark = pytest.mark.slow

ADD_ONE_EACH = (
    "select count(*) from pyworker.add_jobs((select jsonb_agg(jsonb_build_object("
    "'identifier', 't', 'queue_name', %s::text || n)) from generate_series(1, %s) n))"
)


def cost_of_claim(watched: Callable[..., Any], worker: int, most: int) -> dict[str, float]:
    """How many rows of each table a claim looks at. Its jobs are finished."""
    plans = watched(lambda a: a.claim_jobs(worker, most))
    jobs = watched.result  # type: ignore[attr-defined]
    watched(lambda a: a.finish_jobs([job.id for job in jobs], [job.run for job in jobs]))
    return {table: sum(touched(plans, table).values()) for table in ("live_jobs", "starts", "queues")}


def test_a_plain_claim_looks_at_nothing_more_beside_a_thousand_queues_that_are_at_their_rate(
    api: Any, worker: int, watched: Any
) -> None:
    api.set_queue("r*", None, 1, "1 day")
    answered(api)

    def of_plain_jobs() -> list[dict[str, float]]:
        """A claim that gets all that it wants, and one that wants more than there is."""
        add(api, 60, "default")
        answered(api)
        return [cost_of_claim(watched, worker, most) for most in (50, 100)]

    for _ in range(6):  # a plan may be kept from here on
        beside_none = of_plain_jobs()
    for _ in range(3):
        api.value(ADD_ONE_EACH, ["r", 1000])
    answered(api)
    started = 0
    for _ in range(1000):  # a claim that remembers how far it has looked may find none
        jobs = api.claim_jobs(worker, 1000)
        started += len(jobs)
        api.finish_jobs([job.id for job in jobs], [job.run for job in jobs])
        answered(api)
        if started == 1000:
            break
    assert started == 1000
    api.rows("vacuum pyworker.live_jobs")
    beside_many = of_plain_jobs()
    for one, other in zip(beside_none, beside_many, strict=True):
        assert other["starts"] == other["queues"] == 0
        assert other["live_jobs"] <= one["live_jobs"] + 5


def test_a_claim_looks_at_few_starts_however_many_are_in_its_window_and_before_it(
    api: Any, worker: int, watched: Any
) -> None:
    many = 100_000  # half of them in the window

    def of_claims() -> list[dict[str, float]]:
        """Of a claim whose pass finds room, and of one whose pass finds the rate used up."""
        api.set_queue("q", None, 2 * many, "1 hour")
        answered(api)
        add(api, 30, "q")
        found = [cost_of_claim(watched, worker, 10)]
        used = api.value("select rate_used from pyworker.list_queues() where queue_name = 'q'")
        api.set_queue("q", None, used, "1 hour")
        answered(api)
        add(api, 1, "q")
        found.append(cost_of_claim(watched, worker, 10))
        return found

    api.rows("analyze pyworker.starts")
    for _ in range(6):  # a plan may be kept from here on
        of_claims()
    api.rows("delete from pyworker.starts; delete from pyworker.live_jobs")
    api.rows(
        "insert into pyworker.starts (queue_name, at, jobs, total) "
        "select 'q', pyworker.clock() - (%s - n) * interval '72 ms', 1, n from generate_series(1, %s) n",
        [many, many],
    )
    found = of_claims()
    api.rows("truncate pyworker.starts")  # tests after this one would have its pages
    for claim_ in found:
        assert claim_["starts"] <= 12, claim_


SETTINGS: dict[str, tuple[Any, ...]] = {
    "rate": (None, 5, "1 hour"),
    "turns": (None, None, None, True),
    "limit, rate and turns": (2, 5, "1 hour", True),
}


@pytest.mark.parametrize("most", [1, 10])
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_claim_looks_at_as_much_beside_thousands_of_queues_of_a_family_as_beside_hundreds(
    api: Any, worker: int, watched: Any, setting: str, most: int
) -> None:
    api.set_queue("t:*", *SETTINGS[setting])
    answered(api)
    add(api, 1000, "t:large")
    found: list[dict[str, float]] = []
    for many in (300, 3000):
        api.value(ADD_ONE_EACH, [f"t:{many} ", many])
        answered(api)
        found += [cost_of_claim(watched, worker, most) for _ in range(6)]
    for table in found[0]:
        # The least of some: one that is slow looks further, to remember where the next may begin.
        few, beside_many = (min(one[table] for one in some) for some in (found[3:6], found[-3:]))
        assert beside_many <= few + 10, found


def test_a_backlog_whose_rate_is_lowered_holds_up_no_other_job(api: Any, worker: int) -> None:
    api.set_queue("q", None, 5000, "1 hour")
    answered(api)
    for _ in range(5):
        add(api, 1000, "q")
    api.set_queue("q", None, 10, "1 hour")
    others = add(api, 50, "default")
    begun = [claim(api, worker, 10) for _ in range(6)]
    assert set(others) < {job for jobs in begun for job in jobs}
    assert sum(map(len, begun)) == 60
    answered(api)
    assert claim(api, worker, 10) == []


def test_metrics_look_at_few_starts_however_many_queues_have_a_rate(
    api: Any, worker: int, watched: Any
) -> None:
    api.set_queue("k:*", None, 5, "1 hour")
    api.rows(
        "insert into pyworker.starts (queue_name, at, jobs, total) "
        "select 'k:' || n, pyworker.clock(), 3, case when n %% 2 = 0 then 3 end "
        "from generate_series(1, 5000) n",
        [],
    )
    for _ in range(6):
        plans = watched(lambda a: a.rows("select * from pyworker.metrics()"))
    assert {row.value for row in watched.result if row.name == "pyworker_queue_rate_used"} == {3}
    assert sum(touched(plans, "starts").values()) <= 300


def test_the_starts_of_idle_queues_go_however_many_others_are_busy(api: Any, worker: int) -> None:
    """One maintenance looks at some of the queues. It must not be the same ones each time."""
    api.set_queue("*", None, 10, "1 minute")
    api.rows(
        "insert into pyworker.starts (queue_name, at, jobs, total) "
        "select k.kind || n, pyworker.clock() - k.ago, 1, case when n %% 2 = 0 then 1 end "
        "from (values ('busy ', interval '1 minute', 1000), ('idle ', '2 days', 100)) k(kind, ago, many) "
        "cross join lateral generate_series(1, k.many) n",
        [],
    )
    for _ in range(60):
        api.maintain()
    names = "select count(distinct queue_name) from pyworker.starts where queue_name ~ %s"
    assert api.value(names, ["^idle"]) == 0
    assert api.value(names, ["^busy"]) == 1000


def test_to_find_old_starts_maintenance_reads_few_of_a_busy_queue(
    api: Any, worker: int, watched: Callable[..., Any]
) -> None:
    api.set_queue("*", None, 10, "1 minute")
    api.rows(
        "insert into pyworker.starts (queue_name, at, jobs, total) "
        "select 'busy', pyworker.clock() - interval '1 hour', 1, n from generate_series(1, 100000) n "
        "union all select 'idle ' || n, pyworker.clock() - interval '2 days', 1, 1 "
        "from generate_series(1, 100) n"
    )
    read = []
    while api.value("select count(*) from pyworker.starts where queue_name <> 'busy'") == 100:
        read.append(sum(touched(watched(lambda a: a.maintain()), "starts").values()))
    assert max(read) < 30_000
