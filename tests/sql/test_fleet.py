"""Many workers: they take turns to look for jobs, and adds stop to notify them from a lower rate on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.beats import A_SECOND_AGO, beat
from tests.support.notify import heard as heard
from tests.support.turns import work

NOW = "select (extract(epoch from clock_timestamp()) * 1000000)::bigint"


def open_workers(api: Any, count: int, *tasks: str) -> list[int]:
    """Workers that take these tasks; without any, all tasks. A sweep has seen them."""
    info = {"task_identifiers": list(tasks)} if tasks else {}
    workers = [api.open_worker(info)["worker"] for _ in range(count)]
    api.rows("update pyworker.workers set expires_at = 'infinity'")  # however long the opening took
    sweep(api, workers[0])
    return workers


def sweep(api: Any, worker: int) -> None:
    api.rows(A_SECOND_AGO)
    beat(api, worker)


def polling(api: Any) -> None:
    api.rows(f"select setval('pyworker.polling_until', ({NOW}) / 1000 + 60000)")


def slot(api: Any, worker: int, cycle: int, tasks: list[str] | None = None) -> range:
    """When a worker looks again, as microseconds of the cycle: between the first and the last of these."""
    began = api.value(NOW)
    wait = round(work(api, worker, tasks=tasks).again * 1_000_000)
    assert 0 < wait <= cycle * 1.25
    return range(began + wait - 1, api.value(NOW) + wait + 2)


def contains(times: range, place: int, cycle: int) -> bool:
    return (place - times.start) % cycle < len(times)


def test_polling_workers_take_turns_each_5_ms_after_the_one_before(api: Any) -> None:
    workers = open_workers(api, 60)
    polling(api)
    cycle = 60 * 5000
    for place in (0, 1, 30, 59):
        assert contains(slot(api, workers[place], cycle), place * 5000, cycle)


def test_workers_that_take_other_tasks_have_turns_of_their_own(api: Any) -> None:
    mail = open_workers(api, 30, "mail")
    (report,) = open_workers(api, 1, "report")
    polling(api)
    assert contains(slot(api, mail[29], 150_000, ["mail"]), 29 * 5000, 150_000)
    slot(api, report, 5_000, ["report"])  # soon: it has no others to wait for


def test_a_worker_that_is_alone_polls_every_5_ms(api: Any) -> None:
    (worker,) = open_workers(api, 1)
    polling(api)
    assert work(api, worker).again == 0.005


def test_a_turn_follows_the_fleet(api: Any) -> None:
    workers = open_workers(api, 40)
    polling(api)
    assert contains(slot(api, workers[39], 200_000), 195_000, 200_000)
    for worker in workers[:39]:
        api.close_worker(worker)
    sweep(api, workers[39])
    assert work(api, workers[39]).again == 0.005


def notified(api: Any, heard: Any, worker: int, adds: int = 20) -> int:
    """Of so many adds, each of which this worker claims and looks for more, how many notified."""
    count = 0
    for _ in range(adds):
        while work(api, worker, room=1).jobs:
            pass
        heard()
        api.add_job("t")
        count += heard() == [""]
    return count


def test_a_large_fleet_is_not_woken_by_each_of_many_adds(api: Any, heard: Any) -> None:
    """Of 400 workers, an add each 2 seconds may wake all: here adds follow each other."""
    workers = open_workers(api, 400)
    assert 1 <= notified(api, heard, workers[0]) <= 4


def test_a_worker_that_is_alone_is_notified_of_each_add(api: Any, heard: Any) -> None:
    (worker,) = open_workers(api, 1)
    assert notified(api, heard, worker) == 20


@pytest.mark.parametrize("room", [1, 2], ids=["full", "short"])
def test_a_fleet_polls_on_while_its_claims_find_jobs(api: Any, heard: Any, room: int) -> None:
    workers = open_workers(api, 400)
    work(api, workers[1])  # it waits
    api.rows(f"select setval('pyworker.polling_until', ({NOW}) / 1000 + 1000)")
    api.add_job("t")
    assert len(work(api, workers[0], room=room).jobs) == 1
    until = api.value("select last_value from pyworker.polling_until")
    assert until - api.value(NOW) // 1000 > 1000
    api.add_job("t")
    assert heard() == []


def test_a_fleet_that_finds_nothing_for_a_while_is_notified_again(api: Any, heard: Any) -> None:
    workers = open_workers(api, 400)
    api.rows(f"select setval('pyworker.polling_until', ({NOW}) / 1000 - 1)")
    assert work(api, workers[0]).jobs == []
    heard()
    api.add_job("t")
    assert heard() == [""]


def test_a_caller_that_is_no_worker_is_told_to_look_every_5_ms(api: Any) -> None:
    open_workers(api, 40)
    polling(api)
    assert api.seconds_until_due() == 0.005
