"""A time on the command line has its zone: a reader need not know where the command ran."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.cli import add as add
from tests.support.cli import call as call
from tests.support.cli import zoo as zoo

CLOCK = re.compile(r"(?<!at )\d\d:\d\d(?::\d\d(?:\.\d+)?)?([+-]\d\d(?:\d\d)?\b|)")


@pytest.fixture
def told(db: Any, zoo: dict[str, int]) -> None:
    """Something with a time for each command."""
    db.execute("select pyworker.add_schedule('nightly', '0 4 * * *', 'report')")
    db.execute("select pyworker.run_schedule('nightly')")
    db.execute("select pyworker.define_task('report', max_attempts := 3)")
    db.execute(
        "select pyworker.set_queue('full', 1, 1, '1 hour'), pyworker.add_job('t', queue_name := 'full')"
    )
    db.execute("select pyworker.add_job('t', sequence_policy := '{\"key\": \"s\"}')")
    db.execute("select pyworker.permanently_fail_jobs(array[max(id)], 'no') from pyworker.jobs")
    worker = db.execute("select pyworker.register_worker()").fetchone()[0]
    (job,) = db.execute("select id, run from pyworker.claim_jobs(%s, 9) where queue_name = 'full'", [worker])
    db.execute("select pyworker.finish_job(%s, %s)", job)


@pytest.mark.parametrize(
    "command",
    ["add t --delay 90", "jobs", "jobs 1", "explain 1", "queues", "sequences", "schedules", "tasks"],
)
def test_each_time_has_its_zone(cli: Any, dsn: str, told: None, command: str) -> None:
    done = cli(*command.split(), DATABASE_URL=dsn)
    assert done.returncode == 0, done.stderr
    zones = CLOCK.findall(done.stdout)
    assert zones, done.stdout
    assert all(zones), done.stdout


def test_the_times_of_a_cron_expression_come_under_their_zone(cli: Any, dsn: str, db: Any) -> None:
    done = cli("schedules", "next", "0 4 * * *", "--timezone", "Asia/Kolkata", DATABASE_URL=dsn)
    assert done.stdout.startswith("at 04:00 every day (Asia/Kolkata)\n")
