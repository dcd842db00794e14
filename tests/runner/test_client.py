"""What the client stores, and what it refuses before the database is asked."""

from __future__ import annotations

import dataclasses
import enum
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec
import psycopg
import pydantic
import pytest

import pyworker
from tests.support.connections import LATER, count
from tests.support.connections import conn as conn


class Model(pydantic.BaseModel):
    at: datetime


class Struct(msgspec.Struct):
    at: datetime


@dataclasses.dataclass
class Data:
    a: list[int]


@pyworker.task("remind in test_client")
def remind(payload: Any) -> None: ...


@pytest.mark.parametrize(
    ("payload", "stored"),
    [
        (None, {}),
        ({}, {}),
        ([], []),
        ("x", "x"),
        (0, 0),
        (False, False),
        (2**70, 2**70),
        ({"a": "\0"}, {"a": "\0"}),
        ({"a": "\ud800"}, {"a": "\ud800"}),
        ({"a": "%s %(x)s {} \\"}, {"a": "%s %(x)s {} \\"}),
        (Data([1]), {"a": [1]}),
        ([Data([1])], [{"a": [1]}]),
        (Model(at=datetime(2026, 1, 2, tzinfo=UTC)), {"at": "2026-01-02T00:00:00Z"}),
        (Struct(at=datetime(2026, 1, 2, tzinfo=UTC)), {"at": "2026-01-02T00:00:00Z"}),
    ],
    ids=repr,
)
def test_a_payload_is_stored_as_it_is(conn: Any, payload: Any, stored: Any) -> None:
    assert pyworker.add_job(conn, "t", payload).payload == stored


