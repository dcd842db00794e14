"""Where an add may notify no worker, each worker that waits looks again soon."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.support.notify import heard as heard
from tests.support.notify import look, wait

NOW_MS = "(extract(epoch from clock_timestamp()) * 1000)::bigint"


def test_each_transaction_that_adds_while_a_worker_waits_notifies_even_beside_others(
    api: Any, actor: Any, worker: int, heard: Any
) -> None:
    """Those that stay open hold back no other's notification; nor does one that is rolled back."""
    others = [actor() for _ in range(6)]
    wait(api, worker)
    api.rows(f"select setval('pyworker.listening_until', {NOW_MS} + 600000)")  # for minutes, not for seconds
    for other in others:
        other.begin()
        other.add_job("t")
    for _ in range(2):
        api.add_job("t")
        assert heard() == [""]
    for other in others[:3]:
        other.rollback()
    api.add_job("t")
    assert heard() == [""]
    for other in others[3:]:
        other.commit()
        assert heard() == [""]


@pytest.mark.parametrize("outcome", ["commit", "rollback", "kill"])
def test_while_a_transaction_is_open_that_saw_no_worker_wait_a_worker_looks_again_soon(
    api: Any, actor: Any, worker: int, outcome: str
) -> None:
    a = actor()
    a.begin()
    job = a.add_job("t")
    wait(api, worker)  # begins to wait now
    assert 0 < look(api) <= 0.25
    api.rows("select pg_sleep(0.3)")  # however long it is open
    assert 0.2 < look(api) <= 0.25
    getattr(a, outcome)()
    assert look(api) == (0.25 if outcome == "commit" else 2)  # it may commit as the worker begins to wait
    assert [found.id for found in api.claim_jobs(worker)] == ([job.id] if outcome == "commit" else [])
    assert look(api) == 2


def test_a_worker_that_sees_less_than_is_committed_looks_again_soon(
    api: Any, actor: Any, worker: int
) -> None:
    """A silent add is committed, but the worker's snapshot is older."""
    a, claimer = actor(), actor()
    a.begin()
    a.add_job("t")
    claimer.begin("repeatable read")
    assert claimer.claim_jobs(worker) == []
    a.commit()
    assert 0 < look(claimer) <= 0.25
    claimer.rollback()


@pytest.mark.parametrize("outcome", ["commit", "rollback", "kill"])
def test_a_worker_looks_again_soon_for_a_job_that_a_session_had_locked_and_left_as_it_was(
    api: Any, actor: Any, worker: int, outcome: str
) -> None:
    """A transaction notifies of nothing if it is rolled back or changes nothing."""
    wait(api, worker)
    job = api.add_job("t")
    a = actor()
    a.begin()
    if outcome == "commit":
        a.rows("select from pyworker.live_jobs where id = %s for update", [job.id])
    else:
        a.cancel_job(job.id)
    assert api.claim_jobs(worker) == []
    assert look(api) == 0.25
    getattr(a, outcome)()
    assert look(api) == 0.25
    assert [found.id for found in api.claim_jobs(worker)] == [job.id]
    assert look(api) == 2


@pytest.mark.parametrize(
    ("filters", "soon"),
    [
        ([["t"], ["q"], ["other"]], True),
        ([["other"], None, None], False),
        ([None, ["default"], None], False),
        ([None, None, ["f"]], False),
        ([[], None, None], False),
    ],
)
def test_a_job_that_the_worker_does_not_take_keeps_it_not_awake(
    api: Any, filters: list[Any], soon: bool
) -> None:
    api.add_job("t", queue_name="q", flags=["f"])
    api.promote_jobs()
    assert look(api, *filters) == (0.25 if soon else 2)


def test_a_transaction_that_began_later_or_in_another_database_keeps_no_worker_awake(
    api: Any, actor: Any, worker: int, dsn: str
) -> None:
    with psycopg.connect(dsn, dbname="postgres") as elsewhere:
        elsewhere.execute("select pg_current_xact_id()")
        wait(api, worker)
        a = actor()
        a.begin()
        a.add_job("t")  # notifies with its commit
        assert look(api) == 2


def many(api: Any, worker: int) -> None:
    """One look that finds many jobs. What begins then lasts a tenth of a second: here, until over()."""
    api.add_jobs([{"identifier": "t"}] * 20)
    assert len(api.claim_jobs(worker, 1000)) == 20
    assert api.value("select last_value from pyworker.polling_until") > 0
    _poll_until(api, "+ 600000")


def over(api: Any) -> None:
    _poll_until(api, "- 1")


def _poll_until(api: Any, now: str) -> None:
    api.rows(f"select setval('pyworker.polling_until', {NOW_MS} {now})")


def test_where_many_jobs_come_in_each_worker_that_waits_looks_every_5_ms_and_adds_are_silent(
    api: Any, worker: int, heard: Any
) -> None:
    wait(api, worker)
    many(api, worker)
    assert heard() == ["", ""]  # the add, and the claim: now other workers look, too
    assert look(api) == 0.005
    api.add_job("t")
    assert heard() == []
    other = api.register_worker()
    assert api.claim_jobs(other, 10, ["another task"]) == []
    assert look(api) == 0.005
    over(api)
    wait(api, worker)  # it finds that one: no longer many
    assert look(api) == 2
    api.add_job("t")
    assert heard() == [""]


