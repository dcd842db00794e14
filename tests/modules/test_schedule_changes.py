"""Schedules change: one by one, by a declaration of all, by a crontab; and doctor() looks at them."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.support.schedules import HOURLY, MINUTELY, OnTheHour, jobs, run_all, scheduled
from tests.support.schedules import hour as hour


def test_of_two_workers_that_declare_a_schedule_at_once_one_says_that_it_was_added(
    db: Any, session: Any
) -> None:
    first, second = session(), session()
    statement = "select action from pyworker.declare_schedules(%s, %s)"
    arguments = [["code:app.a"], Jsonb([spec("both", origin="code:app.a")])]
    first.begin()
    assert first.value(statement, arguments) == "added"
    waiting = second.start(statement, arguments)
    second.await_blocked(waiting)
    first.run("commit")
    assert waiting.result() == [("unchanged",)]


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


# Many at once -------------------------------------------------------------------------------------


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


def test_null_is_a_payload_that_is_declared_and_no_payload_is_an_empty_object(api: Any) -> None:
    declare(api, FILE, [spec("null", payload=None), spec("none")])
    assert declare(api, FILE, [spec("null", payload=None), spec("none")]) == {
        "null": "unchanged", "none": "unchanged",
    }  # fmt: skip
    rows = api.rows("select name, payload::text from pyworker.schedule_entries order by name")
    assert rows == [("none", "{}"), ("null", "null")]


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
                "name": "stuff",
                "cron": "*/10,7,56-59 1 1 1 1",
                "identifier": "one",
                "backfill": "4w 3d 2h 1m ",
                "max_attempts": "3",
                "queue_name": "my_queue",
                "priority": "-3",
            },
            '{a:{b:"with # and ?x=1"}}',
        ),
        (
            8,
            {
                "name": "a/b:c",
                "cron": "* * * * *",
                "identifier": "a/b:c",
                "job_key": "my kéy x",
                "job_key_mode": "preserve_run_at",
            },
            None,
        ),
        (9, {"name": "either", "cron": "0 0 1-31/2 * 1", "identifier": "either"}, None),
        (10, {"name": "weekdays", "cron": "0 0 * * 0-6/2", "identifier": "weekdays"}, None),
        (11, {"name": "extended", "cron": "@daily", "identifier": "extended"}, None),
    ]
    assert set(declare(api, FILE, [row.schedule for row in rows]).values()) == {"added"}
    assert api.value(
        "select backfill = interval '31 days 2 hours 1 minute' from pyworker.schedules where name = 'stuff'"
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("* * * * too_few_parameters", "Could not process line '2' of crontab: '* * * * too_few_parameters'"),
        ("* * * * * two tasks", "Invalid command specification in line 2 of crontab."),
        (
            "1,60 * * * * t",
            "Too large value '60' in minutes range in line 2 of crontab: expected values in the range 0-59.",
        ),
        (
            "* * 0 * * t",
            "Too small value '0' in dates range in line 2 of crontab: expected values in the range 1-31.",
        ),
        (
            "5-3 * * * * t",
            "Invalid range '5-3' in minutes range in line 2 of crontab: destination is not larger than "
            "source",
        ),
        (
            "*/0 * * * * t",
            "Invalid wildcard expression '*/0' in minutes range in line 2 of crontab: divisor '0' expected "
            "to be greater than zero",
        ),
        (
            "a * * * * t",
            "Unsupported syntax 'a' in minutes range in line 2 of crontab: this doesn't appear to be a "
            "number, range or wildcard",
        ),
        ("0 0 30 2 * t", "'0 0 30 2 *' never comes: no month has such a day (line 2 of crontab)"),
        (
            "* * * * * t ?unknown=3",
            "Options on line 2 of crontab contains unsupported key 'unknown'; "
            "supported keys are: 'id', 'fill', 'max', 'queue', 'jobKey',"
            " 'jobKeyMode', 'priority'.",
        ),
        ("* * * * * t ?max=1&max=2", "Options on line 2 of crontab specifies 'max' more than once."),
        ("* * * * * t ?max=x", "Options on line 2 of crontab contains an invalid value for 'max': 'x'."),
        ("* * * * * t ?fill=1y", "Options on line 2 of crontab contains an invalid value for 'fill': '1y'."),
        (
            "* * * * * t ?jobKeyMode=unsafe_dedupe",
            "contains an invalid value for 'jobKeyMode': 'unsafe_dedupe'.",
        ),
        ("* * * * * t ?id=1", "contains an invalid value for 'id': '1'."),
        (
            "* * * * * first",
            "Lines 1 and 2 of crontab have the same identifier 'first'; give one of them another by '?id='.",
        ),
    ],
)
def test_what_is_wrong_in_a_crontab_is_said_with_its_line(api: Any, line: str, words: str) -> None:
    with pytest.raises(psycopg.Error) as caught:
        api.rows("select * from pyworker.parse_crontab(%s)", [f"* * * * * first\n{line}\n"])
    assert caught.value.sqlstate == "PW001"
    assert words in str(caught.value.diag.message_primary)


# doctor -------------------------------------------------------------------------------------------


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


def test_doctor_finds_schedules_that_no_session_fires(api: Any, hour: OnTheHour) -> None:
    api.add_schedule("s", HOURLY, "t")
    hour.go(10)
    healed_by(api, "warning", "schedules are not fired: s (due since")


def test_doctor_finds_a_schedule_that_waits_for_the_clock(api: Any, hour: OnTheHour) -> None:
    api.add_schedule("s", HOURLY, "t")
    hour.go()
    run_all(api)
    hour.clock.advance(hours=-3)
    healed_by(api, "warning", "schedule s stands still: the clock was set back")


def test_doctor_finds_schedules_whose_task_no_worker_knows(api: Any) -> None:
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
