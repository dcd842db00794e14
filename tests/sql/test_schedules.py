"""Schedules: each due tick is one job, whoever fires it; nothing that goes wrong with one hinders another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pyworker._db.migrations import migrate

HOURLY, MINUTELY = "0 * * * *", "* * * * *"


class OnTheHour:
    """The clock, and how to get to a certain time of an hour."""

    def __init__(self, api: Any, clock: Any) -> None:
        self.api = api
        self.clock = clock

    def go(self, minutes: float = 0, hours: float = 0) -> None:
        """So long after the next full hour."""
        into = self.api.value(
            "select extract(epoch from pyworker.clock() - date_trunc('hour', pyworker.clock()))::float8"
        )
        self.clock.advance(seconds=3600 - into + 60 * minutes + 3600 * hours)


@pytest.fixture
def hour(api: Any, clock: Any) -> OnTheHour:
    at = OnTheHour(api, clock)
    at.go(30)
    return at


def scheduled(api: Any, name: str) -> Any:
    return api.rows("select * from pyworker.schedules where name = %s", [name])[0]


def jobs(api: Any, identifier: str = "t") -> list[Any]:
    return api.rows(
        "select id, run_at, payload, state, job_key from pyworker.live_jobs where task_identifier = %s order by run_at, id",
        [identifier],
    )


def run_all(api: Any) -> int:
    """As a worker does: again, as long as there was something to do."""
    fired, total = 1, 0
    while fired:
        fired = api.run_schedules()
        total += fired
    return total


# Ticks ---------------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("payload", ["[1]", '"text"', "7"])
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


def test_nobody_waits_for_who_has_a_schedule_in_hand(api: Any, actor: Any, hour: OnTheHour) -> None:
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


# What goes wrong -----------------------------------------------------------------------------------------------------


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


def test_a_job_that_somebody_has_in_hand_puts_the_tick_off(api: Any, actor: Any, hour: OnTheHour) -> None:
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


# Changes -------------------------------------------------------------------------------------------------------------


def test_adding_it_again_unchanged_writes_nothing(api: Any, hour: OnTheHour) -> None:
    arguments: dict[str, Any] = {"payload": {"a": 1}, "flags": ["x"], "meta": {"m": 1}, "backfill": "1 hour"}
    api.add_schedule("s", HOURLY, "t", **arguments)
    before = api.rows("select xmin::text, ctid::text from pyworker.schedule_entries")
    hour.go(10)
    api.add_schedule("s", HOURLY, "t", **arguments)
    assert api.rows("select xmin::text, ctid::text from pyworker.schedule_entries") == before
    assert run_all(api) == 1, "its tick was not lost"


def test_changing_it_keeps_its_ticks_unless_its_times_change(api: Any, hour: OnTheHour) -> None:
    api.add_schedule("s", HOURLY, "t", backfill="1 hour")
    hour.go(10)
    api.add_schedule("s", HOURLY, "u", backfill="1 hour")
    assert run_all(api) == 1
    assert len(jobs(api, "u")) == 1
    hour.go(10)
    api.add_schedule("s", "30 * * * *", "v", backfill="1 hour")
    assert run_all(api) == 0
    hour.clock.advance(minutes=20.5)
    assert run_all(api) == 1


def test_a_paused_schedule_passes_over_what_falls_into_the_pause(api: Any, hour: OnTheHour) -> None:
    api.add_schedule("s", HOURLY, "t", backfill="1 day")
    api.pause_schedule("s")
    assert (scheduled(api, "s").paused, scheduled(api, "s").next_at) == (True, None)
    hour.go(hours=2)
    assert run_all(api) == 0
    api.add_schedule("s", MINUTELY, "t")
    api.add_schedule("s", HOURLY, "t", backfill="2 days")
    assert run_all(api) == 0, "it stays paused when it is added again"
    assert scheduled(api, "s").next_at is None
    api.resume_schedule("s")
    assert run_all(api) == 0
    hour.go()
    assert run_all(api) == 1


def test_resuming_what_is_not_paused_changes_nothing(api: Any, hour: OnTheHour) -> None:
    api.add_schedule("s", HOURLY, "t")
    hour.go()
    api.resume_schedule("s")
    assert run_all(api) == 1


def test_it_can_be_run_by_hand_paused_or_not(api: Any, hour: OnTheHour) -> None:
    api.add_schedule("s", HOURLY, "t", {"a": 1})
    api.pause_schedule("s")
    before = scheduled(api, "s")
    (job,) = api.rows("select * from pyworker.run_schedule('s')")
    assert (job.task_identifier, job.state, job.payload["a"], job.payload["_cron"]["backfilled"]) == (
        "t",
        "available",
        1,
        False,
    )
    assert scheduled(api, "s") == before


def test_a_removed_schedule_leaves_its_jobs(api: Any, hour: OnTheHour) -> None:
    api.add_schedule("s", HOURLY, "t")
    hour.go()
    run_all(api)
    assert "s" in api.remove_schedule("s")
    hour.go()
    assert run_all(api) == 0
    assert len(jobs(api)) == 1


# Many at once --------------------------------------------------------------------------------------------------------

FILE = ["crontab:file"]


def declare(
    api: Any, origins: list[str], specs: list[dict[str, Any]], dry_run: bool = False
) -> dict[str, str]:
    rows = api.rows(
        "select name, action from pyworker.declare_schedules(%s, %s, %s)", [origins, Jsonb(specs), dry_run]
    )
    return {row.name: row.action for row in rows}


def spec(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "cron": HOURLY, "identifier": "t", **more}


def test_who_speaks_for_an_origin_says_all_that_it_wants(api: Any) -> None:
    api.add_schedule("mine", HOURLY, "t")
    assert declare(api, FILE, [spec("a"), spec("b")]) == {"a": "added", "b": "added"}
    wanted = [spec("b", priority=2), spec("c"), spec("mine")]
    expected = {"b": "changed", "c": "added", "mine": "left to sql", "a": "removed"}
    assert declare(api, FILE, wanted, dry_run=True) == expected
    assert declare(api, FILE, wanted) == expected
    assert declare(api, FILE, wanted) == {"b": "unchanged", "c": "unchanged", "mine": "left to sql"}
    assert {row.name: row.origin for row in api.rows("select name, origin from pyworker.schedules")} == {
        "b": FILE[0], "c": FILE[0], "mine": "sql",
    }  # fmt: skip


def test_code_speaks_for_its_modules_and_takes_over_from_code_only(api: Any) -> None:
    modules = ["code:app.a", "code:app.b"]
    declare(api, modules, [spec("a", origin="code:app.a"), spec("b", origin="code:app.b")])
    declare(api, FILE, [spec("file")])
    assert declare(api, ["code:renamed"], [spec("a"), spec("file")]) == {
        "a": "changed",
        "file": "left to crontab:file",
    }
    assert declare(api, modules, [spec("b", origin="code:app.b")]) == {"b": "unchanged"}
    assert declare(api, modules, []) == {"b": "removed"}


def test_what_sql_has_taken_over_stays_so(api: Any) -> None:
    declare(api, FILE, [spec("a")])
    api.add_schedule("a", MINUTELY, "t")
    assert declare(api, FILE, [spec("a")]) == {"a": "left to sql"}
    assert declare(api, FILE, []) == {}
    assert scheduled(api, "a").cron == MINUTELY


@pytest.mark.parametrize(
    ("origins", "specs", "words"),
    [
        ([], [], "origins must be names like 'crontab:NAME' or 'code:MODULE', got {}"),
        (["sql"], [], "origins must be .*got {sql}"),
        (FILE, {}, "schedules must be a JSON array, got object"),
        (FILE, [1], r"schedules\[1\] must be an object, got number"),
        (FILE, [spec("a"), spec("b", color="red")], r'schedules\[2\] has the unknown member "color"'),
        (FILE, [spec("a", query="select 1")], 'unknown member "query"'),
        (FILE, [spec("a"), spec("a")], r"schedules\[2\] is named 'a' like another one"),
        (
            FILE,
            [spec("a", origin="code:x")],
            r"schedules\[1\] has the origin 'code:x', which is not one of {crontab:file}",
        ),
        (FILE, [spec("a", priority="high")], r"schedules\[1\] \(a\) is not valid: .*high"),
        (
            FILE,
            [spec("a", cron="x")],
            r"schedules\[1\] \(a\) is not valid: add_schedule: cron: 'x' is not a schedule",
        ),
        (FILE, [{"name": "a"}], "add_schedule: cron: NULL is not a schedule"),
    ],
)
def test_declarations_that_are_refused(api: Any, origins: list[str], specs: Any, words: str) -> None:
    with api.refusal("PW001", words):
        declare(api, origins, specs)
    assert api.rows("select from pyworker.schedules") == []


CRONTAB = """\
# ┌───────────── UTC minute (0 - 59)
# * * * * * task ?opts {payload}

