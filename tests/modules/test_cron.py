"""What a cron expression means: next_runs and describe_cron, and a proof against another implementation."""

from __future__ import annotations

import os
import random
import re
import zoneinfo
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cronsim import CronSim, CronSimError


def local(api: Any, cron: str, after: str, n: int = 3, timezone: str = "UTC") -> list[str]:
    """What clocks there show when it falls due."""
    rows = api.rows(
        "select local_time::text from pyworker.next_runs(%s, %s, %s, %s)", [cron, timezone, n, after]
    )
    return [row.local_time for row in rows]


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("* * * * *", "every minute"),
        ("*/15 * * * *", "every 15 minutes"),
        ("0,15,20,45 * * * *", "at minute 0, 15, 20 and 45 of every hour"),
        ("0,40 * * * *", "at minute 0 and 40 of every hour"),
        ("0 * * * *", "every hour"),
        ("5 * * * *", "at minute 5 of every hour"),
        ("30 9,17 * * mon-fri", "at 09:30 and 17:30 on Monday to Friday"),
        ("*/5 9-17 * * *", "every 5 minutes of hour 9 to 17"),
        ("0 4 * * *", "at 04:00 every day"),
        ("0 0 L * *", "at 00:00 on the last day of the month"),
        ("0 0 1,LW * *", "at 00:00 on day 1 and on the last day from Monday to Friday of the month"),
        ("0 0 * * 5L", "at 00:00 on the last Friday of the month"),
        ("15 0 * * FRI#2,1", "at 00:15 on Monday and on the second Friday of the month"),
        ("0 0 13 * 5", "at 00:00 on day 13 of the month, and on Friday"),
        ("0 0 */10 * 1", "at 00:00 on day 1, 11, 21 and 31 of the month, if it is also on Monday"),
        ("0 12 * jun-aug,12 *", "at 12:00 every day in June to August and December"),
        ("@yearly", "at 00:00 on day 1 of the month in January"),
        ("@Weekly", "at 00:00 on Sunday"),
        ("@midnight", "at 00:00 every day"),
    ],
)
def test_an_expression_can_be_said_in_words(api: Any, cron: str, words: str) -> None:
    assert api.describe_cron(cron) == words


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        (
            "1,60 * * * *",
            "Too large value '60' in minutes range, position 3 of '1,60 * * * *': expected "
            "values in the range 0-59",
        ),
        ("0  24 * * *", "Too large value '24' in hours range, position 4 of"),
        (
            "* * 0 * *",
            "Too small value '0' in dates range, position 5 of '* * 0 * *': expected "
            "values in the range 1-31",
        ),
        ("* * * 1-13 *", "Too large value '13' in months range, position 7"),
        (
            "* * * * 8",
            "Too large value '8' in days of the week range, position 9 of '* * * * 8': expected "
            "values in the range 0-6",
        ),
        (
            "*/0 * * * *",
            "Invalid wildcard expression '*/0' in minutes range, position 1 of '*/0 * * * *': divisor '0' "
            "expected to be greater than zero",
        ),
        (
            "5-3 * * * *",
            "Invalid range '5-3' in minutes range, position 1 of '5-3 * * * *': destination is not larger "
            "than "
            "source",
        ),
        ("x * * * *", "Unsupported syntax 'x' in minutes range, position 1"),
        ("* * * FOO *", "Unsupported syntax 'FOO' in months range, position 7"),
        ("* * * * 5#6", "Unsupported syntax '5#6'"),
        ("* * * * 9L", "Unsupported syntax '9L'"),
        ("* * L/2 * *", "Unsupported syntax 'L/2'"),
        ("* * ? * *", "Unsupported syntax '?'"),
        ("1,,2 * * * *", "Unsupported syntax ''"),
        ("1- * * * *", "Unsupported syntax '1-'"),
        ("99999999999999999999999 * * * *", "Too large value '99999999999999999999999'"),
        ("* * * *", "'* * * *' is not a schedule: it must have five fields"),
        ("0 * * * * *", "must have five fields"),
        ("@reboot", "'@reboot' is not a schedule"),
        ("", "'' is not a schedule"),
        (None, "NULL is not a schedule"),
        ("0 0 30 2 *", "'0 0 30 2 *' never comes: no month has such a day"),
        ("0 0 31 2,4,6,9,11 *", "never comes"),
        ("0 0 */31 * 1#5", "never comes"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(api: Any, cron: str | None, words: str) -> None:
    with api.refusal("PW001", "^next_runs: cron: ", re.escape(words)):
        api.rows("select * from pyworker.next_runs(%s)", [cron])
    with api.refusal("PW001", "^describe_cron: cron: ", re.escape(words)):
        api.describe_cron(cron)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"timezone": "Europe/Berlim"},
            "timezone must be the name of a time zone, such as 'Europe/Berlin' (see pg_timezone_names), "
            "got 'Europe/Berlim'",
        ),
        ({"timezone": "UTC+5"}, "got 'UTC+5'"),
        ({"timezone": "PST"}, "got 'PST'"),
        ({"timezone": "CET"}, "got 'CET'"),
        ({"timezone": None}, "got NULL"),
        ({"n": 0}, "n must be from 1 to 1000, got 0"),
        ({"n": 1001}, "got 1001"),
        ({"after": "infinity"}, "after must be a time from 1900 to 9900, got infinity"),
    ],
)
def test_arguments_of_next_runs_that_are_refused(api: Any, arguments: dict[str, Any], words: str) -> None:
    with api.refusal("PW001", "^next_runs: ", re.escape(words)):
        api.next_runs("* * * * *", **arguments)


