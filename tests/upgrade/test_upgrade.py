"""A database that a released version made is upgraded while it is used: nothing is lost, all goes on."""

from __future__ import annotations

import gzip
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pyworker._db.migrations import migrate, migrations
from tests.support.databases import check_invariants
from tests.upgrade.later import VERSION, Later, make
from tests.upgrade.states import LEFT, Worker

RELEASED = sorted(Path(__file__).parent.glob("*.sql.gz"))
JOBS = (
    "select id, task_identifier, state, reason from pyworker.jobs union all "
    "select id, task_identifier, state, reason from pyworker.history"
)
ENDED = {"completed", "cancelled", "discarded"}


def jobs(conn: psycopg.Connection[Any]) -> dict[int, tuple[str, str, str | None]]:
    return {job_id: (task, state, reason) for job_id, task, state, reason in conn.execute(JOBS).fetchall()}


def left(conn: psycopg.Connection[Any]) -> set[str]:
    """The tasks of the jobs that have not ended."""
    return {task for task, state, _ in jobs(conn).values() if state not in ENDED}


@pytest.fixture(params=RELEASED, ids=lambda path: path.name.removesuffix(".sql.gz"))
def released(request: Any, empty_dsn: str) -> str:
    """A database as that version has left it."""
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        conn.execute(gzip.decompress(request.param.read_bytes()))
    return empty_dsn


@pytest.fixture
def later(tmp_path: Path) -> Later:
    return make(tmp_path)


class User(threading.Thread):
    """A session that calls the queue in a loop, until it is told to stop."""

    def __init__(self, dsn: str) -> None:
        super().__init__()
        self.dsn, self.rounds, self.stopped = dsn, 0, False
        self.moved = threading.Condition()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with psycopg.connect(self.dsn, autocommit=True) as conn:
                self.begin(conn)
                while not self.stopped:
                    self.round(conn)
                    with self.moved:
                        self.rounds += 1
                        self.moved.notify_all()
        except BaseException as error:
            self.failure = error
            with self.moved:
                self.moved.notify_all()

    def begin(self, conn: psycopg.Connection[Any]) -> None:
        pass

    def round(self, conn: psycopg.Connection[Any]) -> None:
        raise NotImplementedError

    def go_on(self, rounds: int = 20) -> None:
        """Waits until it has called that often since now."""
        with self.moved:
            target = self.rounds + rounds
            self.moved.wait_for(lambda: self.failure or self.rounds >= target, timeout=60)
            assert self.failure is None
            assert self.rounds >= target


class Producer(User):
    def begin(self, conn: psycopg.Connection[Any]) -> None:
        self.added: list[int] = []

    def round(self, conn: psycopg.Connection[Any]) -> None:
        rows = conn.execute(
            "select id from pyworker.add_job('plain') union all "
            "select id from pyworker.add_job('mail', queue_name => 'mail') union all "
            "select id from pyworker.add_job('keyed', '[3]', job_key => 'another', queue_name => 'serial')"
        ).fetchall()
        self.added += [row[0] for row in rows]


class Handler(User):
    """Completes what it claims, and reports it with its next turn."""

    def begin(self, conn: psycopg.Connection[Any]) -> None:
        self.worker = Worker(conn)
        self.done: list[tuple[int, int]] = []
        self.handled: list[tuple[int, str]] = []

    def round(self, conn: psycopg.Connection[Any]) -> None:
        jobs = self.worker.work(self.done, 3)
        conn.execute("select pyworker.beat(%s)", [self.worker.id])
        self.handled += [(job_id, task) for job_id, _, task, _ in jobs]
        begun = [
            (job_id, run)
            for job_id, run, _, delivery in jobs
            if delivery == "at_least_once"
            or self.worker.value("select pyworker.start_job(%s, %s)", job_id, run)
        ]
        self.done = begun


@contextmanager
def used(*users: User) -> Iterator[None]:
    for user in users:
        user.start()
    try:
        yield
    finally:
        for user in users:
            user.stopped = True
        for user in users:
            user.join()
    assert [user.failure for user in users] == [None] * len(users)


@pytest.fixture(params=[("by_psql", "by_command"), ("by_command", "by_psql")], ids=["psql", "command"])
def upgrades(request: Any, later: Later) -> list[Callable[[str], subprocess.CompletedProcess[str]]]:
    """The first upgrades the database, the second finds nothing to do."""
    return [getattr(later, name) for name in request.param]


