"""`pyworker sql TOPIC`: every statement that it prints runs, in any schema."""

from __future__ import annotations

from typing import Any

import pytest
from pglast import parse_sql, split

from pyworker._cli.topics import topics
from pyworker._db.migrations import migrate

TOPICS = topics("pyworker")
WANTED = {"enqueue", "unique", "sequence", "schedule", "retry", "pause", "oldest", "lag", "sizes", "locks"}

ZOO = """
    select pyworker.add_job('send_email', '{}') from generate_series(1, 7);
    select pyworker.permanently_fail_jobs('{1,2}', 'Traceback\n  x\nValueError: no');
    select pyworker.add_job('s', sequence_policy => '{"key": "halted"}') from generate_series(1, 3);
    select pyworker.permanently_fail_jobs('{8}', 'boom');
    select pyworker.add_job('greet', job_key => 'reindex 42')
"""


@pytest.fixture
def show(cli: Any, db: Any) -> Any:
    def run(*words: str) -> list[str]:
        done = cli("sql", *words)
        assert (done.returncode, done.stderr) == (0, "")
        return list(split(done.stdout))

    return run


@pytest.mark.parametrize("topic", TOPICS)
def test_every_statement_runs(show: Any, db: Any, topic: str) -> None:
    db.execute(ZOO)
    statements = show(topic)
    assert statements
    with db.transaction(force_rollback=True):
        for statement in statements:
            db.execute(statement)


@pytest.mark.parametrize("topic", TOPICS)
def test_every_statement_runs_in_a_schema_of_another_name(cli: Any, fresh: Any, topic: str) -> None:
    fresh.execute("drop schema pyworker cascade")
    name = 'Ours, "quoted" o\'clock'
    migrate(fresh, name)
    with fresh.transaction(force_rollback=True):
        fresh.execute(ZOO.replace("pyworker.", '"Ours, ""quoted"" o\'clock".'))
        for statement in split(cli("sql", topic, "--schema", name).stdout):
            fresh.execute(statement)


def test_they_do_what_they_say(show: Any, db: Any) -> None:
    db.execute(ZOO)
    states = "select array_agg(state order by id) from pyworker.jobs where id = any (%s)"
    db.execute(show("retry")[0])
    assert db.execute(states, [[1, 2, 3, 8]]).fetchone() == (["available"] * 3 + ["discarded"],)
    assert [row[1:3] for row in db.execute(show("sequence")[1])] == [(8, "discarded")]
    db.execute(show("sequence")[3])
    assert db.execute("select count(*) from pyworker.sequences where halted_by is not null").fetchone() == (
        0,
    )
    db.execute(show("pause")[0])
    assert db.execute("select paused from pyworker.queue_stats where queue_name = 'mail'").fetchone() == (
        True,
    )
    oldest = db.execute(show("oldest")[0]).fetchone()
    assert (oldest[0], oldest[3]) == (3, "available")
    assert db.execute(show("lag")[0]).fetchone()[0] >= 0
    db.execute(show("cancel")[2])
    assert db.execute("select count(*) from pyworker.jobs where task_identifier = 'greet'").fetchone() == (0,)
    db.execute("".join(statement + ";" for statement in show("trigger")))
    try:
        db.execute("insert into orders (email) values ('a@b.c')")
        assert db.execute(
            "select count(*) from pyworker.jobs where task_identifier = 'confirm_order'"
        ).fetchone() == (1,)
    finally:
        db.execute("drop table orders; drop function order_added")


def test_what_locks_are_held_is_seen(show: Any, db: Any, session: Any) -> None:
    holder, waiter = session(), session()
    holder.run("begin; lock table pyworker.live_jobs")
    future = waiter.start("select * from pyworker.live_jobs")
    waiter.await_blocked(future)
    waiting, held = (db.execute(statement).fetchall() for statement in show("locks"))
    assert (waiter.pid, [holder.pid]) in [(row[0], row[3]) for row in waiting]
    assert (holder.pid, "live_jobs", "AccessExclusiveLock", True) in [row[:4] for row in held]
    holder.run("rollback")
    future.result()


def test_without_a_topic_they_are_listed(cli: Any) -> None:
    done = cli("sql")
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(TOPICS)
    assert TOPICS.keys() >= WANTED


def test_an_unknown_topic_names_the_known_ones(cli: Any) -> None:
    done = cli("sql", "nonsense")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("pyworker: there is no topic 'nonsense' (there are: enqueue, ")


def test_every_topic_is_sql() -> None:
    for _, statements in TOPICS.values():
        assert parse_sql(statements)