def test_a_time_zone_may_be_written_in_small_letters(api: Any) -> None:
    assert local(api, "0 4 * * *", "2026-01-01", 1, "europe/berlin") == ["2026-01-01 04:00:00"]


def test_of_dates_and_weekdays_one_is_enough_unless_one_field_begins_with_a_star(api: Any) -> None:
    assert local(api, "0 0 13 * 5", "2026-01-31", 3) == [
        "2026-02-06 00:00:00",
        "2026-02-13 00:00:00",
        "2026-02-20 00:00:00",
    ]
    assert local(api, "0 0 */12 * 5", "2026-01-31", 2) == ["2026-02-13 00:00:00", "2026-03-13 00:00:00"]


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("0 0 L * *", ["2028-01-31", "2028-02-29", "2028-03-31"]),
        ("0 0 LW * *", ["2028-01-31", "2028-02-29", "2028-03-31"]),
        ("0 0 LW 4,12 *", ["2028-04-28", "2028-12-29", "2029-04-30"]),
        ("0 0 * * 5L", ["2028-01-28", "2028-02-25", "2028-03-31"]),
        ("0 0 * * TUE#5", ["2028-02-29", "2028-05-30", "2028-08-29"]),
        ("0 0 * * 7#1", ["2028-01-02", "2028-02-06", "2028-03-05"]),
        ("0 0 29 2 *", ["2028-02-29", "2032-02-29", "2036-02-29"]),
        ("0 0 */28 2 1#5", ["2044-02-29", "2072-02-29", "2112-02-29"]),
    ],
)
def test_days_that_are_not_every_day(api: Any, cron: str, expected: list[str]) -> None:
    assert local(api, cron, "2028-01-01") == [f"{day} 00:00:00" for day in expected]


def runs(api: Any, cron: str, after: str, n: int) -> list[str]:
    rows = api.rows(
        "select to_char(run_at at time zone 'UTC', 'DD HH24:MI') as at "
        "from pyworker.next_runs(%s, 'Europe/Berlin', %s, %s)",
        [cron, n, after],
    )
    return [row.at for row in rows]


def test_a_time_that_is_skipped_runs_once_right_after_the_gap(api: Any) -> None:
    """On the 29th of March 2026 at 01:00 UTC clocks go from 02:00 to 03:00."""
    assert runs(api, "30 2 * * *", "2026-03-28 12:00Z", 2) == ["29 01:00", "30 00:30"]
    assert runs(api, "0,15,30 2 * * *", "2026-03-28 12:00Z", 2) == ["29 01:00", "30 00:00"]
    assert runs(api, "0 2,3 * * *", "2026-03-28 12:00Z", 2) == ["29 01:00", "30 00:00"]
    assert runs(api, "30 2 * * *", "2026-03-29 01:00Z", 1) == ["30 00:30"]


def test_a_time_that_is_repeated_runs_once_the_first_time(api: Any) -> None:
    """On the 25th of October 2026 at 01:00 UTC clocks go from 03:00 to 02:00."""
    assert runs(api, "30 2 * * *", "2026-10-24 12:00Z", 2) == ["25 00:30", "26 01:30"]
    assert runs(api, "30 2 * * *", "2026-10-25 01:10Z", 1) == ["26 01:30"]