@pytest.mark.parametrize(
    ("payload", "options", "kind", "words"),
    [
        (float("nan"), {}, pyworker.InvalidArgument, "must be JSON: Out of range float values"),
        ({"a": [float("inf")]}, {}, pyworker.InvalidArgument, "must be JSON: Out of range float values"),
        ({1, 2}, {}, TypeError, "a value of type set cannot be stored as JSON"),
        ({"at": datetime(2026, 1, 1)}, {}, TypeError, "a value of type datetime cannot be stored as JSON"),
        ({}, {"meta": {"a": float("nan")}}, pyworker.InvalidArgument, "must be JSON"),
        ({}, {"flags": "urgent"}, pyworker.InvalidArgument, "flags must be a list of strings, got 'urgent'"),
        (
            {},
            {"queue": "x"},
            TypeError,
            r"add_job has no argument 'queue' \(known: identifier, payload, queue_name, ",
        ),
    ],
    ids=lambda value: None,
)
def test_what_python_can_refuse_costs_no_transaction(
    db: Any, dsn: str, payload: Any, options: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with psycopg.connect(dsn) as conn:
        pyworker.add_job(conn, "before")
        with pytest.raises(kind, match=words):
            pyworker.add_job(conn, "t", payload, **options)
        conn.commit()
    assert count(db) == 1


DEEP: list[Any] = []


for _ in range(100_000):
    DEEP = [DEEP]


class Level(enum.IntEnum):
    HIGH = -5


# What a driver would round, take for something else, or refuse without saying which argument is meant.
@pytest.mark.parametrize(
    ("identifier", "payload", "options", "words"),
    [
        (None, {}, {}, "add_job: identifier must be a string, got None"),
        (5, {}, {}, "add_job: identifier must be a string, got 5"),
        (b"t", {}, {}, "add_job: identifier must be a string, got b't'"),
        ("a\0b", {}, {}, r"add_job: identifier must not contain NUL or half a surrogate pair, got 'a\\x00b'"),
        ("t", DEEP, {}, "add_job: payload must be JSON: it is nested too deeply"),
        ("t", 10**5000, {}, "add_job: payload must be JSON: Exceeds the limit"),
        ("t", {}, {"queue_name": 5}, "add_job: queue_name must be a string, got 5"),
        ("t", {}, {"queue_name": "\ud800"}, r"add_job: queue_name must not contain .*, got '\\ud800'"),
        ("t", {}, {"job_key": 42}, "add_job: job_key must be a string, got 42"),
        ("t", {}, {"job_key_mode": 1}, "add_job: job_key_mode must be a string, got 1"),
        ("t", {}, {"delivery": True}, "add_job: delivery must be a string, got True"),
        ("t", {}, {"priority": 1.7}, "add_job: priority must be an integer, got 1.7"),
        ("t", {}, {"priority": True}, "add_job: priority must be an integer, got True"),
        ("t", {}, {"priority": "high"}, "add_job: priority must be an integer, got 'high'"),
        ("t", {}, {"priority": 10**12}, "add_job: priority is out of range, got 1000000000000"),
        ("t", {}, {"max_attempts": 3.0}, "add_job: max_attempts must be an integer, got 3.0"),
        ("t", {}, {"max_attempts": -(10**12)}, "add_job: max_attempts is out of range, got -1000000000000"),
        ("t", {}, {"flags": 5}, "add_job: flags must be a list of strings, got 5"),
        ("t", {}, {"flags": {"a": True}}, "add_job: flags must be a list of strings, got {'a': True}"),
        ("t", {}, {"flags": [1]}, r"add_job: flags must be a list of strings, got \[1\]"),
        (
            "t",
            {},
            {"run_at": 5},
            "add_job: run_at must be a datetime with a time zone, a timedelta from now, or a string, got 5",
        ),
        (
            "t",
            {},
            {"run_at": date(2100, 1, 1)},
            r"add_job: run_at must be .*, got datetime.date\(2100, 1, 1\)",
        ),
        (
            "t",
            {},
            {"run_at": datetime(2100, 1, 1)},
            r"add_job: run_at must have a time zone, got datetime.datetime\(2100, 1, 1, 0, 0\): use "
            r"datetime.now\(timezone.utc\), ",
        ),
        (
            "t",
            {},
            {"run_at": timedelta.max},
            "add_job: run_at must be a time of the years 1 to 9999, got .* from now",
        ),
        ("t", {}, {"meta": {"a": float("nan")}}, "add_job: meta must be JSON: Out of range"),
        (
            "t",
            {},
            {"unique_policy": {"by_args": float("nan")}},
            "add_job: unique_policy must be JSON: Out of range",
        ),
    ],
    ids=lambda value: "",
)
def test_a_refusal_names_the_argument_and_its_value_and_costs_no_transaction(
    db: Any, dsn: str, identifier: Any, payload: Any, options: dict[str, Any], words: str
) -> None:
    with psycopg.connect(dsn) as conn:
        pyworker.add_job(conn, "before")
        with pytest.raises(pyworker.InvalidArgument, match=f"^{words}"):
            pyworker.add_job(conn, identifier, payload, **options)
        spec: Any = {"identifier": identifier, "payload": payload, **options}
        with pytest.raises(
            pyworker.InvalidArgument, match=words.replace("add_job:", r"^add_jobs: specs\[2\]:")
        ):
            pyworker.add_jobs(conn, [{"identifier": "first"}, spec])
        conn.commit()
    assert count(db) == 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda conn: pyworker.get_job(conn, "1"), "get_job: job_id must be an integer, got '1'"),  # type: ignore[arg-type]
        (lambda conn: pyworker.retry_job(conn, True), "retry_job: job_id must be an integer, got True"),
        (
            lambda conn: pyworker.delete_job(conn, 2**63),
            "delete_job: job_id is out of range, got 9223372036854775808",
        ),
        (
            lambda conn: pyworker.cancel_job(conn, 1, force="no"),
            "cancel_job: force must be True or False, got 'no'",
        ),  # type: ignore[arg-type]
        (lambda conn: pyworker.remove_job(conn, 7), "remove_job: job_key must be a string, got 7"),  # type: ignore[arg-type]
    ],
)
def test_what_another_verb_is_given_is_checked_too(conn: Any, call: Any, words: str) -> None:
    with pytest.raises(pyworker.InvalidArgument, match=f"^{words}$"):
        call(conn)


@pytest.mark.parametrize(
    ("options", "unknown"),
    [
        ({"identifier": "t", "prio": 1}, "add_jobs: specs[1] has no argument 'prio' (known: "),
        ({}, "identifier must be a string"),
    ],
)
def test_a_spec_that_is_wrong_is_named_by_its_position(conn: Any, options: Any, unknown: str) -> None:
    with pytest.raises((TypeError, pyworker.InvalidArgument)) as caught:
        pyworker.add_jobs(conn, [options])
    assert unknown in str(caught.value)


