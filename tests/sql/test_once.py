"""once(): a key is told true once, for all who ask."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.support.api import value_of
from tests.support.sessions import SNAPSHOT_LEVELS


def test_once_is_true_once_for_each_key(api: Any) -> None:
    assert [api.once("a"), api.once("a"), api.once("b"), api.once("A"), api.once("a ")] == [
        True,
        False,
        True,
        True,
        True,
    ]
    assert [api.once("é"), api.once("e\u0301"), api.once("x" * 512)] == [True] * 3  # letter by letter


@pytest.mark.parametrize("key", ["", None, "x" * 513])
def test_the_key_of_once_is_1_to_512_characters_long(api: Any, key: str | None) -> None:
    with api.refusal("PW001", "once", "key", "NULL" if key is None else "512"):
        api.once(key)


def test_once_counts_from_the_commit(api: Any, actor: Any) -> None:
    a = actor()
    a.begin()
    assert [a.once("k"), a.once("k")] == [True, False]
    a.rollback()
    a.rows("begin; savepoint s")
    assert a.once("k") is True
    a.rows("rollback to s")
    assert a.once("k") is True
    a.commit()
    assert api.once("k") is False


@pytest.mark.parametrize("outcome", ["commit", "rollback", "kill"])
def test_a_second_caller_waits_for_the_first(api: Any, actor: Any, outcome: str) -> None:
    a, b, c = actor(), actor(), actor()
    a.begin()
    assert a.once("k") is True
    assert c.once("another") is True  # only of the same key
    waiting = b.later.once("k")
    b.blocked(waiting)
    getattr(a, outcome)()
    assert value_of(waiting) is (outcome != "commit")
    assert c.once("k") is False


@pytest.mark.parametrize("level", SNAPSHOT_LEVELS)
def test_in_an_old_snapshot_a_newer_mark_is_a_serialization_failure_never_a_second_true(
    api: Any, actor: Any, level: str
) -> None:
    a = actor()
    a.begin(level)
    assert api.once("k") is True
    with pytest.raises(psycopg.errors.SerializationFailure):
        a.once("k")
    a.rollback()
    a.begin(level)
    assert a.once("k") is False
    assert a.once("l") is True
    a.commit()
    assert api.once("l") is False


@pytest.mark.parametrize("level", SNAPSHOT_LEVELS)
@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_in_an_old_snapshot_a_second_caller_waits_too(api: Any, actor: Any, level: str, outcome: str) -> None:
    a, b = actor(), actor()
    a.begin(level)
    assert a.once("k") is True
    b.begin(level)
    waiting = b.later.once("k")
    b.blocked(waiting)
    getattr(a, outcome)()
    if outcome == "rollback":
        assert value_of(waiting) is True
        b.commit()
    else:
        with pytest.raises(psycopg.errors.SerializationFailure):
            waiting.result(20)
        b.rollback()


def test_of_many_callers_at_once_one_is_told_true(api: Any, dsn: str) -> None:
    """20 rounds of 8 sessions each: half of them roll back, or are killed before they commit."""

    def caller(key: str, seed: int) -> bool:
        rng = random.Random(f"{key}/{seed}")
        with psycopg.connect(dsn, autocommit=False) as conn:
            try:
                (won,) = conn.execute("select pyworker.once(%s)", [key]).fetchone()  # type: ignore[misc]
                if seed % 4 == 1:
                    conn.rollback()
                    return False
                if seed % 4 == 3:
                    api_conn.execute("select pg_terminate_backend(%s, 10000)", [conn.info.backend_pid])
                if rng.random() < 0.5:
                    conn.execute("select 1")
                conn.commit()
            except psycopg.OperationalError:
                assert seed % 4 == 3
                conn.close()
                return False
            return won

    with psycopg.connect(dsn, autocommit=True) as api_conn, ThreadPoolExecutor(8) as threads:
        for n in range(20):
            told = list(threads.map(lambda seed, n=n: caller(f"k{n}", seed), range(8)))
            assert sum(told) == 1, (n, told)
            assert api.once(f"k{n}") is False


def test_once_remembers_for_good_or_as_long_as_it_was_told(api: Any, clock: Any) -> None:
    assert api.once("old") is True
    clock.advance(days=3650)
    api.maintain()
    api.prune()
    assert api.once("old") is False
    assert api.once("new") is True
    api.configure(once_retention="30 days")
    assert api.once("old") is False  # until it is pruned
    api.maintain()
    assert (api.once("old"), api.once("new")) == (True, False)
    clock.advance(days=29)
    api.prune()
    assert api.once("new") is False
    clock.advance(days=2)
    api.prune()
    assert api.once("new") is True
    api.configure(once_retention="0")
    clock.advance(days=3650)
    api.prune()
    assert api.once("new") is False
    assert api.value("select once_retention from pyworker.settings") is None


@pytest.mark.parametrize("value", ["59 min", "-1 day", "1 s"])
def test_once_must_not_forget_too_soon(api: Any, value: str) -> None:
    with api.refusal("PW001", "once_retention"):
        api.configure(once_retention=value)


def test_other_settings_leave_the_memory_of_once_alone(api: Any) -> None:
    api.configure(once_retention="2 days")
    api.configure(max_crashes=5)
    assert api.value("select once_retention::text from pyworker.settings") == "2 days"


def test_a_mark_that_is_just_being_forgotten_is_waited_for(api: Any, actor: Any, clock: Any) -> None:
    api.configure(once_retention="1 hour")
    api.once("k")
    a, b = actor(), actor()
    clock.advance(hours=2)
    a.begin()
    a.prune()
    waiting = b.later.once("k")
    b.blocked(waiting)
    a.commit()
    assert value_of(waiting) is True
    assert api.once("k") is False


def test_maintenance_forgets_in_small_bites_and_never_walks_what_is_kept_for_good(
    api: Any, clock: Any
) -> None:
    api.rows(
        "insert into pyworker.once_keys select 'k' || i, pyworker.clock() from generate_series(1, 2500) i"
    )

    def looked_at() -> int:
        with api.conn.transaction():
            before = api.value(
                "select sum(seq_tup_read + idx_tup_fetch) from pg_stat_xact_all_tables "
                "where relname = 'once_keys'"
            )
            api.maintain()
            after = api.value(
                "select sum(seq_tup_read + idx_tup_fetch) from pg_stat_xact_all_tables "
                "where relname = 'once_keys'"
            )
        return int(after or 0) - int(before or 0)

    clock.advance(days=2)
    assert looked_at() < 10  # the planner may look at the ends of an index
    api.configure(once_retention="3 days")
    assert looked_at() < 10  # the planner may look at the ends of an index
    api.configure(once_retention="1 day")
    assert looked_at() < 5000
    assert api.value("select count(*) from pyworker.once_keys") == 1500
    api.prune()
    assert api.value("select count(*) from pyworker.once_keys") == 0


@pytest.mark.parametrize("role", ["pyworker_producer", "pyworker_worker", "pyworker_admin"])
def test_producers_may_ask_once_and_touch_no_mark(api: Any, actor: Any, role: str) -> None:
    a = actor()
    a.rows(f"set role {role}")
    assert [a.once("k"), a.once("k")] == [True, False]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        a.rows("delete from pyworker.once_keys")
    if role == "pyworker_producer":
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            a.start_job(1, 1)


def test_no_caller_takes_the_mark_of_a_jobs_step(api: Any, actor: Any, worker: int) -> None:
    """Or one that may only add jobs would keep a handler from its mail."""
    api.add_job("t")
    job = api.claim(worker)
    a = actor()
    a.rows("set role pyworker_producer")
    with a.refusal("PW001", "key must not begin with pyworker/", "pyworker/job/1/mail"):
        a.once(f"pyworker/job/{job.id}/mail")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        a.once(job.id, job.run, "mail")
    assert [api.once(job.id, job.run, "mail"), api.once(job.id, job.run, "mail")] == [True, False]