def test_an_expression_without_a_fixed_time_goes_by_the_clocks(api: Any) -> None:
    assert runs(api, "30 * * * *", "2026-03-29 00:00Z", 3) == ["29 00:30", "29 01:30", "29 02:30"]
    assert runs(api, "*/30 2 * * *", "2026-03-28 12:00Z", 2) == ["30 00:00", "30 00:30"]
    assert runs(api, "30 * * * *", "2026-10-25 00:00Z", 3) == ["25 00:30", "25 01:30", "25 02:30"]
    assert runs(api, "*/30 2 * * *", "2026-10-24 12:00Z", 5) == [
        "25 00:00",
        "25 00:30",
        "25 01:00",
        "25 01:30",
        "26 01:00",
    ]
    assert runs(api, "40 * * * *", "2026-10-25 01:20Z", 1) == ["25 01:40"]


# The proof: random expressions, all time zones, near their changes and elsewhere, against cronsim.

CASES = int(os.environ.get("PYWORKER_CRON_CASES", "8000"))
PER_EXPRESSION = 20  # to read an expression costs more than to go on from it
FIRST, LAST = datetime(2020, 1, 1, tzinfo=UTC), datetime(2036, 1, 1, tzinfo=UTC)
MONTHS = "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC".split()
DAYS = "SUN MON TUE WED THU FRI SAT".split()