def test_a_timedelta_is_from_now_by_the_queues_clock(fresh: Any, fresh_dsn: str) -> None:
    fresh.execute("select pyworker.advance_clock('10 days')")
    with psycopg.connect(fresh_dsn) as conn:
        now = conn.execute("select extract(epoch from pyworker.clock())::float8").fetchone()
        job = pyworker.add_job(conn, "t", run_at=timedelta(days=1, microseconds=1))
        (other,) = pyworker.add_jobs(conn, [{"identifier": "t", "run_at": timedelta(days=-1)}])
    assert now is not None
    assert 0 <= job.run_at.timestamp() - now[0] - 86400 < 30
    assert -86400 <= other.run_at.timestamp() - now[0] < 30 - 86400
    assert (job.state, other.state) == ("scheduled", "available")


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [
        (timedelta(days=1), 86400),
        (90, 90),
        (0.25, 0.25),
        (timedelta(microseconds=1), 1e-6),
        ("2 minutes", 120),
    ],
    ids=repr,
)
def test_a_delay_is_a_time_from_now_in_every_add(conn: Any, delay: Any, seconds: float) -> None:
    jobs = [
        pyworker.add_job(conn, "t", delay=delay, run_at=None),
        *pyworker.add_jobs(conn, [{"identifier": "t", "delay": delay}]),
        *pyworker.add_batch(conn, [{"identifier": "t", "delay": delay}], "last").jobs,
        remind.add(conn, None, delay=delay),
    ]
    with pyworker.flow(conn) as flow:
        late = flow.add("t", delay=delay)
    jobs.append(late.job)
    assert [(job.run_at - job.created_at).total_seconds() for job in jobs] == [
        pytest.approx(seconds, abs=0.1)
    ] * 5


@pytest.mark.parametrize(
    ("delay", "words"),
    [
        (-1, "delay must be from 0 seconds to 8,000 years, got -1"),
        (timedelta(seconds=-1), "delay must be from 0 seconds to 8,000 years, got datetime.timedelta"),
        (float("nan"), "delay must be from 0 seconds to 8,000 years, got nan"),
        (float("inf"), "delay must be from 0 seconds to 8,000 years, got inf"),
        (True, "delay must be a timedelta, seconds, or a string, got True"),
        (
            datetime(2100, 1, 1),
            r"delay must be a timedelta, seconds, or a string, got datetime.datetime\(2100",
        ),
    ],
    ids=repr,
)
def test_what_is_no_delay_is_refused(conn: Any, delay: Any, words: str) -> None:
    with pytest.raises(pyworker.InvalidArgument, match=words):
        pyworker.add_job(conn, "t", delay=delay)


def test_run_at_and_delay_together_are_refused(conn: Any) -> None:
    words = "give run_at or delay, not both, got run_at 'tomorrow' and delay 5"
    with pytest.raises(pyworker.InvalidArgument, match=f"^add_job: {words}$"):
        pyworker.add_job(conn, "t", run_at="tomorrow", delay=5)
    with pytest.raises(pyworker.InvalidArgument, match=rf"^add_jobs: specs\[1\]: {words}$"):
        pyworker.add_jobs(conn, [{"identifier": "t", "run_at": "tomorrow", "delay": 5}])


def test_deadlines_are_times_and_durations(conn: Any) -> None:
    soon, late = timedelta(hours=1), timedelta(hours=2)
    pyworker.add_job(conn, "t", job_key="k", run_at=late, expires_at=late, max_wait=soon)
    pyworker.add_jobs(
        conn,
        [
            {"identifier": "t", "job_key": "l", "run_at": late, "expires_at": late, "max_wait": 3600},
            {"identifier": "t", "job_key": "m", "run_at": late, "expires_at": LATER, "max_wait": "1 hour"},
        ],
    )
    rows = conn.execute(
        "select round(extract(epoch from run_at - created_at)), "
        "round(extract(epoch from start_by - created_at)) from pyworker.live_jobs order by id"
    ).fetchall()
    assert rows[:2] == [(3600, 7200)] * 2
    assert rows[2][0] == 3600
    with pytest.raises(pyworker.InvalidArgument, match="max_wait must be a timedelta, seconds, or a string"):
        pyworker.add_job(conn, "t", job_key="k", max_wait=[1])  # type: ignore[arg-type]
    with pytest.raises(pyworker.InvalidArgument, match="expires_at must have a time zone"):
        pyworker.add_job(conn, "t", expires_at=datetime(2100, 1, 1))


