"""What a role or a database has as its defaults (ALTER ROLE … SET) changes nothing for workers,
producers and people."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import pyworker

pytestmark = pytest.mark.slow

SETTINGS = [
    "IntervalStyle = 'iso_8601'",
    "IntervalStyle = 'sql_standard'",
    "DateStyle = 'German, DMY'",
    "DateStyle = 'SQL, DMY'",
    "DateStyle = 'Postgres, MDY'",
    "TimeZone = 'Pacific/Chatham'",
    "TimeZone = '<+0345>-03:45'",
    "search_path = ''",
    "search_path = 'public, pg_catalog'",
    "bytea_output = 'escape'",
    "standard_conforming_strings = off",
    "extra_float_digits = -15",
    "array_nulls = off",
    "client_encoding = 'LATIN1'",
    "quote_all_identifiers = on",
    "default_transaction_isolation = 'serializable'",
    "default_transaction_isolation = 'repeatable read'",
    "default_transaction_deferrable = on",
    "statement_timeout = '1s'",
    "lock_timeout = '1ms'",
    "idle_session_timeout = '1s'",
    "idle_in_transaction_session_timeout = '1s'",
    "row_security = off",
    "jit_above_cost = 0",
    "enable_indexscan = off",
    "enable_seqscan = off",
    "enable_sort = off",
    "enable_nestloop = off",
    "plan_cache_mode = 'force_custom_plan'",
    "from_collapse_limit = 1",
    "synchronous_commit = off",
    "transform_null_equals = on",
    "xmloption = 'document'",
    "escape_string_warning = on",
    "work_mem = '64kB'",
]
ROLE = "with_settings"
RUN_AT = datetime(2999, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
ADDS = [
    """pyworker.add_job('later', run_at := '2999-01-02 03:04:05.678901+00')""",
    """pyworker.add_job('later', '{"a": 0.1, "b": 1e23, "é": 1.5e-7}',
        run_at := '2999-01-02 03:04:05.678901+00',
        unique_policy := '{"by_args": true, "by_period": "15 minutes"}')""",
    """pyworker.add_job('later', '{"a": 2}', run_at := '2999-01-02 03:04:05.678901+00',
        unique_policy := '{"keys": ["type", "args"], "period": "PT1H30M"}')""",
    """pyworker.add_job('later', '{"c": "\\u00e9"}', run_at := '2999-01-02 03:04:05.678901+00',
        sequence_policy := '{"by_args": ["c"]}')""",
]  # fmt: skip
TOLD = ("state", "payload", "unique_key", "sequence_key", "run_at", "meta")


@pytest.fixture
def hostile(fresh_queue: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    """The connection string of a role with this setting."""
    fresh_queue.rows(
        f"create role {ROLE} login password 'x'; grant pyworker_admin, pyworker_worker to {ROLE}"
    )
    fresh_queue.rows(
        f"grant usage on schema public to {ROLE}; grant all on all tables in schema public to {ROLE}"
    )
    fresh_queue.rows(f"grant all on all sequences in schema public to {ROLE}")
    fresh_queue.rows(f"alter role {ROLE} set {request.param}")
    yield make_conninfo(fresh_queue.dsn, user=ROLE, password="x")
    for worker in fresh_queue.workers:
        worker.end()
    fresh_queue.rows(f"drop owned by {ROLE}; drop role {ROLE}")


each = pytest.mark.parametrize("hostile", SETTINGS, indirect=True)


def told(conn: Any, statement: str) -> dict[str, Any]:
    row = conn.execute(f"select to_json(j)::text from {statement} j").fetchone()[0]
    row = json.loads(row)
    return {name: datetime.fromisoformat(row[name]) if name == "run_at" else row[name] for name in TOLD}


@each
def test_a_worker_of_such_a_role_starts_and_runs_jobs_in_every_way(fresh_queue: Any, hostile: str) -> None:
    queue = fresh_queue
    worker = queue.start("--concurrency", "4", "--no-tracebacks", DATABASE_URL=hostile)
    jobs = [
        queue.add("act", {"value": {"é": [1.5, None]}}), queue.add("act_async", {"value": 1}),
        queue.add("times"),
        queue.add("write", {"then": ["note", {"é": 1}]}), queue.add("write_async", {"then": ["note"]}),
        queue.add("deliver"), queue.add("deliver_async"), queue.add("again", {"runs": 2}),
        queue.add("again", {"runs": 3, "snooze": 0.01}), queue.add("in_turn", {"customer": "é"}),
    ]  # fmt: skip
    failing = queue.add("act", {"raise": ["error", "é \x1b %s \\"]})
    queue.until_state("completed", *jobs)
    queue.until_state("retryable", failing)
    job = queue.job(jobs[2])
    assert [datetime.fromisoformat(text) for text in job.result] == [job.run_at, job.created_at]
    queue.until("select count(*) = 2 from pyworker.history where task_identifier = 'note'")
    assert worker.stop() == 0
    assert "Traceback" not in worker.log
    assert "refuses" not in worker.log
    assert "no connection" not in worker.log


@each
def test_jobs_added_by_such_a_role_are_what_they_are_for_any_other(
    fresh_queue: Any, hostile: str, cli: Callable[..., Any]
) -> None:
    plain = psycopg.connect(fresh_queue.dsn)
    with psycopg.connect(hostile) as conn:
        for statement in ADDS:
            here = told(conn, statement)
            conn.rollback()
            assert here == told(plain, statement)
            plain.rollback()
            assert here["run_at"] == RUN_AT
    plain.close()

    async def add() -> Any:
        async with await psycopg.AsyncConnection.connect(hostile) as conn:
            return await pyworker.add_job(conn, "later", {"a": "é"}, run_at=RUN_AT)

    with psycopg.connect(hostile) as conn:
        made = [pyworker.add_job(conn, "later", {"a": "é"}, run_at=RUN_AT, unique_policy={"by_args": True})]
    made.append(asyncio.run(add()))
    assert [(job.payload, job.run_at, job.state) for job in made] == [({"a": "é"}, RUN_AT, "scheduled")] * 2
    assert made[0].created_at <= datetime.now(UTC) + timedelta(minutes=1)
    done = cli(
        "add",
        "later",
        '{"a": "é"}',
        "--run-at",
        "2999-01-02 03:04:05.678901+00",
        "--json",
        DATABASE_URL=hostile,
    )
    assert done.returncode == 0, done.stderr
    assert datetime.fromisoformat(json.loads(done.stdout)["run_at"]) == RUN_AT


@each
def test_people_of_such_a_role_are_shown_the_same(
    fresh_queue: Any, hostile: str, cli: Callable[..., Any]
) -> None:
    fresh_queue.rows(
        "select pyworker.add_schedule('nightly', '0 4 * * 1-5', 'report', timezone => 'Europe/Berlin', "
        "backfill => '1 day')"
    )
    fresh_queue.rows("select pyworker.set_queue('q', 2), pyworker.pause_queue('q')")
    job_id = fresh_queue.add("later", {"a": 1}, queue_name="q")
    for words in (
        ["jobs"], ["jobs", str(job_id)], ["explain", str(job_id)], ["queues"], ["sequences"], ["schedules"],
        ["schedules", "next", "nightly"], ["metrics"], ["doctor"], ["retry", str(job_id)],
        ["health", "--live"],
    ):  # fmt: skip
        shown = [cli(*words, "--json", DATABASE_URL=dsn) for dsn in (fresh_queue.dsn, hostile)]
        assert shown[0].returncode == shown[1].returncode, (words, shown[1].stderr)
        if words[0] not in ("doctor", "metrics"):
            assert times_in_utc(shown[1].stdout) == times_in_utc(shown[0].stdout), words


def times_in_utc(text: str) -> Any:
    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                name: plain(part) for name, part in value.items() if name not in ("updated_at", "revision")
            }
        if isinstance(value, list):
            return [plain(part) for part in value]
        try:
            at = datetime.fromisoformat(value)
        except (TypeError, ValueError):
            return value
        return at.astimezone(UTC) if at.tzinfo else at

    return plain(json.loads(text)) if text.strip() else text


# -- settings of a connection ----------------------------------------------------------------------

OPTIONS = "-c app.tenant=ours -c work_mem=1234kB"


@pytest.mark.parametrize("given", ["PGOPTIONS", "service file", "connection string"])
def test_options_of_the_connection_reach_handlers_as_well(queue: Any, tmp_path: Any, given: str) -> None:
    environment = {}
    if given == "PGOPTIONS":
        environment["PGOPTIONS"] = OPTIONS
    elif given == "service file":
        (tmp_path / "services").write_text(f"[theirs]\noptions={OPTIONS}\n")
        environment |= {"PGSERVICEFILE": str(tmp_path / "services"), "PGSERVICE": "theirs"}
    else:
        environment["DATABASE_URL"] = make_conninfo(queue.dsn, options=OPTIONS)
    jobs = [queue.add(task) for task in ("tell_settings", "tell_settings_async")]
    queue.run_once(**environment)
    assert queue.states(*jobs) == ["completed"] * 2
    assert [row.told for row in queue.seen(*jobs)] == [["ours", "1234kB"]] * 2


def test_a_worker_waits_for_a_lock_longer_than_its_role_would(
    fresh_queue: Any, hostile_timeouts: str
) -> None:
    """Registration waits for another session's lock; the role would give up at once, and the
    worker would not start."""
    with psycopg.connect(fresh_queue.dsn) as other:
        other.execute("lock table pyworker.workers")
        job_id = fresh_queue.add("note")
        worker = fresh_queue.start(DATABASE_URL=hostile_timeouts)
        fresh_queue.until(
            "select count(*) > 0 from pg_stat_activity where wait_event_type = 'Lock' "
            "and query ~ 'open_worker'"
            " and query_start < clock_timestamp() - interval '1 s'"
        )
    fresh_queue.until_state("completed", job_id)
    assert worker.stop() == 0


@pytest.fixture
def hostile_timeouts(fresh_queue: Any) -> str:
    return make_conninfo(fresh_queue.dsn, options="-c lock_timeout=100ms -c statement_timeout=200ms")


def test_a_role_that_may_only_read_is_told_so(fresh_queue: Any, cli: Callable[..., Any]) -> None:
    """It is how a database is frozen for a move: no worker lifts that by itself."""
    frozen = make_conninfo(fresh_queue.dsn, options="-c default_transaction_read_only=on")
    done = cli("add", "note", DATABASE_URL=frozen)
    assert done.returncode == 1
    assert "read-only" in done.stderr
    assert "default_transaction_read_only" in done.stderr
    assert fresh_queue.value("select count(*) from pyworker.jobs") == 0
