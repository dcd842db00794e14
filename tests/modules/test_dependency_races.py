"""A job is added, or ends, while another session ends the job that it depends on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.api import ids
from tests.support.dependencies import ENDS, child, running, settle, state, two_ends
from tests.support.notify import wait

LEVELS = ["read committed", "repeatable read", "serializable"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("outcome", ["commit", "rollback", "kill"])
def test_an_add_that_is_open_while_its_parent_ends_learns_of_it(
    api: Any, actor: Any, worker: int, end: str, outcome: str, level: str
) -> None:
    """It neither waits for the end nor holds it up."""
    parent = running(api, worker)
    a = actor()
    a.begin(level)
    job = child(a, [{"id": parent, "on": "end"}])
    ENDS[end](api, parent)
    assert api.claim_jobs(worker, 10) == []
    getattr(a, outcome)()
    assert ids(api.claim_jobs(worker, 10)) == ([job] if outcome == "commit" else [])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("outcome", ["commit", "rollback", "kill"])
def test_an_end_that_is_open_while_a_child_is_added_tells_it(
    api: Any, actor: Any, worker: int, end: str, outcome: str, level: str
) -> None:
    parent = running(api, worker)
    a = actor()
    a.begin(level)
    ENDS[end](a, parent)
    job = child(api, [{"id": parent, "on": "end"}])
    assert state(api, job) == "pending"
    assert api.seconds_until_due() <= 0.25  # the worker looks again soon
    getattr(a, outcome)()
    assert state(api, job) == ("available" if outcome == "commit" else "pending")
    if outcome != "commit":
        ENDS[end](api, parent)
        assert state(api, job) == "available"


@pytest.mark.parametrize("end", ["delete", "cancel without history"])
def test_a_job_that_vanishes_while_the_first_dependency_of_all_is_added_counts_as_cancelled(
    api: Any, actor: Any, worker: int, end: str
) -> None:
    """Until then no end looks for children."""
    if end == "cancel without history":
        api.define_task("parent", retention="0")
    parent = running(api, worker)
    api.conn.execute("select setval('pyworker.coordination_used', 0, false)")  # as in a new database
    a = actor()
    a.begin()
    if end == "delete":
        a.cancel_job(parent, True)
        a.delete_job(parent)
    else:
        a.cancel_job(parent, True)
    jobs = [child(api, [{"id": parent, "on": on}]) for on in ("success", "failure")]
    a.commit()
    assert [state(api, job) for job in jobs] == ["pending", "available"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("first", [0, 1])
def test_of_two_parents_that_end_at_once_the_one_that_commits_last_tells_the_child(
    api: Any, actor: Any, worker: int, first: int, level: str
) -> None:
    _, job, sessions = two_ends(api, actor, worker, level)
    sessions[first].commit()
    assert state(api, job) == "pending"
    sessions[1 - first].commit()
    settle(api)
    assert ids(api.claim_jobs(worker, 10)) == [job]


def test_an_end_tells_a_worker_that_waits(api: Any, actor: Any, worker: int) -> None:
    parent = running(api, worker)
    child(api, [parent])
    ear = actor()
    ear.rows("listen pyworker")
    wait(ear, ear.register_worker())
    api.finish(parent)
    assert len(list(ear.conn.notifies(timeout=10, stop_after=1))) == 1


def test_a_replace_that_is_open_holds_up_no_end(api: Any, actor: Any, worker: int) -> None:
    parent = running(api, worker)
    job = child(api, [parent], job_key="k")
    for outcome in ("rollback", "commit"):
        a = actor()
        a.begin()
        a.add_job("child", job_key="k")
        if outcome == "rollback":
            api.finish(parent)
        getattr(a, outcome)()
        assert state(api, job) == "available"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("end", ENDS)
def test_an_end_whose_snapshot_is_older_than_a_child_tells_it(
    api: Any, actor: Any, worker: int, end: str, level: str
) -> None:
    parent = running(api, worker)
    child(api, [parent])  # dependencies are in use, as the snapshot must see
    a = actor()
    a.begin(level)
    a.rows("select 1 from pyworker.jobs")
    job = child(api, [{"id": parent, "on": "end"}])
    assert state(api, job) == "pending"  # its request is handled: the parent has not ended
    ENDS[end](a, parent)
    a.commit()
    assert state(api, job) == "available"


def test_an_end_does_not_wait_for_a_session_that_deletes_a_child(api: Any, actor: Any, worker: int) -> None:
    parent = running(api, worker)
    job, other = child(api, [parent]), child(api, [parent])
    a = actor()
    a.begin()
    a.delete_job(job)
    api.finish(parent)
    assert state(api, other) == "available"
    a.rollback()
    assert state(api, job) == "available"


@pytest.mark.parametrize("end", ["cancelled", "discarded"])
def test_a_failure_does_not_wait_for_a_session_that_deletes_a_child(
    api: Any, actor: Any, worker: int, end: str
) -> None:
    parent = running(api, worker)
    job, other = (child(api, [{"id": parent, "on": "end"}]) for _ in range(2))
    a = actor()
    a.begin()
    a.delete_job(job)
    ENDS[end](api, parent)
    assert state(api, other) == "available"
    a.rollback()
    assert state(api, job) == "available"


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("outcome", ["commit", "rollback", "kill"])
@pytest.mark.parametrize("promotions", [1, 2])
def test_a_parent_that_ends_while_a_child_begins_to_watch_it_is_not_missed(
    api: Any, actor: Any, worker: int, end: str, outcome: str, promotions: int
) -> None:
    """Also if one transaction promotes twice, as a claim does: its own watches are no watches yet."""
    first, last = running(api, worker), running(api, worker)
    job = child(api, [{"id": parent, "on": "end"} for parent in (first, last)])
    assert state(api, job) == "pending"
    api.finish(last)
    a = actor()
    a.begin()
    for _ in range(promotions):
        a.promote_jobs()  # from now on the child watches the first one
    ENDS[end](api, first)
    getattr(a, outcome)()
    assert state(api, job) == "available"


@pytest.mark.parametrize("end", ENDS)
def test_a_child_that_begins_to_watch_a_parent_whose_end_is_open_learns_of_it(
    api: Any, actor: Any, worker: int, end: str
) -> None:
    first, last = running(api, worker), running(api, worker)
    job = child(api, [{"id": parent, "on": "end"} for parent in (first, last)])
    api.finish(last)
    a = actor()
    a.begin()
    ENDS[end](a, first)
    assert state(api, job) == "pending"
    a.commit()
    assert state(api, job) == "available"


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("way", ["add", "replace", "retry"])
def test_a_transaction_that_adds_a_child_and_promotes_it_misses_no_end(
    api: Any, actor: Any, worker: int, end: str, way: str
) -> None:
    parent = running(api, worker)
    depends_on = [{"id": parent, "on": "end"}]
    before = api.add_job("child", job_key="k").id if way == "replace" else child(api, depends_on)
    api.cancel_job(before) if way == "retry" else None
    a = actor()
    a.begin()
    if way == "retry":
        a.retry_job(before)
    job = before if way == "retry" else child(a, depends_on, job_key="k")
    assert state(a, job) == "pending"
    ENDS[end](api, parent)
    assert state(api, before) in ("pending", "available", "cancelled")
    a.commit()
    assert state(api, job) == "available"


@pytest.mark.parametrize("way", ["retry_job", "reschedule_jobs", "add_job"])
def test_a_dependency_that_an_open_end_has_met_stays_met(api: Any, actor: Any, worker: int, way: str) -> None:
    """Although the end could not write that down: it did not see the child."""
    parent = running(api, worker, job_key="k")
    a = actor()
    a.begin()
    job = child(a, [{"id": parent, "on": "end"}])
    ENDS["discarded"](api, parent)
    a.commit()
    assert state(api, job) == "available"
    match way:
        case "retry_job":
            api.retry_job(parent)
        case "reschedule_jobs":
            api.reschedule_jobs([parent], attempts=0)
        case "add_job":
            assert api.add_job("parent", job_key="k").id == parent
    assert api.get_job(parent).state == "available"
    (known,) = api.rows("select state from pyworker.dependency_results(%s)", [job])
    assert known.state == "discarded"


# Each locks a job in a transaction, and then ends it in a savepoint of that transaction.
IN_A_SAVEPOINT = {
    "an action on a list": lambda a, job: a.rows(
        "select * from pyworker.perform_on_listed('force_cancel', 'ada', tasks => '{parent}')"
    ),
    "once, and an end": lambda a, job: (
        a.once(job, a.get_job(job).run, "mail"),
        a.rows("savepoint s"),
        a.finish(job),
        a.rows("release s"),
    ),
}


@pytest.mark.parametrize("way", IN_A_SAVEPOINT)
@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_an_open_end_in_a_savepoint_tells_a_child_that_is_added_meanwhile(
    api: Any, actor: Any, worker: int, way: str, outcome: str
) -> None:
    """Two subtransactions have locked the parent, so its row names a MultiXact, which is no transaction."""
    parent = running(api, worker)
    a = actor()
    a.begin()
    IN_A_SAVEPOINT[way](a, parent)
    job = child(api, [{"id": parent, "on": "end"}])
    assert state(api, job) == "pending"
    getattr(a, outcome)()
    assert state(api, job) == ("available" if outcome == "commit" else "pending")


@pytest.fixture
def waits(api: Any) -> Iterator[None]:
    """A session with the setting test.waits waits for the lock 4711 when it writes a watch."""
    api.conn.execute("""
        create function public.wait() returns trigger language plpgsql as $$
        begin
            if current_setting('test.waits', true) = 'yes' then
                perform pg_advisory_xact_lock_shared(4711);
            end if;
            return new;
        end;
        $$;
        create trigger wait before insert on pyworker.watches for each row execute function public.wait()""")
    yield
    api.conn.execute("drop function public.wait cascade")


@pytest.mark.parametrize("on_unmet", ["hold", "cancel"])
@pytest.mark.parametrize("end", ENDS)
def test_an_end_that_commits_between_two_looks_at_its_child_tells_it(
    api: Any, actor: Any, worker: int, waits: None, end: str, on_unmet: str
) -> None:
    """The end came before the child, and the first look at the child before the end's commit."""
    parent = running(api, worker)
    ending, looking, door = actor(), actor(), actor()
    ending.begin()
    ENDS[end](ending, parent)
    job = child(api, {"jobs": [{"id": parent, "on": "end"}], "on_unmet": on_unmet})
    door.begin()
    door.rows("select pg_advisory_xact_lock(4711)")
    looking.rows("set test.waits = 'yes'")
    looks = looking.later.promote_jobs()
    looking.blocked(looks)
    ending.commit()
    door.commit()
    looks.result()
    assert state(api, job) == "available"