def test_kinds_of_text_and_numbers_are_taken_as_what_they_are(conn: Any) -> None:
    class Name(enum.StrEnum):
        MAIL = "mail"

    job = pyworker.add_job(
        conn, Name.MAIL, queue_name=Name.MAIL, priority=Level.HIGH, flags=(n for n in ("a", "b"))
    )
    assert (job.task_identifier, job.queue_name, job.priority, job.flags) == (
        "mail",
        "mail",
        -5,
        {"a": True, "b": True},
    )
    assert pyworker.add_job(conn, "t", run_at="2100-01-01 12:00+00").run_at == LATER


@pytest.mark.parametrize(
    ("payload", "options", "words"),
    [
        ({}, {"meta": []}, "add_job: meta must be a JSON object, got array"),
        ({}, {"priority": 99999}, "add_job: priority must be from -32768 to 32767, got 99999"),
        (
            {},
            {"job_key_mode": "x"},
            "add_job: job_key_mode must be replace, preserve_run_at or unsafe_dedupe, got 'x'",
        ),
        (
            {},
            {"sequence_policy": {"key": 7}},
            "add_job: sequence_policy: key must be a string of 1 to 512 characters, got 7",
        ),
        ("x" * (1 << 20), {}, "payload must not be larger than 1048576 bytes"),
    ],
    ids=lambda value: None,
)
def test_what_the_database_refuses_says_why(
    conn: Any, payload: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(pyworker.InvalidArgument, match=words):
        pyworker.add_job(conn, "t", payload, **options)


@pytest.mark.parametrize("wrong", [None, "postgresql:///", 7], ids=repr)
def test_what_is_no_connection_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"conn must be a connection, cursor or session of psycopg, .*, got "):
        pyworker.add_job(wrong, "t")


def test_a_sqlalchemy_driver_with_other_parameters_is_refused_by_name() -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    engine = sqlalchemy.create_engine("sqlite://")
    with (
        engine.connect() as conn,
        pytest.raises(TypeError, match="SQLAlchemy's driver pysqlite is not supported; use psycopg"),
    ):
        pyworker.add_job(conn, "t")
    engine.dispose()


def test_a_task_adds_its_own_jobs(conn: Any) -> None:
    @pyworker.task(name="of a test")
    def handler(payload: Any) -> None: ...

    job = handler.add(conn, {"a": 1}, priority=2)
    assert (job.task_identifier, job.payload, job.priority) == ("of a test", {"a": 1}, 2)


def test_the_schema_is_an_argument_or_comes_from_the_environment(
    conn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYWORKER_SCHEMA", "elsewhere")
    with pytest.raises(psycopg.errors.InvalidSchemaName, match='"elsewhere"'):
        pyworker.add_job(conn, "t")
    assert pyworker.add_job(conn, "t", schema="pyworker").state == "available"


def test_a_job_is_returned_as_the_database_tells_it(conn: Any) -> None:
    job = pyworker.add_job(conn, "t", [1], run_at=datetime(2100, 1, 1, tzinfo=UTC), job_key="k")
    again = pyworker.add_job(conn, "t", [2], job_key="k", job_key_mode="unsafe_dedupe")
    assert dataclasses.replace(again, deduplicated=False) == job
    assert again.deduplicated
    columns = conn.execute(
        "select attname from pg_attribute where attrelid = 'pyworker.job'::regclass and attnum > 0 "
        "order by attnum"
    ).fetchall()
    assert [field.name for field in dataclasses.fields(job)] == [name for (name,) in columns]


def test_a_duplicate_names_the_job_that_is_in_the_way(conn: Any) -> None:
    old = pyworker.add_job(conn, "t", job_key="k")
    conn.execute("select pyworker.cancel_job(%s)", [old.id])
    new = pyworker.add_job(conn, "t", job_key="k")
    from pyworker._db.database import Database

    with pytest.raises(pyworker.Duplicate) as caught:
        Database(conn).retry_job(old.id)
    assert (caught.value.existing_job_id, caught.value.existing_job_state) == (new.id, "available")


def test_a_call_without_a_connection_is_refused_by_that_name() -> None:
    with pytest.raises(TypeError, match=r"add_job: conn must be a connection, .*, got str"):
        pyworker.add_job("t", {"a": 1})  # type: ignore[call-overload]