* * * * * simple
0 4 * * 7 every_sunday ?id=sunday_7\r
   0 4 * * 2   on_tuesday   {isTuesday: true}
*/10,7,56-59 1 1 1 1 one ?id=stuff&fill=4w3d2h1m&max=3&queue=my_queue&priority=-3 {a:{b:"with # and ?x=1"}}
* * * * * a/b:c ?jobKey=my%20k%C3%A9y+x&jobKeyMode=preserve_run_at
0 0 */2 * 1 either
0 0 1-31 * */2 weekdays
@daily extended
"""


def test_a_crontab_of_graphile_worker_is_read_as_it_is(api: Any) -> None:
    rows = api.rows("select * from pyworker.parse_crontab(%s)", [CRONTAB])
    assert [(row.line, row.schedule, row.payload) for row in rows] == [
        (4, {"name": "simple", "cron": "* * * * *", "identifier": "simple"}, None),
        (5, {"name": "sunday_7", "cron": "0 4 * * 7", "identifier": "every_sunday"}, None),
        (6, {"name": "on_tuesday", "cron": "0 4 * * 2", "identifier": "on_tuesday"}, "{isTuesday: true}"),
        (
            7,
            {
                "name": "stuff", "cron": "*/10,7,56-59 1 1 1 1", "identifier": "one", "backfill": "4w 3d 2h 1m ", "max_attempts": "3",
                "queue_name": "my_queue", "priority": "-3",
            },
            '{a:{b:"with # and ?x=1"}}',
        ),
        (8, {"name": "a/b:c", "cron": "* * * * *", "identifier": "a/b:c", "job_key": "my kéy x", "job_key_mode": "preserve_run_at"}, None),
        (9, {"name": "either", "cron": "0 0 1-31/2 * 1", "identifier": "either"}, None),
        (10, {"name": "weekdays", "cron": "0 0 * * 0-6/2", "identifier": "weekdays"}, None),
        (11, {"name": "extended", "cron": "@daily", "identifier": "extended"}, None),
    ]  # fmt: skip
    assert set(declare(api, FILE, [row.schedule for row in rows]).values()) == {"added"}
    assert api.value(
        "select backfill = interval '31 days 2 hours 1 minute' from pyworker.schedules where name = 'stuff'"
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("* * * * too_few_parameters", "Could not process line '2' of crontab: '* * * * too_few_parameters'"),
        ("* * * * * two tasks", "Invalid command specification in line 2 of crontab."),
        ("1,60 * * * * t", "Too large value '60' in minutes range in line 2 of crontab: expected values in the range 0-59."),
        ("* * 0 * * t", "Too small value '0' in dates range in line 2 of crontab: expected values in the range 1-31."),
        ("5-3 * * * * t", "Invalid range '5-3' in minutes range in line 2 of crontab: destination is not larger than source"),
        (
            "*/0 * * * * t",
            "Invalid wildcard expression '*/0' in minutes range in line 2 of crontab: divisor '0' expected to be greater than zero",
        ),
        (
            "a * * * * t",
            "Unsupported syntax 'a' in minutes range in line 2 of crontab: this doesn't appear to be a number, range or wildcard",
        ),
        ("0 0 30 2 * t", "'0 0 30 2 *' never comes: no month has such a day (line 2 of crontab)"),
        (
            "* * * * * t ?unknown=3",
            "Options on line 2 of crontab contains unsupported key 'unknown'; supported keys are: 'id', 'fill', 'max', 'queue', 'jobKey',"
            " 'jobKeyMode', 'priority'.",
        ),
        ("* * * * * t ?max=1&max=2", "Options on line 2 of crontab specifies 'max' more than once."),
        ("* * * * * t ?max=x", "Options on line 2 of crontab contains an invalid value for 'max': 'x'."),
        ("* * * * * t ?fill=1y", "Options on line 2 of crontab contains an invalid value for 'fill': '1y'."),
        ("* * * * * t ?jobKeyMode=unsafe_dedupe", "contains an invalid value for 'jobKeyMode': 'unsafe_dedupe'."),
        ("* * * * * t ?id=1", "contains an invalid value for 'id': '1'."),
        ("* * * * * first", "Lines 1 and 2 of crontab have the same identifier 'first'; give one of them another by '?id='."),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_crontab_is_said_with_its_line(api: Any, line: str, words: str) -> None:
    with pytest.raises(psycopg.Error) as caught:
        api.rows("select * from pyworker.parse_crontab(%s)", [f"* * * * * first\n{line}\n"])
    assert caught.value.sqlstate == "PW001"
    assert words in str(caught.value.diag.message_primary)


# doctor --------------------------------------------------------------------------------------------------------------


def findings(api: Any) -> list[tuple[str, str, str]]:
    rows = api.rows("select severity, finding, fix from pyworker.doctor() where check_name = 'schedules'")
    return [(row.severity, row.finding, row.fix) for row in rows]


def healed_by(api: Any, severity: str, words: str) -> None:
    ((found, finding, fix),) = findings(api)
    assert (found, words in finding) == (severity, True), finding
    api.rows(fix)
    assert [row[0] for row in findings(api)] == ["ok"]


def test_doctor_finds_paused_schedules(api: Any) -> None:
    api.add_schedule("s", HOURLY, "t")
    assert findings(api) == [("ok", "schedules are fired, and their tasks are known", None)]
    api.pause_schedule("s")
    healed_by(api, "info", "paused schedules: s")


def test_doctor_finds_that_nobody_fires_them(api: Any, hour: OnTheHour) -> None:
    api.add_schedule("s", HOURLY, "t")
    hour.go(10)
    healed_by(api, "warning", "schedules are not fired: s (due since")


def test_doctor_finds_a_schedule_that_waits_for_the_clock(api: Any, hour: OnTheHour) -> None:
    api.add_schedule("s", HOURLY, "t")
    hour.go()
    run_all(api)
    hour.clock.advance(hours=-3)
    healed_by(api, "warning", "schedule s stands still: the clock was set back")


def test_doctor_finds_schedules_whose_task_nobody_knows(api: Any) -> None:
    worker = api.register_worker()
    api.update_worker(worker, {"task_identifiers": ["t"]})
    api.add_schedule("s", HOURLY, "t")
    assert [row[0] for row in findings(api)] == ["ok"]
    api.add_schedule("other", HOURLY, "u")
    assert [row[:2] for row in findings(api)] == [
        ("warning", "no live worker knows the task of schedules: other (u)")
    ]


def test_doctor_finds_a_schedule_without_a_next_tick(api: Any) -> None:
    api.add_schedule("s", HOURLY, "t")
    api.rows("update pyworker.schedule_entries set next_at = null")
    (found,) = api.rows("select * from pyworker.doctor() where check_name = 'invariants'")
    assert (found.severity, found.finding) == ("error", "I8: schedules do not know their next tick: s")
    api.rows(found.fix)
    assert [
        row.severity for row in api.rows("select * from pyworker.doctor() where check_name = 'invariants'")
    ] == ["ok"]


# Queries -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def roles(fresh: psycopg.Connection[Any]) -> Iterator[dict[str, str]]:
    """Roles of this test alone: reader owns nothing and may read orders; caller is a pyworker_admin and a member of reader."""
    name = fresh.info.dbname
    found = {role: f"{role} of {name}" for role in ("reader", "caller", "stranger")}
    for role in found.values():
        fresh.execute(f'create role "{role}"')
    fresh.execute(f"""
        create table public.orders (id integer, total integer);
        insert into public.orders select n, 10 * n from generate_series(1, 5) n;
        grant usage on schema public to public;
        grant select on public.orders to "{found["reader"]}";
        grant "{found["reader"]}", pyworker_admin to "{found["caller"]}" """)
    yield found
    fresh.rollback()
    fresh.execute("reset session authorization")
    for role in found.values():
        fresh.execute(f'drop owned by "{role}" cascade; drop role "{role}"')


@pytest.fixture
def own(own: Any, roles: dict[str, str]) -> Any:
    """A database of this test alone, as its caller."""
    own.rows(f'set session authorization "{roles["caller"]}"')
    return own


def add(own: Any, roles: dict[str, str], query: str, name: str = "q", **more: Any) -> Any:
    return own.add_schedule(name, MINUTELY, "bill", query=query, **{"query_role": roles["reader"], **more})


def tick(own: Any, n: int = 1, first: Any = None) -> None:
    """As a worker, a second after the next minute has begun, or the n-th: no other tick is due then. `first`: the minute
    to count from, for a test that takes so long that another one may begin meanwhile."""
    offset = own.value(
        "select extract(epoch from coalesce(%s::timestamptz - interval '1 minute', date_trunc('minute', now())) - now()) + %s",
        [first, 60 * n + 1],
    )
    own.rows(
        f"reset session authorization; set pyworker.clock_offset = '{offset} seconds'; set role pyworker_worker"
    )
    run_all(own)
    own.rows("reset role")


ORDERS = "select 'order ' || id as job_key, jsonb_build_object('id', id) as payload, total as priority from public.orders order by id"


def test_each_row_of_a_query_becomes_a_job(own: Any, roles: dict[str, str]) -> None:
    add(own, roles, ORDERS, payload={"unused": 1}, max_attempts=4)
    tick(own)
    rows = own.rows("select job_key, payload, priority, max_attempts from pyworker.live_jobs order by id")
    assert rows == [(f"order {n}", {"id": n}, 10 * n, 4) for n in range(1, 6)]
    tick(own, 2)
    assert own.value("select count(*) from pyworker.live_jobs") == 5, "a key is a key"


def test_a_null_is_left_to_the_schedule_and_a_limit_is_kept(own: Any, roles: dict[str, str]) -> None:
    add(own, roles, "select null::json as payload, case when id > 1 then 7 end as priority from public.orders order by id",
        payload={"mine": True}, priority=1, query_limit=2)  # fmt: skip
    tick(own)
    assert own.rows("select payload, priority from pyworker.live_jobs order by id") == [
        ({"mine": True}, 1),
        ({"mine": True}, 7),
    ]


def test_no_row_is_no_job_and_a_missed_tick_is_not_asked_again(own: Any, roles: dict[str, str]) -> None:
    add(own, roles, "select 1 as priority where false", name="none")
    add(own, roles, "select 1 as priority", name="one")
    tick(own, 10)
    assert own.value("select count(*) from pyworker.live_jobs") == 1
    assert [row.last_error for row in own.rows("select last_error from pyworker.schedules")] == [None, None]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("select id from public.orders", "its columns must be named like arguments of add_job, got 'id'"),
        ("select 1", "got '\\?column\\?'"),
        (
            "select job_key from orders",
            r'relation "orders" does not exist \(names must be qualified by their schema\)',
        ),
        ("select nope()", "does not exist"),
        ("not sql", "syntax error"),
        ("", "query"),
        ("select 1 as priority; select 2 as priority", "multi-query"),
        ("select 1 as priority) q; drop table public.orders; --", "syntax error"),
        ("delete from public.orders returning id as priority", "query"),
        (
            "with gone as (delete from public.orders returning id) select id as priority from gone",
            "not allowed in a non-volatile",
        ),
        ("create table public.x ()", "query"),
        ("set role postgres", "query"),
        ("table pyworker.live_jobs", "permission denied"),
        ("select rolpassword as job_key from pg_catalog.pg_authid", "permission denied"),
    ],
)
def test_a_query_is_tried_when_it_is_given(own: Any, roles: dict[str, str], query: str, words: str) -> None:
    with own.refusal("PW001", "^add_schedule: query: ", words):
        add(own, roles, query)
    own.rows("reset session authorization")
    assert own.value("select count(*) from public.orders") == 5
    assert own.rows("select from pyworker.schedules") == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"query_role": "nobody at all"}, "query_role must name the role .*got 'nobody at all'"),
        (
            {"query_role": "postgres"},
            "query_role must not have the rights of the owner of schema pyworker, got 'postgres'",
        ),
        ({"query_limit": 0}, "query_limit must be from 1 to 100000, got 0"),
        ({"backfill": "1 hour"}, "backfill is of no use to a query"),
    ],
)
def test_arguments_of_a_query_that_are_refused(
    own: Any, roles: dict[str, str], arguments: dict[str, Any], words: str
) -> None:
    with own.refusal("PW001", "^add_schedule: ", words):
        add(own, roles, ORDERS, **arguments)


def test_a_role_that_the_caller_is_not_a_member_of_is_refused(own: Any, roles: dict[str, str]) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        add(own, roles, "select 1 as priority", query_role=roles["stranger"])


def test_nobody_can_be_made_to_lend_his_rights(own: Any, roles: dict[str, str]) -> None:
    """A superuser calls somebody's SECURITY DEFINER function, or refreshes his materialized view: PostgreSQL's own rules hold."""
    own.rows("reset session authorization; create schema trap")
    own.rows(f'grant create, usage on schema trap to "{roles["caller"]}"')
    own.rows(
        f'grant "{roles["stranger"]}" to postgres'
        if own.value("select current_user") != "postgres"
        else "select 1"
    )
    call = f"pyworker.add_schedule('q', '* * * * *', 'bill', query => 'select 1 as priority', query_role => '{roles['stranger']}')"
    own.rows(f'set session authorization "{roles["caller"]}"')
    own.rows(
        f"create function trap.f() returns void language plpgsql security definer as $$ begin perform {call}; end $$"
    )
    own.rows(f"create materialized view trap.v as select {call} as x with no data")
    own.rows("reset session authorization")
    for trap in ("select trap.f()", "refresh materialized view trap.v"):
        with pytest.raises(psycopg.Error, match='cannot set parameter "role" within security-'):
            own.rows(trap)
    own.rows("drop schema trap cascade")
    assert own.rows("select from pyworker.schedules") == []


def test_the_function_of_a_query_cannot_be_slipped_in(own: Any, roles: dict[str, str]) -> None:
    """_add_schedule may be called by an admin, with any role and text: only what that role has made itself counts."""
    call = """select pyworker._add_schedule(jsonb_populate_record(null::pyworker.schedule, jsonb_build_object(
        'name', 'q', 'cron', '* * * * *', 'timezone', 'UTC', 'backfill', '0', 'identifier', 'bill', 'query', 'select 1 as priority',
        'query_role', %s::text, 'query_limit', 10, 'origin', 'sql', 'paused', false)))"""
    with own.refusal("PW001", "its function is not the one that add_schedule makes"):
        own.rows(call, [roles["stranger"]])
    for query, role in (("select 2 as priority", "reader"), ("select 1 as priority", "stranger")):
        add(own, roles, query)
        with own.refusal("PW001", "its function is not the one that add_schedule makes"):
            own.rows(call, [roles[role]])


ROB = "insert into pyworker.once_keys values ('robbed by ' || current_user, now())"


def test_the_owner_of_a_function_cannot_have_it_run_with_our_rights(own: Any, roles: dict[str, str]) -> None:
    """It is his, and he might alter it: but not without a right on its schema, and with one no query is run."""
    add(own, roles, "select 1 as priority")
    function = own.value("select (pyworker._query_function('q', '')).path")
    alter = f"alter function {function}(integer) security invoker"
    with pytest.raises(
        psycopg.errors.InsufficientPrivilege, match="permission denied for schema pyworker_queries"
    ):
        own.rows(alter)
    # An admin may call what add_schedule calls.
    own.rows("select pyworker._lend_query_schema('other', %s)", [roles["caller"]])
    tick(own)
    assert "may have been changed" in scheduled(own, "q").last_error
    own.rows(f'set session authorization "{roles["caller"]}"')
    body = f"begin {ROB}; return next '{{}}'; end"
    own.rows(alter)
    own.rows(
        f"create or replace function {function}(max_rows integer) returns setof jsonb language plpgsql as $$ {body} $$"
    )
    own.rows("reset session authorization; revoke all on schema pyworker_queries from public")
    own.rows(f'revoke all on schema pyworker_queries from "{roles["caller"]}", "{roles["reader"]}"')
    tick(own, 2)
    assert "may have been changed" in scheduled(own, "q").last_error
    own.rows(f'set session authorization "{roles["caller"]}"')
    with own.refusal("PW005", "may have been changed"):
        own.rows("select * from pyworker.run_schedule('q')")
    add(own, roles, "select 1 as priority")
    tick(own, 3)
    assert own.value("select count(*) from pyworker.live_jobs") == 1
    assert own.rows("select from pyworker.once_keys") == []


def test_nobody_has_a_right_on_the_schema_of_queries_but_while_one_is_added(
    own: Any, roles: dict[str, str]
) -> None:
    guests = "select a.grantee from pg_namespace n, aclexplode(n.nspacl) a where n.nspname = 'pyworker_queries' and a.grantee <> n.nspowner"
    own.rows("select pyworker._lend_query_schema('other', %s)", [roles["caller"]])
    own.rows(f"select pyworker._lend_query_schema('other', '{roles['reader']}')")
    assert len(own.rows(guests)) > 0
    add(own, roles, "select 1 as priority")
    assert own.rows(guests) == []
    add(own, roles, "select 1 as priority")
    assert own.rows(guests) == [], "nor after it was added again"


def test_a_query_is_not_run_while_one_is_being_added(own: Any, roles: dict[str, str], fresh_dsn: str) -> None:
    add(own, roles, "select 1 as priority")
    with psycopg.connect(fresh_dsn) as other:
        other.execute("select pyworker._lend_query_schema('other', %s)", [roles["reader"]])
        tick(own)
        assert scheduled(own, "q").last_at is None
        other.rollback()
    tick(own, 2)
    assert own.value("select count(*) from pyworker.live_jobs") == 2  # both ticks


ESCAPES = [
    "select set_config('role', 'postgres', false) as job_key",
    "select set_config('session_authorization', 'postgres', false) as job_key",
    "select job_key from pg_catalog.query_to_xml('select * from pyworker.live_jobs', true, true, '') x(job_key)",
    "select lo_export(lo_create(0), '/tmp/x')::text as job_key",
    "select pyworker._query_function('a', 'b')::text as job_key",
]


@pytest.mark.parametrize("query", ESCAPES)
def test_a_query_cannot_get_at_more_than_its_role_may(own: Any, roles: dict[str, str], query: str) -> None:
    with suppress(psycopg.Error):  # some are refused at once
        add(own, roles, query)
    tick(own)
    assert own.rows("select from pyworker.live_jobs") == []
    assert own.value("select current_user") == own.value("select session_user")
    for row in own.rows("select last_error from pyworker.schedules"):
        assert row.last_error


def test_a_query_runs_as_its_role_with_a_safe_path(own: Any, roles: dict[str, str]) -> None:
    add(
        own,
        roles,
        "select current_user::text as job_key, json_build_array(current_setting('search_path')) as payload",
    )
    own.rows("reset session authorization; create temp table pg_class (relname text)")
    tick(own)
    assert own.rows("select job_key, payload from pyworker.live_jobs") == [
        (roles["reader"], ["pg_catalog, pg_temp"])
    ]


def test_what_functions_do_that_a_query_calls_is_undone(own: Any, roles: dict[str, str]) -> None:
    """Even a setting of the session, which would outlast it: think of search_path."""
    own.rows("reset session authorization")
    own.rows(f'grant pyworker_producer to "{roles["reader"]}"')
    own.rows(f'set session authorization "{roles["caller"]}"')
    before = own.value("select current_setting('application_name')")
    add(
        own,
        roles,
        "select set_config('application_name', 'evil', false) as job_key, (pyworker.add_job('side effect')).id::integer as priority",
    )
    own.rows("select * from pyworker.run_schedule('q')")
    assert own.value("select current_setting('application_name')") == before
    own.rows("reset session authorization")
    assert own.rows("select task_identifier, job_key from pyworker.live_jobs") == [("bill", "evil")]


def test_a_query_that_calls_back_finds_nothing_due(own: Any, roles: dict[str, str]) -> None:
    own.rows("reset session authorization")
    own.rows(f'grant pyworker_worker to "{roles["reader"]}"')
    own.rows(f'set session authorization "{roles["caller"]}"')
    add(own, roles, "select json_build_array(pyworker.run_schedules()) as payload")
    tick(own)
    assert own.rows("select payload from pyworker.live_jobs") == [([0],)]


def cancelled_while_it_waits(api: Any, firing: Any) -> None:
    """Cancels the call of another session once it waits for a lock, or sleeps."""
    waits = (
        "select from pg_stat_activity where pid = %s and (wait_event_type = 'Lock' or wait_event = 'PgSleep')"
    )
    while not api.rows(waits, [firing.session.pid]):
        api.rows("select pg_sleep(0.01)")
    api.rows("select pg_cancel_backend(%s)", [firing.session.pid])


@pytest.mark.parametrize("by", ["pg_cancel_backend", "statement_timeout"])
def test_a_tick_whose_statement_was_cancelled_is_still_due(
    api: Any, actor: Any, hour: OnTheHour, by: str
) -> None:
    api.add_schedule("s", HOURLY, "t", job_key="k")
    api.add_job("t", job_key="k", run_at=api.at("1 day"))
    due = scheduled(api, "s").next_at
    hour.go()
    holder, firing = actor(), actor()
    holder.begin()
    holder.add_job("t", job_key="k", payload={"by": "hand"}, run_at=api.at("1 day"))
    if by == "statement_timeout":
        firing.rows("set statement_timeout = '100ms'")
    future = firing.later.run_schedules()
    if by == "pg_cancel_backend":
        cancelled_while_it_waits(api, firing)
    with suppress(psycopg.errors.QueryCanceled):
        assert future.result(20) == [(0,)]
    holder.rollback()
    row = scheduled(api, "s")
    assert (row.next_at, row.last_at) == (due, None)
    assert run_all(api) == 1
    assert [job.payload["_cron"]["ts"][:13] for job in jobs(api)] == [due.strftime("%Y-%m-%dT%H")]
    assert scheduled(api, "s").last_error is None


def test_a_tick_that_is_interrupted_again_and_again_is_fired_however_late_it_is(
    api: Any, actor: Any, hour: OnTheHour
) -> None:
    api.add_schedule("s", HOURLY, "t", job_key="k")
    api.add_schedule("other", HOURLY, "u")
    api.add_job("t", job_key="k", run_at=api.at("10 days"))
    holder = actor()
    holder.begin()
    holder.add_job("t", job_key="k", run_at=api.at("10 days"))
    hour.go()
    assert run_all(api) == 1, "the other one"
    for minutes in (5, 10, 20):
        hour.clock.advance(minutes=minutes)
        assert run_all(api) == 0
    holder.rollback()
    hour.clock.advance(minutes=15)
    assert run_all(api) == 1
    assert [job.payload["_cron"]["backfilled"] for job in jobs(api)] == [True]
    assert run_all(api) == 0


def test_a_schedule_that_never_gets_done_leaves_others_their_turn(own: Any, roles: dict[str, str]) -> None:
    add(own, roles, "select pg_sleep(60)::text as job_key", name="a slow one")
    add(own, roles, "select 1 as priority", name="quick")
    own.add_schedule("plain", MINUTELY, "plain")
    own.rows("set statement_timeout = '200ms'")
    first = own.value("select max(next_at) from pyworker.schedules")
    for n in (1, 2, 3, 4):
        tick(own, n, first)
        tick(own, n, first)  # as after a call that fired nothing, a worker comes again within a second
    fired = own.rows(
        "select task_identifier as t, count(distinct run_at) from pyworker.live_jobs group by 1 order by 1"
    )
    assert fired == [("bill", 4), ("plain", 4)]
    slow = scheduled(own, "a slow one")
    assert (slow.last_at, "statement timeout" in slow.last_error) == (None, True)
    late = own.value(
        "select pyworker.clock() - next_at > interval '2 minutes' from pyworker.schedule_entries where name = 'a slow one'"
    )
    assert late, "its first tick is due still"


def test_after_a_query_ran_out_of_time_no_other_is_asked_without_a_limit(
    own: Any, roles: dict[str, str]
) -> None:
    for name in ("one", "two"):
        add(own, roles, "select pg_sleep(0.3)::text as job_key", name=name)
    own.rows("set statement_timeout = '100ms'")
    tick(own)
    assert own.rows("select name from pyworker.schedules where last_error is not null") == [("one",)]
    assert own.rows("select from pyworker.live_jobs") == []


def test_maintain_does_not_ask_a_query_that_has_just_run_out_of_time(own: Any, roles: dict[str, str]) -> None:
    """It would have no time limit any more."""
    add(own, roles, "select pg_sleep(0.3)::text as job_key")
    own.rows("set statement_timeout = '100ms'")
    tick(own)
    own.rows("set statement_timeout = 0")
    assert own.maintain()["scheduled"] == 0
    own.rows("set pyworker.clock_offset = '70 seconds'")
    assert own.maintain()["scheduled"] >= 1


@pytest.mark.parametrize("condition", ["disk_full", "admin_shutdown", "out_of_memory", "io_error"])
def test_a_tick_that_met_a_fault_of_the_server_is_still_due(
    own: Any, roles: dict[str, str], condition: str
) -> None:
    own.rows("reset session authorization")
    own.rows(f"""create function public.meets() returns text language plpgsql as
                 $$ begin raise {condition} using message = 'the server is in trouble'; end $$""")
    own.rows(f'set session authorization "{roles["caller"]}"')
    add(own, roles, "select public.meets() as job_key where 1 = 1", name="s")
    due = scheduled(own, "s").next_at
    tick(own)
    own.rows("reset session authorization")
    row = scheduled(own, "s")
    assert (row.next_at, row.last_at, "in trouble" in row.last_error) == (due, None, True)
    own.rows("create or replace function public.meets() returns text language sql as $$ select 'well' $$")
    assert run_all(own) >= 1
    assert own.rows("select job_key from pyworker.live_jobs") == [("well",)]


def test_a_tick_whose_query_is_wrong_counts_as_fired(own: Any, roles: dict[str, str]) -> None:
    add(own, roles, "select 1 / (id - 1) as priority from public.orders")
    due = scheduled(own, "q").next_at
    tick(own)
    row = scheduled(own, "q")
    assert (row.last_at >= due, row.next_at > due, row.last_error is not None) == (True, True, True)


def test_the_owner_may_ask_with_its_own_rights_and_needs_no_role(own: Any, roles: dict[str, str]) -> None:
    own.rows(
        "reset session authorization; drop schema pyworker cascade; drop schema if exists pyworker_queries cascade"
    )
    database = own.conn.info.dbname
    owner = f"owner of {database}"
    own.rows(f'create role "{owner}"; grant create on database "{database}" to "{owner}"')
    own.rows(f'grant select on public.orders to "{owner}"; set session authorization "{owner}"')
    try:
        migrate(own.conn, movable_clock=True)
        assert (
            own.value(
                "select query_role from pyworker.add_schedule('q', '* * * * *', 'bill', query => %s)",
                [ORDERS],
            )
            == owner
        )
        own.rows("set pyworker.clock_offset = '61 seconds'")
        assert run_all(own) == 1
        assert own.value("select count(*) from pyworker.jobs") == 5
        writes = "select (pyworker.add_job('more')).task_identifier as job_key"
        own.rows("select pyworker.add_schedule('q', '* * * * *', 'bill', query => %s)", [writes])
        own.rows("set pyworker.clock_offset = '122 seconds'")
        run_all(own)
        assert own.value("select count(*) from pyworker.jobs where task_identifier = 'more'") == 0
    finally:
        own.rows(f'reset session authorization; drop owned by "{owner}" cascade; drop role "{owner}"')


def test_a_query_runs_with_the_rights_of_its_caller_unless_told_otherwise(
    own: Any, roles: dict[str, str]
) -> None:
    added = add(own, roles, "select current_user::text as job_key", query_role=None)
    assert own.value("select query_role from pyworker.schedules") == roles["caller"]
    assert added
    tick(own)
    assert own.rows("select job_key from pyworker.live_jobs") == [(roles["caller"],)]


def test_a_query_that_takes_too_long_is_cut_off_and_said(own: Any, roles: dict[str, str]) -> None:
    add(own, roles, "select pg_sleep(60)::text as job_key", name="slow")
    add(own, roles, "select 1 as priority", name="quick")
    own.rows("set statement_timeout = '300ms'")
    tick(own)
    errors = {row.name: row.last_error for row in own.rows("select name, last_error from pyworker.schedules")}
    assert "statement timeout" in errors["slow"]
    assert own.rows("select distinct priority from pyworker.live_jobs") == [
        (1,)
    ]  # twice, if a minute began meanwhile


def test_a_role_that_loses_its_rights_is_an_error_of_its_schedule_alone(
    own: Any, roles: dict[str, str]
) -> None:
    add(own, roles, ORDERS)
    add(own, roles, "select 1 as priority", name="other")
    own.rows(f'reset session authorization; revoke select on public.orders from "{roles["reader"]}"')
    tick(own)
    assert "permission denied for table orders" in scheduled(own, "q").last_error
    assert own.value("select count(*) from pyworker.live_jobs") == 1


def test_the_function_of_a_query_comes_and_goes_with_it(own: Any, roles: dict[str, str]) -> None:
    functions = "select count(*) from pg_proc p join pg_namespace n on n.oid = p.pronamespace where n.nspname = 'pyworker_queries'"
    add(own, roles, ORDERS)
    add(own, roles, ORDERS + " desc")
    assert own.value(functions) == 1
    own.add_schedule("q", MINUTELY, "bill")
    assert own.value(functions) == 0
    add(own, roles, ORDERS)
    own.remove_schedule("q")
    assert own.value(functions) == 0


def test_a_plain_owner_of_a_schema_of_any_name_needs_no_other_rights(own: Any, roles: dict[str, str]) -> None:
    own.rows("reset session authorization; drop schema pyworker cascade")
    database = own.conn.info.dbname
    owner = f"owner of {database}"
    own.rows(f'create role "{owner}"; grant create on database "{database}" to "{owner}"; set role "{owner}"')
    try:
        migrate(own.conn, 'My "queue": 100% ünïcode', movable_clock=True)
        own.rows("""select "My ""queue"": 100%% ünïcode".add_schedule('q', '* * * * *', 'bill', query := %s, query_role := %s)""",
                 [ORDERS, roles["reader"]])  # fmt: skip
        assert own.value("select current_user") == owner
        own.rows("set pyworker.clock_offset = '61 seconds'")
        assert own.value("""select "My ""queue"": 100%% ünïcode".run_schedules()""", []) == 1
        assert own.value("""select count(*) from "My ""queue"": 100%% ünïcode".jobs""", []) == 5
        own.rows("""select "My ""queue"": 100%% ünïcode".remove_schedule('q')""", [])
    finally:
        own.rows(f'reset role; drop owned by "{owner}" cascade; drop role "{owner}"')


def test_only_admins_change_schedules(own: Any) -> None:
    own.rows("reset session authorization; set role pyworker_producer")
    for call in (
        "add_schedule('s', '* * * * *', 't')",
        "remove_schedule('s')",
        "run_schedule('s')",
        "run_schedules()",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            own.rows(f"select pyworker.{call}")
    own.rows("reset role; set role pyworker_worker")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        own.rows("select pyworker.add_schedule('s', '* * * * *', 't')")
    assert own.run_schedules() == 0
    own.rows("reset role; set role pyworker_reader")
    assert own.rows("select * from pyworker.schedules") == []
    own.rows("reset role; set role pyworker_admin")
    assert own.add_schedule("s", MINUTELY, "t")