def test_an_add_that_was_silent_and_is_long_in_committing_is_looked_for(
    api: Any, actor: Any, worker: int
) -> None:
    wait(api, worker)
    many(api, worker)
    a = actor()
    a.begin()
    job = a.add_job("t")
    over(api)
    wait(api, worker)
    assert 0.01 < look(api) <= 0.25
    a.commit()
    assert [found.id for found in api.claim_jobs(worker)] == [job.id]


def claiming(worker: int, limit: int, of: int) -> str:
    """A claim that must find so many jobs, as a statement."""
    found = f"select count(*) from pyworker.claim_jobs({worker}, {limit})"
    return f"do $$ begin assert ({found}) = {of}; end $$"


@pytest.fixture
def full(api: Any, actor: Any) -> Callable[[], None]:
    """A worker's session whose claims come back full."""
    a, busy = actor(), api.register_worker()

    def full() -> None:
        a.rows("select pg_sleep(0.002)")  # times are in ms
        a.rows("set pyworker.notify = off")
        a.add_job("t")
        a.rows("reset pyworker.notify")
        assert len(a.claim_jobs(busy, 1)) == 1

    return full


def test_a_claim_that_comes_back_full_leaves_what_comes_to_the_others(
    api: Any, worker: int, heard: Any, full: Callable[[], None]
) -> None:
    wait(api, worker)
    api.rows("set pyworker.notify = off")
    api.add_jobs([{"identifier": "t"}] * 4)
    api.rows("reset pyworker.notify")
    assert heard() == []
    full()
    assert heard() == [""]


def test_a_session_that_does_not_notify_disarms_no_worker(
    api: Any, actor: Any, worker: int, heard: Any
) -> None:
    wait(api, worker)
    a = actor()
    a.rows("set pyworker.notify = off")
    for _ in range(3):
        a.add_job("t")
        api.rows("select pg_sleep(0.002)")
        assert len(a.claim_jobs(worker, 1)) == 1
    api.add_job("t")
    assert heard() == [""]


def test_an_add_that_is_younger_than_the_transaction_of_the_claim_that_begins_to_wait_is_looked_for(
    api: Any, actor: Any, worker: int
) -> None:
    """A worker reports and claims in one transaction."""
    turn, a = actor(), actor()
    turn.begin()
    turn.rows("select pg_current_xact_id()")
    a.begin()
    job = a.add_job("t")  # no worker waits yet
    assert turn.claim_jobs(worker, 10) == []
    turn.commit()
    assert look(api) <= 0.25
    a.commit()
    assert [found.id for found in api.claim_jobs(worker)] == [job.id]


def test_a_clock_that_was_set_back_keeps_no_claim_in_a_loop(api: Any, worker: int, heard: Any) -> None:
    api.rows(
        "select setval('pyworker.not_listening_until', (extract(epoch "
        "from clock_timestamp()) * 1000)::bigint + 600000)"
    )
    wait(api, worker)
    api.add_job("t")
    assert heard() == [""]


def test_adds_are_silent_once_every_worker_that_waited_was_notified(
    api: Any, worker: int, heard: Any, full: Callable[[], None]
) -> None:
    wait(api, worker)
    full()
    assert heard() == [""]
    api.add_job("t")
    assert heard() == [""]  # that notification may have been rolled back
    full()
    api.add_job("t")
    assert heard() == []
    wait(api, worker)
    api.add_job("t")
    assert heard() == [""]


def test_a_worker_that_waits_again_after_the_notification_is_notified(
    api: Any, actor: Any, worker: int, heard: Any
) -> None:
    """All in one message to the server: a full claim a second later would notify again."""
    a, busy = actor(), api.register_worker()
    wait(api, worker)
    full = [
        "set local pyworker.notify = off; select pyworker.add_job('t')",
        claiming(busy, 1, of=1),
        "select pg_sleep(0.002)",  # times are in ms
    ]
    steps = [*full, claiming(worker, 1000, of=0), *full, *full, "select pyworker.add_job('t')"]
    a.rows(";".join(f"begin; {step}; commit" for step in steps))
    assert heard() == ["", ""]  # of the first full claim, and of the add


def test_an_add_that_was_silent_as_no_worker_waited_is_found_by_the_one_that_begins_to_wait(
    api: Any, actor: Any, worker: int, heard: Any, full: Callable[[], None]
) -> None:
    wait(api, worker)
    full()
    full()
    heard()
    a = actor()
    a.begin()
    job = a.add_job("t")
    wait(api, worker)
    assert look(api) <= 0.25
    a.commit()
    assert heard() == []
    assert [found.id for found in api.claim_jobs(worker)] == [job.id]


def test_a_full_claim_that_is_rolled_back_keeps_no_worker_asleep(
    api: Any, actor: Any, worker: int, heard: Any
) -> None:
    """All in one message to the server: a worker counts as waiting for five seconds only."""
    a = actor()
    wait(api, worker)
    api.add_jobs([{"identifier": "t"}] * 3)
    heard()
    full = f"select pg_sleep(0.002); {claiming(worker, 1, of=1)};"
    a.rows(
        f"select setval('pyworker.listening_until', {NOW_MS} + 5000);"
        + f"begin; {full} {full} rollback;" * 3
        + "select pyworker.add_job('t')"
    )
    assert heard() == [""]  # of the add, and of no claim


def test_no_add_stays_silent_for_a_worker_that_has_stopped_looking(api: Any, worker: int, heard: Any) -> None:
    wait(api, worker)
    many(api, worker)
    heard()
    over(api)
    api.add_job("t")
    assert heard() == [""]
