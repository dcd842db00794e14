"""`pyworker queues` sets rates and turns, and shows them."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import pytest

from tests.support.cli import call as call


def queue(call: Any, name: str) -> Any:
    return next(row for row in call("queues", "--json") if row["queue_name"] == name)


def test_a_rate_and_turns_are_set_and_shown(call: Any, db: Any, worker: int) -> None:
    assert call("queues", "set", "mail", "--rate", "10/1m") == (
        "queue mail: no limit, at most 10 starts in any 1 min\n"
    )
    assert call("queues", "set", "mail", "--rate", "2/1h") == (
        "queue mail: no limit, at most 2 starts in any 1 h\n"
    )
    assert call("queues", "set", "t:*", "3", "--rate", "10/30s", "--fair") == (
        "queue t:*: concurrency 3, at most 10 starts in any 30 s, its queues take turns\n"
    )
    db.execute("select pyworker.add_job('t', queue_name => 'mail') from generate_series(1, 3)")
    db.execute("select count(*) from pyworker.claim_jobs(%s, 5)", [worker])
    mail = queue(call, "mail")
    assert [mail[name] for name in ("rate_limit", "rate_used", "rate_left")] == [2, 2, 0]
    assert mail["rate_free_at"] is not None
    assert queue(call, "t:*")["fair"] is True
    header, *rows = call("queues").splitlines()
    assert header.split()[-2:] == ["fair", "rate"]
    assert "2 of 2 in 1 h, next " in rows[0]
    assert "10 in 30 s" in rows[1]
    assert call("queues", "set", "mail", "4") == "queue mail: concurrency 4\n"
    assert queue(call, "mail")["rate_limit"] is None


def test_the_list_shows_limit_running_waiting_oldest_and_what_is_left_of_the_rate(
    call: Any, db: Any, worker: int
) -> None:
    db.execute("select pyworker.set_queue('mail', 4, 3, '1 hour')")
    db.execute("select pyworker.add_job('t', queue_name => 'mail') from generate_series(1, 7)")
    db.execute("select count(*) from pyworker.claim_jobs(%s, 2)", [worker])
    mail = queue(call, "mail")
    shown = ("concurrency", "running", "available", "rate_limit", "rate_used", "rate_left", "rate_free_at")
    assert [mail[name] for name in shown] == [4, 2, 5, 3, 2, 1, None]
    oldest = db.execute("select min(run_at) from pyworker.jobs where state = 'available'").fetchone()[0]
    assert datetime.fromisoformat(mail["oldest_waiting"]) == oldest
    header, row = (re.split(r"\s{2,}", line.strip()) for line in call("queues").splitlines())
    cells = dict(zip(header, row, strict=True))
    assert [cells[title] for title in ("concurrency", "running", "available")] == ["4", "2", "5"]
    assert cells["rate"] == "2 of 3 in 1 h"
    assert f"{oldest:%H:%M:%S}" in cells["oldest waiting"]


def test_the_next_start_of_a_rate_of_days_is_shown_with_its_date(call: Any, db: Any, worker: int) -> None:
    db.execute("select pyworker.set_queue('mail', null, 1, '30 days')")
    db.execute("select pyworker.add_job('t', queue_name => 'mail') from generate_series(1, 2)")
    db.execute("select count(*) from pyworker.claim_jobs(%s, 2)", [worker])
    (at,) = db.execute("select rate_free_at from pyworker.list_queues()").fetchone()
    assert f"1 of 1 in 30 d, next {at:%Y-%m-%d %H:%M:%S}" in call("queues")


@pytest.mark.parametrize(
    ("period", "shown"),
    [("60 s", "1 min"), ("5400 s", "1 h 30 min"), ("1 day 1 s", "1 d 1 s"), ("0.25 s", "250 ms"),
     ("61.5 s", "1 min 1.5 s"), ("1 us", "0.001 ms"), ("400 days", "400 d")],
)  # fmt: skip
def test_a_period_is_shown_alike_by_sql_and_commands_and_is_read_back_as_it_was(
    call: Any, db: Any, period: str, shown: str
) -> None:
    db.execute("select pyworker.set_queue('q', 1, 10, %s::interval)", [period])
    assert call("queues").rstrip().endswith(f" 0 of 10 in {shown}")
    sql = db.execute("select pyworker.action_sql('set_queue', 'q', '{\"concurrency\": 2}')").fetchone()[0]
    assert sql == f"select pyworker.set_queue('q', 2, 10, '{shown}')"
    assert db.execute("select %s::interval = %s::interval", [shown, period]).fetchone() == (True,)


@pytest.mark.parametrize("rate", ["10", "/m", "a/m", "10/", "1.5/m", "-1/m", "10/-1m", "10/1m 2s"])
def test_a_rate_that_is_none_is_refused_with_an_example(cli: Any, dsn: str, db: Any, rate: str) -> None:
    done = cli("queues", "set", "q", f"--rate={rate}", DATABASE_URL=dsn)
    assert done.returncode == 2
    assert f"{rate!r} is no rate: write it like 10/1m" in " ".join(done.stderr.split())


@pytest.mark.parametrize("rate", ["10/1x", "0/1m", "10/0s"])
def test_what_only_the_database_can_refuse_it_does(cli: Any, dsn: str, db: Any, rate: str) -> None:
    done = cli("queues", "set", "q", "--rate", rate, DATABASE_URL=dsn)
    assert done.returncode == 1
    assert done.stderr.startswith("pyworker: ")
    assert db.execute("select count(*) from pyworker.queue_stats").fetchone()[0] == 0


@pytest.mark.parametrize("words", [[], ["3", "--no-limit"]])
def test_set_needs_a_limit_and_no_contradiction(cli: Any, dsn: str, db: Any, words: list[str]) -> None:
    assert cli("queues", "set", "q", *words, DATABASE_URL=dsn).returncode == 2


def test_a_queue_that_was_not_paused_or_is_not_there_is_not_said_to_be_resumed(
    cli: Any, call: Any, db: Any, dsn: str
) -> None:
    call("queues", "set", "mail", "2")
    call("queues", "pause", "mail")
    assert call("queues", "resume", "mail") == "queue mail resumed\n"
    assert call("queues", "resume", "mail") == "queue mail was not paused\n"
    done = cli("queues", "resume", "mial", DATABASE_URL=dsn)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("pyworker: no queue mial has jobs or a limit, or is paused")


def test_a_family_whose_queues_have_jobs_can_be_paused(cli: Any, call: Any, db: Any, dsn: str) -> None:
    call("add", "t", "--queue", "customer:1")
    assert call("queues", "pause", "customer:*") == "queue customer:* is paused\n"
    assert cli("queues", "pause", "custom:*", DATABASE_URL=dsn).returncode == 1
    assert call("queues", "resume", "customer:*") == "queue customer:* resumed\n"
    assert call("queues", "resume", "customer:*") == "queue customer:* was not paused\n"


def test_a_queue_whose_family_is_paused_is_not_said_to_be_resumed(
    cli: Any, call: Any, db: Any, dsn: str
) -> None:
    call("add", "t", "--queue", "customer:1")
    call("queues", "pause", "customer:*")
    call("queues", "pause", "customer:1")
    for _ in range(2):
        done = cli("queues", "resume", "customer:1", DATABASE_URL=dsn)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == (
            "pyworker: queue customer:1 stays paused, since its family customer:* is paused:"
            " pyworker queues resume 'customer:*'\n"
        )
    assert call("queues", "resume", "customer:*") == "queue customer:* resumed\n"
    assert call("queues", "resume", "customer:1") == "queue customer:1 was not paused\n"


def test_a_unit_that_is_none_is_refused_by_the_name_of_the_option(cli: Any, db: Any, dsn: str) -> None:
    done = cli("queues", "set", "q", "--rate", "10/parsec", DATABASE_URL=dsn)
    assert done.returncode == 1
    assert done.stderr == 'pyworker: --rate: invalid input syntax for type interval: "1 parsec"\n'
