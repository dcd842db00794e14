"""Schedules: each due tick is one job, whichever session fires it; nothing that goes wrong with
one hinders another."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.schedules import HOURLY, MINUTELY, OnTheHour, jobs, run_all, scheduled
from tests.support.schedules import hour as hour

# Ticks --------------------------------------------------------------------------------------------


def test_a_due_tick_becomes_one_job_with_its_time(api: Any, hour: OnTheHour) -> None:
    api.add_schedule(
        "s", HOURLY, "t", {"a": 1}, queue_name="q", priority=3, max_attempts=2, flags=["f"], meta={"m": 1}
    )
    assert run_all(api) == 0
    hour.go(0.5)
    assert run_all(api) == 1
    assert run_all(api) == 0
    (job,) = jobs(api)
    row = scheduled(api, "s")
    assert (row.last_at, row.last_job_id, row.last_error) == (job.run_at, job.id, None)
    assert row.next_at == api.value("select %s + interval '1 hour'", [job.run_at])
    shown = api.value("select to_char(%s at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:00:00.000Z')", [job.run_at])
    assert job.payload == {"a": 1, "_cron": {"ts": shown, "backfilled": False}}
    made = api.get_job(job.id)
    assert (made.queue_name, made.priority, made.max_attempts, made.flags, made.meta) == (
        "q",
        3,
        2,
        {"f": True},
        {"m": 1},
    )


@pytest.mark.parametrize("payload", ["[1]", '"text"', "7", "null"])
def test_a_payload_that_is_no_object_stays_as_it_is(api: Any, hour: OnTheHour, payload: str) -> None:
    api.add_schedule("s", HOURLY, "t", payload)
    hour.go()
    run_all(api)
    assert [job.payload for job in jobs(api)] == [json.loads(payload)]


def test_it_goes_by_the_clocks_of_its_time_zone(api: Any) -> None:
    api.add_schedule("s", "0 4 * * *", "t", timezone="asia/tokyo")
    (added,) = api.rows("select next_at at time zone 'Asia/Tokyo' as shown, timezone from pyworker.schedules")
    assert (added.shown.hour, added.shown.minute, added.timezone) == (4, 0, "Asia/Tokyo")


def test_seconds_until_tick_tells_when_to_come_next(api: Any, hour: OnTheHour) -> None:
    assert api.seconds_until_tick() is None
    api.add_schedule("s", HOURLY, "t")
    assert 0 < api.seconds_until_tick() <= 1800
    hour.go(1)
    assert api.seconds_until_tick() is None
    run_all(api)
    assert 3000 < api.seconds_until_tick() <= 3600


def test_maintain_fires_schedules_too(api: Any, hour: OnTheHour) -> None:
    api.add_schedule("s", HOURLY, "t")
    hour.go()
    assert api.maintain()["scheduled"] == 1
    assert len(jobs(api)) == 1


def test_a_missed_tick_is_passed_over_unless_it_may_be_filled_in(api: Any, hour: OnTheHour) -> None:
    api.add_schedule("plain", HOURLY, "plain")
    api.add_schedule("late", HOURLY, "late")
    api.add_schedule("filled", HOURLY, "filled", backfill="3 hours")
    hour.go(minutes=0.9)  # late, but on time
    assert run_all(api) == 3
    hour.go(minutes=30, hours=4)
    run_all(api)
    assert [len(jobs(api, name)) for name in ("plain", "late", "filled")] == [1, 1, 1 + 3]
    assert [job.payload["_cron"]["backfilled"] for job in jobs(api, "filled")] == [False, True, True, True]
    assert scheduled(api, "plain").next_at == scheduled(api, "filled").next_at


def test_nothing_is_filled_in_from_before_it_was_added(api: Any, hour: OnTheHour) -> None:
    api.add_schedule("s", HOURLY, "t", backfill="1 day")
    assert run_all(api) == 0
    hour.go(5)
    assert run_all(api) == 1


def test_many_missed_ticks_are_filled_in_by_several_calls(api: Any, hour: OnTheHour) -> None:
    api.add_schedule("s", MINUTELY, "t", backfill="1 day")
    hour.go(minutes=0.5, hours=3)
    assert api.run_schedules() == 100
    run_all(api)
    assert len({job.run_at for job in jobs(api)}) == len(jobs(api)) == 210


def test_a_clock_that_is_set_back_fires_nothing_twice(api: Any, hour: OnTheHour) -> None:
    api.add_schedule("s", HOURLY, "t")
    hour.go()
    assert run_all(api) == 1
    hour.clock.advance(minutes=-5)
    assert run_all(api) == 0
    hour.go()
    assert run_all(api) == 0
    hour.go()
    assert run_all(api) == 1
    hour.clock.advance(hours=-48)
    assert api.resume_schedule("s") is not None  # goes on from there
    hour.go()
    assert run_all(api) == 1


def test_a_tick_that_is_rolled_back_is_still_due(api: Any, hour: OnTheHour) -> None:
    api.add_schedule("s", HOURLY, "t")
    hour.go()
    api.rows("begin")
    assert run_all(api) == 1
    api.rows("rollback")
    assert run_all(api) == 1


def test_no_session_waits_for_one_that_has_locked_a_schedule(api: Any, actor: Any, hour: OnTheHour) -> None:
    api.add_schedule("s", HOURLY, "t")
    api.add_schedule("other", HOURLY, "u")
    other = actor()
    hour.go()
    other.begin()
    other.rows("select from pyworker.schedule_entries where name = 's' for update")
    api.rows("set lock_timeout = '1ms'; set deadlock_timeout = '1ms'")
    assert run_all(api) == 1
    assert (len(jobs(api)), len(jobs(api, "u"))) == (0, 1)
    other.commit()
    assert run_all(api) == 1
    assert len(jobs(api)) == 1


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_an_old_snapshot_fires_nothing_again(api: Any, actor: Any, hour: OnTheHour, isolation: str) -> None:
    api.add_schedule("s", HOURLY, "t")
    old = actor()
    hour.go()
    old.begin(isolation)
    assert run_all(api) == 1
    assert old.run_schedules() == 0
    old.commit()
    assert len(jobs(api)) == 1


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_a_tick_can_be_fired_at_any_isolation_level(
    api: Any, actor: Any, hour: OnTheHour, isolation: str
) -> None:
    api.add_schedule("s", HOURLY, "t", job_key="k")
    old = actor()
    hour.go()
    old.begin(isolation)
    assert old.run_schedules() == 1
    assert run_all(api) == 0
    old.commit()
    assert [job.job_key for job in jobs(api)] == ["k"]


# What goes wrong ----------------------------------------------------------------------------------


def test_one_that_fails_hinders_no_other_and_says_what_is_wrong(api: Any, hour: OnTheHour) -> None:
    api.add_schedule("big", HOURLY, "t", {"text": "x" * 2000})
    api.add_schedule("good", HOURLY, "u")
    api.configure(max_payload_bytes=1024)
    hour.go()
    assert run_all(api) == 2
    assert (len(jobs(api)), len(jobs(api, "u"))) == (0, 1)
    assert "payload must not be larger than 1024 bytes" in scheduled(api, "big").last_error
    assert scheduled(api, "good").last_error is None
    (found,) = api.rows(
        "select * from pyworker.doctor() where check_name = 'schedules' and finding like 'schedule big%%'"
    )
    assert (found.severity, "payload must not be larger" in found.finding) == ("warning", True)
    with api.refusal("PW001", "payload must not be larger"):
        api.rows(found.fix)
    api.configure(max_payload_bytes=4096)
    hour.go()
    assert run_all(api) == 2
    assert scheduled(api, "big").last_error is None


def test_a_job_that_another_session_has_locked_puts_the_tick_off(
    api: Any, actor: Any, hour: OnTheHour
) -> None:
    api.add_schedule("s", HOURLY, "t", job_key="k")
    api.add_schedule("other", HOURLY, "u")
    api.add_job("t", job_key="k")
    other = actor()
    other.begin()
    other.add_job("t", job_key="k", payload={"by": "hand"})
    hour.go()
    assert run_all(api) == 1
    assert scheduled(api, "s").last_at is None
    other.commit()
    assert run_all(api) == 1
    assert [job.payload["_cron"]["backfilled"] for job in jobs(api)] == [False]


@pytest.mark.parametrize("on_conflict", ["ignore", "reject"])
def test_a_tick_counts_as_fired_when_a_job_like_it_is_there(
    api: Any, hour: OnTheHour, on_conflict: str
) -> None:
    api.define_task("t", unique_policy={"on_conflict": on_conflict})
    api.add_schedule("s", HOURLY, "t")
    first = api.add_job("t")
    hour.go()
    assert run_all(api) == 1
    assert [job.id for job in jobs(api)] == [first.id]
    row = scheduled(api, "s")
    assert (row.last_error, row.last_at is not None, row.next_at > row.last_at) == (None, True, True)


def test_ticks_of_a_sequence_run_one_after_another(api: Any, hour: OnTheHour) -> None:
    api.add_schedule("s", HOURLY, "t", sequence_policy={"key": "reports"}, backfill="1 day")
    hour.go(hours=2)
    run_all(api)
    assert [job.state for job in jobs(api)] == ["pending"] * 3
    api.promote_jobs()
    assert [job.state for job in jobs(api)] == ["available", "pending", "pending"]


def test_a_job_key_makes_one_job_of_many_ticks(api: Any, hour: OnTheHour) -> None:
    api.add_schedule("s", HOURLY, "t", job_key="k", job_key_mode="preserve_run_at", backfill="1 day")
    hour.go(hours=2)
    assert run_all(api) == 3
    (job,) = jobs(api)
    assert job.payload["_cron"]["ts"] > job.run_at.isoformat()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": ""}, "name must be 1 to 200 characters long, got ''"),
        ({"name": None}, "name must be 1 to 200 characters long, got NULL"),
        ({"name": "n" * 201}, "name must be 1 to 200"),
        ({"cron": "1 2 3 4"}, "cron: '1 2 3 4' is not a schedule"),
        ({"cron": "61 * * * *"}, "cron: Too large value '61' in minutes range, position 1"),
        ({"timezone": "Mars"}, "timezone must be the name of a time zone.*got 'Mars'"),
        ({"backfill": "-1 hour"}, "backfill must be from 0 to 100 years, got -01:00:00"),
        ({"backfill": None}, "backfill must be from 0 to 100 years, got NULL"),
        ({"identifier": ""}, "identifier must be 1 to 128 characters long"),
        ({"max_attempts": 0}, "max_attempts must be from 1 to 32767, got 0"),
        ({"priority": 40000}, "priority must be .*got 40000"),
        ({"job_key_mode": "x"}, "job_key_mode must be .*got 'x'"),
        ({"delivery": "twice"}, "delivery must be .*got 'twice'"),
        ({"unique_policy": {"nope": 1}}, "unique_policy: .*nope"),
        ({"sequence_policy": {"nope": 1}}, "sequence_policy: .*nope"),
        (
            {"job_key": "k", "unique_policy": {"by_args": True}},
            "job_key and unique_policy exclude each other",
        ),
        ({"meta": "[]"}, "meta must be a JSON object"),
        ({"query_role": "postgres"}, "query_role is of no use without a query"),
    ],
)
def test_arguments_that_are_refused(api: Any, arguments: dict[str, Any], words: str) -> None:
    with api.refusal("PW001", "^add_schedule: ", words):
        api.add_schedule(**{"name": "s", "cron": HOURLY, "identifier": "t", **arguments})
    assert api.rows("select from pyworker.schedules") == []


@pytest.mark.parametrize("verb", ["remove_schedule", "pause_schedule", "resume_schedule", "run_schedule"])
@pytest.mark.parametrize("name", ["nope", None])
def test_an_unknown_schedule(api: Any, verb: str, name: str | None) -> None:
    with api.refusal(
        "PW004", f"{verb}: there is no schedule {name!r}" if name else f"{verb}: there is no schedule NULL"
    ):
        getattr(api, verb)(name)
