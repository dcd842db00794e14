"""set_queue with rate_limit and rate_period: no window, wherever it begins, holds more starts than that."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.support.queues import add, claim, named
from tests.support.rates import starts, worst

SECOND = timedelta(seconds=1)


def again_in(api: Any, worker: int, most: int = 100) -> float:
    """What a turn that claims nothing says: come again in so many seconds."""
    (turn,) = api.rows(
        "select again_in_s, kind from pyworker.work(%s, null, null, null, null, %s)", [worker, most]
    )
    return turn.again_in_s


def test_a_rate_starts_so_many_and_the_next_ones_when_those_have_left_the_window(
    api: Any, worker: int, clock: Any
) -> None:
    api.set_queue("q", None, 3, "10 seconds")
    ids = add(api, 8)
    assert claim(api, worker) == ids[:3]
    assert claim(api, worker) == []
    clock.advance(seconds=9)
    assert claim(api, worker) == []
    clock.advance(seconds=1)
    assert claim(api, worker) == ids[3:6]
    clock.advance(seconds=10)
    assert claim(api, worker) == ids[6:]


def test_the_window_slides_each_start_frees_its_place_when_its_period_is_over(
    api: Any, worker: int, clock: Any
) -> None:
    api.rows("update pyworker.workers set expires_at = 'infinity'")
    api.set_queue("q", None, 3, "10 minutes")
    ids = add(api, 9)
    assert claim(api, worker, 1) == ids[:1]
    clock.advance(minutes=4)
    assert claim(api, worker, 2) == ids[1:3]
    clock.advance(minutes=6)
    assert claim(api, worker) == ids[3:4]
    clock.advance(minutes=4)
    assert claim(api, worker) == ids[4:6]
    clock.advance(minutes=5)
    assert claim(api, worker) == []
    clock.advance(minutes=1)
    assert claim(api, worker) == ids[6:7]
    assert worst(starts(api), 600 * SECOND) == 3


def test_the_period_may_be_a_microsecond_or_years(api: Any, worker: int, clock: Any) -> None:
    api.set_queue("q", None, 1, "1 microsecond")
    ids = add(api, 3)
    while len(starts(api)) < len(ids):
        claim(api, worker)
    assert worst(starts(api), timedelta(microseconds=1)) == 1
    api.set_queue("slow", None, 1, "100 years")
    ids = add(api, 2, "slow")
    assert claim(api, worker) == ids[:1]
    clock.advance(days=36524)
    assert claim(api, worker) == []
    clock.advance(days=2)
    api.conn.execute("update pyworker.workers set expires_at = 'infinity'")
    assert claim(api, worker) == ids[1:]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
def test_a_day_has_24_hours_in_each_session_however_its_clocks_change(
    api: Any, worker: int, zone: str
) -> None:
    api.conn.execute(f"set timezone = '{zone}'")
    api.set_queue("q", None, 1, "1 day")
    assert (
        api.value("select rate_period::text from pyworker.queue_stats where queue_name = 'q'") == "24:00:00"
    )
    api.conn.execute("reset timezone")


def test_a_worker_is_told_when_the_rate_has_room_again(api: Any, worker: int, clock: Any) -> None:
    api.set_queue("q", None, 2, "1 second")
    add(api, 3)
    claim(api, worker)
    assert 0 < again_in(api, worker) <= 1
    assert 0 < api.seconds_until_due() <= 1
    clock.advance(seconds=0.9)
    assert api.seconds_until_due() <= 0.1
    clock.advance(seconds=0.1)
    assert api.seconds_until_due() <= 0.25


def test_the_turn_that_uses_up_a_rate_says_itself_when_to_come_again(api: Any, worker: int) -> None:
    api.set_queue("q", None, 2, "1 second")
    add(api, 3)
    *jobs, turn = api.rows(
        "select kind, again_in_s from pyworker.work(%s, null, null, null, null, 5)", [worker]
    )
    assert [job.kind for job in jobs] == ["job", "job"]
    assert 0 < turn.again_in_s <= 1


@pytest.mark.parametrize(
    "leave",
    ["cancel", "delete", "remove", "complete", "discard", "expire", "other queue", "other task", "later",
     "later by its key", "worse", "retry"],
)  # fmt: skip
def test_the_next_start_comes_though_the_job_that_waited_for_it_has_left(
    api: Any, worker: int, clock: Any, leave: str
) -> None:
    api.set_queue("q", None, 1, "10 seconds")
    api.set_queue("other", None)
    first, waits, last = (api.add_job("t", queue_name="q", job_key=f"k{n}").id for n in range(3))
    assert claim(api, worker) == [first]
    match leave:
        case "cancel":
            api.cancel_job(waits)
        case "delete":
            api.delete_job(waits)
        case "remove":
            api.remove_job("k1")
        case "complete":
            api.complete_jobs([waits])
        case "discard":
            api.permanently_fail_jobs([waits], "no")
        case "expire":
            api.add_job("t", queue_name="q", job_key="k1", expires_at=api.at("5 seconds"))
        case "other queue":
            api.add_job("t", queue_name="other", job_key="k1")
        case "other task":
            api.add_job("a", queue_name="q", job_key="k1")
        case "later by its key":
            api.add_job("t", queue_name="q", job_key="k1", run_at=api.at("1 hour"))
        case "worse":
            api.reschedule_jobs([waits], priority=9)
        case "later":
            api.reschedule_jobs([waits], run_at=str(api.at("1 hour")))
        case _:
            api.retry_job(waits)
    assert claim(api, worker) == ([waits] if leave == "other queue" else [])
    assert 0 < again_in(api, worker) <= 2.5
    clock.advance(seconds=10)
    assert claim(api, worker) == [waits if leave == "retry" else last]


def test_the_next_start_comes_also_if_all_that_may_start_was_claimed_after_it_was_let_in(
    api: Any, worker: int, clock: Any
) -> None:
    """Then no start was there that a time could be told of. None of the jobs ends."""
    api.set_queue("q", None, 3, "10 seconds")
    ids = add(api, 9)
    assert api.promote_jobs() == 3
    clock.advance(seconds=1)
    for n in range(0, 9, 3):
        assert claim(api, worker) == ids[n : n + 3]
        assert 0 < again_in(api, worker) <= 1
        clock.advance(seconds=10)


def test_each_start_frees_its_place_though_a_look_for_another_reason_came_before(
    api: Any, worker: int, clock: Any
) -> None:
    """set_queue asks for one a quarter of a second later; then nothing else asks for the first start."""
    api.set_queue("q", None, 3, "10 seconds")
    ids = add(api, 9)
    assert claim(api, worker, 1) == ids[:1]
    for seconds, more in ((1, ids[1:3]), (9, ids[3:4]), (1, ids[4:6]), (9, ids[6:7])):
        clock.advance(seconds=seconds)
        assert claim(api, worker) == more


def test_a_shorter_period_lets_jobs_start_before_the_time_that_was_told_under_the_longer_one(
    api: Any, worker: int, clock: Any
) -> None:
    api.set_queue("q", None, 1, "1 day")
    ids = add(api, 3)
    assert claim(api, worker) == ids[:1]
    api.set_queue("q", None, 1, "2 seconds")
    for job in ids[1:]:
        assert claim(api, worker) == []
        clock.advance(seconds=2)
        assert claim(api, worker) == [job]


@pytest.mark.parametrize("end", ["finish", "fail", "release", "snooze", "unregister", "retry"])
def test_a_start_counts_however_its_run_ends(api: Any, worker: int, clock: Any, end: str) -> None:
    api.set_queue("q", None, 1, "10 seconds")
    first, second = add(api, 2)
    (job,) = api.claim_jobs(worker, 5)
    match end:
        case "finish":
            api.finish(first)
        case "fail":
            api.fail(job, delay="0")
        case "release":
            api.release_jobs([first], [job.run])
        case "snooze":
            api.snooze_job(first, job.run, "0")
        case "unregister":
            api.unregister_worker(worker)
        case _:
            api.fail(job, discard=True)
            api.retry_job(first)
    again = api.register_worker()
    assert claim(api, again) == []
    clock.advance(seconds=10)
    assert claim(api, again) == [first if end in ("release", "unregister") else second]


@pytest.mark.parametrize("end", ["fail", "release", "snooze"])
def test_a_job_that_goes_back_to_a_queue_whose_rate_has_room_can_be_claimed_at_once(
    api: Any, worker: int, end: str
) -> None:
    api.set_queue("q", None, 500, "1 hour")
    first, *others = add(api, 150)
    job, *_ = jobs = api.claim_jobs(worker, 200)
    assert [job.id for job in jobs] == [first, *others], "so many run that an add would park its job"
    while api.rows("select from pyworker.promotion_requests"):
        api.promote_jobs()  # the queue's change is handled
    match end:
        case "fail":
            api.fail(job, delay="0")
        case "release":
            api.release_jobs([first], [job.run])
        case _:
            api.snooze_job(first, job.run, "0")
    assert claim(api, worker) == [first]


def test_each_queue_of_a_family_has_its_own_rate(api: Any, worker: int, clock: Any) -> None:
    api.set_queue("c:*", None, 2, "10 seconds")
    ids = {name: add(api, 4, name) for name in ("c:1", "c:2", "c:3")}
    assert claim(api, worker) == sorted(job for jobs in ids.values() for job in jobs[:2])
    api.set_queue("c:2", None, 3, "10 seconds")
    assert claim(api, worker) == ids["c:2"][2:3]
    clock.advance(seconds=10)
    assert claim(api, worker) == sorted([*ids["c:1"][2:], ids["c:2"][3], *ids["c:3"][2:]])


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_rate_and_a_limit_hold_both(api: Any, worker: int, clock: Any, limit: int) -> None:
    api.set_queue("q", limit, 4, "10 seconds")
    ids = add(api, 9)
    begun: list[int] = []
    while more := claim(api, worker):
        assert len(more) <= limit
        begun += more
        api.finish(*more)
    assert begun == ids[:4]
    clock.advance(seconds=10)
    more = claim(api, worker)
    assert more == ids[4 : 4 + limit]
    clock.advance(seconds=10)
    assert claim(api, worker) == []  # the limit binds, not the rate


def test_the_end_of_a_job_does_not_let_the_next_one_start_before_the_rate_does(
    api: Any, worker: int, clock: Any
) -> None:
    api.set_queue("q", 1, 1, "10 seconds")
    ids = add(api, 3)
    assert claim(api, worker) == ids[:1]
    api.finish(ids[0])
    assert claim(api, worker) == []
    clock.advance(seconds=10)
    assert claim(api, worker) == ids[1:2]


def test_a_paused_queue_starts_nothing_when_its_rate_has_room(api: Any, worker: int, clock: Any) -> None:
    api.set_queue("q", None, 1, "10 seconds")
    ids = add(api, 2)
    assert claim(api, worker) == ids[:1]
    api.pause_queue("q")
    clock.advance(seconds=10)
    assert claim(api, worker) == []
    api.resume_queue("q")
    assert claim(api, worker) == ids[1:]


def test_a_job_that_no_worker_takes_holds_its_place_in_the_rate_for_a_second(
    api: Any, worker: int, clock: Any
) -> None:
    api.set_queue("q", None, 2, "10 seconds")
    named(api, *["unknown"] * 3)
    known = named(api, *["known"] * 5)

    def claimed() -> list[int]:
        return [job.id for job in api.claim_jobs(worker, 9, ["known"])]

    assert claimed() == []
    clock.advance(seconds=1.01)
    assert claimed() == []  # from now on they stand aside
    assert claimed() == known[:2]
    clock.advance(seconds=10)
    assert claimed() == []
    clock.advance(seconds=1.01)
    assert claimed() == []
    assert claimed() == known[2:4]


def test_jobs_of_several_tasks_share_the_rate(api: Any, worker: int, clock: Any) -> None:
    api.set_queue("q", None, 3, "10 seconds")
    ids = [api.add_job(task, queue_name="q").id for task in "abcabc"]
    assert claim(api, worker) == ids[:3]
    assert claim(api, worker) == []
    clock.advance(seconds=10)
    assert claim(api, worker) == ids[3:]


def test_of_jobs_that_wait_for_the_rate_the_best_priority_goes_first(
    api: Any, worker: int, clock: Any
) -> None:
    api.set_queue("q", None, 1, "10 seconds")
    add(api, 3)
    claim(api, worker)
    urgent = api.add_job("t", queue_name="q", priority=-1).id
    clock.advance(seconds=10)
    assert claim(api, worker) == [urgent]


def test_a_sequence_in_a_queue_with_a_rate_keeps_its_order_and_the_rate(
    api: Any, worker: int, clock: Any
) -> None:
    api.set_queue("q", None, 2, "10 seconds")
    ids = [api.add_job("t", queue_name="q", sequence_policy={"key": "s"}).id for _ in range(4)]
    for job in ids[:2]:
        assert claim(api, worker) == [job]
        api.finish(job)
    assert claim(api, worker) == []
    clock.advance(seconds=10)
    assert claim(api, worker) == ids[2:3]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"rate_limit": 3}, ["rate_limit 3", "rate_period"]),
        ({"rate_period": "1 s"}, ["rate_period 00:00:01", "rate_limit"]),
        ({"rate_limit": 0, "rate_period": "1 s"}, ["rate_limit", "got 0"]),
        ({"rate_limit": -4, "rate_period": "1 s"}, ["rate_limit", "got -4"]),
        ({"rate_limit": 1, "rate_period": "0"}, ["rate_period", "got 00:00:00"]),
        ({"rate_limit": 1, "rate_period": "-1 s"}, ["rate_period", "got -00:00:01"]),
        ({"rate_limit": 1, "rate_period": "1001 years"}, ["rate_period", "got 1001 years"]),
        ({"fair": True}, ["fair", "'q'"]),
        ({"fair": None}, ["fair", "got NULL"]),
    ],
)
def test_an_impossible_limit_is_refused_by_its_name_and_value(
    api: Any, arguments: dict[str, Any], words: list[str]
) -> None:
    with api.refusal("PW001", "^set_queue: ", *words):
        api.set_queue("q", **arguments)
    assert api.rows("select from pyworker.queue_stats") == []


def test_a_queue_that_has_started_nothing_for_long_leaves_no_starts(
    api: Any, worker: int, clock: Any
) -> None:
    api.set_queue("*", None, 10, "2 days")
    add(api, 3, "a")
    claim(api, worker)
    clock.advance(hours=25)
    add(api, 3, "b")
    claim(api, api.register_worker())
    names = "select array_agg(distinct queue_name order by queue_name) from pyworker.starts"
    api.maintain()
    assert api.value(names) == ["a", "b"]
    clock.advance(hours=24)
    api.maintain()
    assert api.value(names) == ["b"]
    clock.advance(hours=48)
    api.maintain()
    assert api.value(names) is None