def test_a_database_of_a_released_version_is_upgraded_under_load_twice_and_loses_no_job(
    released: str, upgrades: list[Callable[[str], subprocess.CompletedProcess[str]]]
) -> None:
    with psycopg.connect(released, autocommit=True) as conn:
        before = jobs(conn)
        producer, handlers = Producer(released), [Handler(released) for _ in range(2)]
        with used(producer, *handlers):
            for upgrade in upgrades:
                for user in (producer, *handlers):
                    user.go_on()
                done = upgrade(released)
                assert (done.returncode, done.stderr) == (0, "")
            for user in (producer, *handlers):
                user.go_on()
        assert conn.execute("select pyworker.schema_version()").fetchone() == (VERSION,)
        assert conn.execute(
            "select note from pyworker.live_jobs where task_identifier = 'later'"
        ).fetchall() == [("of old",)]
        settle(conn)
        after = jobs(conn)
        assert {*before, *producer.added} <= {*after}
        assert left(conn) <= LEFT
        check_invariants(conn)
        of_old = {task: ended for job_id, (task, *ended) in after.items() if job_id in before}
        assert of_old["begun"] == ["discarded", "lost"]
        assert of_old["expiring"] == ["cancelled", "expired"]
        assert {of_old[task][0] for task in ("cancelled", "refused")} == {"cancelled"}
        assert {of_old[task][0] for task in ("discarded", "halting")} == {"discarded"}
        assert {of_old[task][0] for task in ("reserved", "running", "callback", "child", "failed")} == {
            "completed"
        }
        (completed,) = (job_id for job_id, (task, *_) in before.items() if task == "completed")
        assert conn.execute("select (pyworker.get_job(%s)).result", [completed]).fetchone() == ({"sum": 3},)
        handled = [job for handler in handlers for job in handler.handled]
        assert "begun" not in {task for _, task in handled}


def settle(conn: psycopg.Connection[Any]) -> None:
    """Lets a worker do what is left, now or soon. Due times of the old database have come."""
    conn.execute("select pyworker.force_unlock_workers(array(select id::text from pyworker.workers))")
    conn.execute("select pyworker.set_queue('api', null)")  # its rate would take some seconds
    worker, done = Worker(conn), []
    conn.execute("select pyworker.retry_jobs(array(select id from pyworker.jobs where state = 'retryable'))")
    while jobs := worker.work(done, 100):
        done = [
            job[:2] for job in jobs
            if job[3] == "at_least_once" or worker.value("select pyworker.start_job(%s, %s)", *job[:2])
        ]  # fmt: skip
    worker.work(done, 0)


def test_what_waits_for_people_goes_on_after_the_upgrade(released: str) -> None:
    with psycopg.connect(released, autocommit=True) as conn:
        migrate(conn)
        conn.execute(
            "select pyworker.send_signal(id, 'yes', '1') from pyworker.jobs "
            "where task_identifier = 'approval';"
            "select pyworker.resume_sequence('h'); select pyworker.resume_queue('held');"
            "select pyworker.resume_schedule('yearly')"
        )
        settle(conn)
        assert left(conn) == {"later"}
        (approval,) = conn.execute(
            "select id from pyworker.history where task_identifier = 'approval'"
        ).fetchone()  # type: ignore[misc]
        assert conn.execute("select name, result from pyworker.get_steps(%s)", [approval]).fetchall() == [
            ("charged", 7)
        ]
        assert [row for row in conn.execute("select check_name, severity from pyworker.doctor()") if
                row[1] == "error"] == []  # fmt: skip


def test_an_upgrade_leaves_no_function_behind_that_has_gone(
    released: str, fresh: psycopg.Connection[Any]
) -> None:
    functions = "select oid::regprocedure::text from pg_proc where pronamespace = 'pyworker'::regnamespace"
    with psycopg.connect(released, autocommit=True) as conn:
        migrate(conn)
        assert set(conn.execute(functions)) - set(fresh.execute(functions)) == set()


def test_an_upgrade_from_the_last_version_keeps_each_private_function_for_calls_that_are_under_way(
    empty_dsn: str,
) -> None:
    """Such a call goes on in the old text of its function, and finds by name what that calls."""
    last = max(RELEASED, key=lambda path: [int(part) for part in path.name.split(".")[:3]])
    functions = (
        "select oid::regprocedure::text, pg_get_function_result(oid) from pg_proc "
        "where pronamespace = 'pyworker'::regnamespace and proname like '\\_%'"
    )
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        conn.execute(gzip.decompress(last.read_bytes()))
        before = conn.execute(functions).fetchall()
        migrate(conn)
        assert before
        assert set(before) - set(conn.execute(functions).fetchall()) == set()


def test_a_migration_of_a_released_version_is_never_edited(released: str) -> None:
    with psycopg.connect(released) as conn:
        applied = dict(conn.execute("select version, checksum from pyworker.migrations").fetchall())
    assert applied == {m.version: m.checksum for m in migrations() if m.version in applied}