def changes(zone: zoneinfo.ZoneInfo) -> list[datetime]:
    """When its clocks are changed."""

    def offset(at: datetime) -> timedelta | None:
        return at.astimezone(zone).utcoffset()

    found, at = [], FIRST
    while at < LAST:
        before, after = at, at + timedelta(days=5)
        at = after
        if offset(before) != offset(after):
            while after - before > timedelta(minutes=1):
                middle = before + timedelta(minutes=(after - before) // timedelta(minutes=2))
                before, after = (middle, after) if offset(middle) == offset(before) else (before, middle)
            found.append(after)
    return found


def a_field(
    r: random.Random, least: int, most: int, names: list[str] | None = None, special: list[str] | None = None
) -> str:
    def written(value: int) -> str:
        return (
            names[value - least] if names and value - least < len(names) and r.random() < 0.4 else str(value)
        )

    def part() -> str:
        kind = r.random()
        if special and kind < 0.15:
            return r.choice(special)
        if kind < 0.45:
            return written(r.randint(least, most))
        if kind < 0.6:
            return f"*/{r.randint(1, most + 3)}"
        if kind < 0.7:
            return f"{written(r.randint(least, most))}/{r.randint(1, most)}"
        first, last = sorted(r.sample(range(least, most + 1), 2))  # cronsim takes 5-5/2 for 5/2
        return f"{written(first)}-{written(last)}" + (f"/{r.randint(1, most)}" if r.random() < 0.4 else "")

    return ",".join(part() for _ in range(r.choice((1, 1, 1, 1, 2, 3))))


def an_expression(r: random.Random) -> str:
    last = [f"{day}L" for day in range(8)] + [f"{day}#{n}" for day in [*DAYS, *range(8)] for n in range(1, 6)]
    return " ".join([
        "*" if r.random() < 0.15 else a_field(r, 0, 59),
        "*" if r.random() < 0.25 else a_field(r, 0, 23) if r.random() < 0.4 else str(r.randint(0, 4)),
        "*" if r.random() < 0.6 else a_field(r, 1, 31, special=["L", "LW"]),
        "*" if r.random() < 0.7 else a_field(r, 1, 12, MONTHS),
        "*" if r.random() < 0.6 else a_field(r, 0, 7, DAYS, last),
    ])  # fmt: skip


def throws_out_of_step(change: datetime, zone: zoneinfo.ZoneInfo) -> bool:
    """cronsim goes from midnight by whole hours: where clocks are changed by half of one, or a day
    does not begin at midnight, it passes over some minutes, or finds some that no clock shows."""
    before, after = (change - timedelta(minutes=1)).astimezone(zone), change.astimezone(zone)
    return after.minute != 0 or before.date() != after.date()


def expected(cron: str, zone: zoneinfo.ZoneInfo, after: datetime, exact: bool) -> list[datetime] | None:
    """The next two. None where cronsim may err (`exact` is false): not with a fixed time."""
    ticks: list[datetime] = []
    iterator = CronSim(cron, after.astimezone(zone))
    fixed = not cron.startswith("*") and not cron.split()[1].startswith("*")
    while len(ticks) < 2:
        try:
            shown = next(iterator)
        except StopIteration:
            return ticks
        tick = shown.astimezone(UTC)
        if not fixed and not exact:
            return None
        if tick > after and tick not in ticks:  # from within a repeated hour it goes back to the first
            ticks.append(tick)
    return ticks


def minute_by_minute(cron: str, zone: zoneinfo.ZoneInfo, after: datetime) -> list[datetime]:
    """All in the next day, by what clocks show."""
    fields = CronSim(cron, after)
    at = after.replace(second=0)
    minutes = (
        (at + timedelta(minutes=n), (at + timedelta(minutes=n)).astimezone(zone)) for n in range(1, 1441)
    )
    return [
        minute for minute, shown in minutes
        if shown.minute in fields.minutes and shown.hour in fields.hours
        and shown.month in fields.months and fields.match_day(shown.date())
    ]  # fmt: skip


def test_the_proof_against_another_implementation(api: Any) -> None:
    r = random.Random(int(os.environ.get("PYWORKER_CRON_SEED", "20")))
    names = {row.name for row in api.rows("select name from pg_timezone_names")}
    names = (names & zoneinfo.available_timezones()) - {"CET", "EET", "MET", "WET", "Factory", "localtime"}
    zones = {name: zoneinfo.ZoneInfo(name) for name in sorted(names)}
    # The two may hold different editions of the time zone data: only zones of which they say the
    # same are compared.
    moments = [FIRST + timedelta(days=3 * n) for n in range(1950)]
    offsets = api.rows(
        "select z.name, array(select extract(epoch from (m at time zone z.name) - (m at time zone "
        "'UTC'))::integer"
        " from unnest(%s::timestamptz[]) m) as offsets from unnest(%s::text[]) z(name)",
        [moments, list(zones)],
    )
    same = [
        row.name for row in offsets
        if row.offsets == [int(m.astimezone(zones[row.name]).utcoffset().total_seconds()) for m in moments]  # type: ignore[union-attr]
    ]  # fmt: skip
    assert len(same) > 400
    known = {name: changes(zones[name]) for name in same}
    changing = [name for name in same if known[name]]
    odd = {name for name in changing if any(throws_out_of_step(at, zones[name]) for at in known[name])}
    assert {"Australia/Lord_Howe", "Asia/Beirut"} <= odd
    compared = {"with cronsim": 0, "minute by minute": 0}
    while sum(compared.values()) < CASES:
        crons: list[str] = []
        refused: list[bool] = []
        cases: list[tuple[int, str, datetime]] = []
        wanted: list[list[datetime] | None] = []
        while len(crons) < 50:
            crons.append(an_expression(r))
            try:
                refused.append(expected(crons[-1], zones["UTC"], FIRST, True) == [])
            except CronSimError:
                refused.append(True)
            for _ in range(0 if refused[-1] else PER_EXPRESSION):
                name, after = r.choice(same), FIRST + timedelta(minutes=r.randint(0, 8_000_000))
                if r.random() < 0.7:
                    name = r.choice(changing)
                    after = r.choice(known[name]) + timedelta(minutes=r.randint(-1500, 300))
                cases.append((len(crons), name, after + timedelta(seconds=30)))
                wanted.append(expected(crons[-1], zones[name], cases[-1][2], name not in odd))
        found = api.rows(
            """with expressions as materialized (
                   select e.n, pyworker._cron_of(e.cron) as cron
                   from unnest(%s::text[]) with ordinality e(cron, n))
               select 0 as kind, e.n, ((e.cron).problem is not null) as refused, null::timestamptz[] as ticks
               from expressions e
               union all
               select 1, c.n, null,
                      array_remove(array[t.first, pyworker._cron_next(e.cron, c.zone, t.first)], null)
               from unnest(%s::int[], %s::text[], %s::timestamptz[]) with ordinality
                   c(expression, zone, after, n)
               join expressions e on e.n = c.expression
               cross join lateral (select pyworker._cron_next(e.cron, c.zone, c.after) as first) t
               order by 1, 2""",
            [crons, *([case[at] for case in cases] for at in range(3))],
        )
        assert [cron for cron, no, row in zip(crons, refused, found, strict=False) if no != row.refused] == []
        for (n, name, after), ticks, row in zip(cases, wanted, found[len(crons) :], strict=True):
            case = (crons[n - 1], name, after.isoformat())
            if ticks is not None:
                assert (case, row.ticks) == (case, ticks)
                compared["with cronsim"] += 1
            else:
                until = after + timedelta(days=1)
                soon = [tick for tick in row.ticks if tick < until]
                assert (case, soon) == (case, minute_by_minute(crons[n - 1], zones[name], after)[:2])
                compared["minute by minute"] += 1
    print(f"compared in {len(same)} zones: {compared}")
    assert min(compared.values()) > CASES / 1000
