"""The gate: a session that holds it, one that dies or idles with it, and a lane whose look fails."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.queues import add, answered, claim, finish_all
from tests.support.sequences import add as add_sequenced

# A look at a queue whose name begins so fails.
FAILS = """
    create function public.fails() returns trigger language plpgsql as $$
    begin
        if new.queue_name like 'bad%' and new.ready_at is not null then
            raise exception 'this fails';
        end if;
        return new;
    end $$;
    create trigger fails before update on pyworker.live_jobs for each row execute function public.fails();
"""


def hold_the_gate(actor: Any, worker: int) -> Any:
    """A session that lets a job in, claims it, and stays open."""
    a = actor()
    a.begin()
    assert claim(a, worker)
    return a


@pytest.mark.parametrize("end", ["commit", "rollback", "kill"])
def test_while_a_session_holds_the_gate_only_idle_lanes_rates_and_settings_wait(
    api: Any, actor: Any, worker: int, end: str
) -> None:
    busy = add(api, 3, "busy")
    in_turn = [job.id for job in add_sequenced(api, 3)]
    assert sorted(claim(api, worker)) == [busy[0], in_turn[0]]
    add(api, 1, "held")
    a = hold_the_gate(actor, api.register_worker())
    api.conn.execute("set lock_timeout = '1ms'")
    idle = add(api, 1, "idle")
    plain = api.add_job("t").id
    api.finish(busy[0], in_turn[0])
    assert claim(api, worker) == [busy[1], in_turn[1], plain]  # one after the other hands its place on
    api.finish(busy[1], in_turn[1], plain)
    assert claim(api, worker) == [busy[2], in_turn[2]]
    api.pause_queue("other")  # which waits for nobody
    getattr(a, end)()
    answered(api)
    assert idle[0] in claim(api, worker)


def test_a_session_that_idles_with_the_gate_is_ended_by_the_server(api: Any, actor: Any, worker: int) -> None:
    (first,) = add(api, 1, "first")
    a = hold_the_gate(actor, worker)
    (second,) = add(api, 1, "second")
    assert claim(api, worker) == []
    there = "select pg_sleep(0.05) from pg_stat_activity where pid = %s"
    while api.rows(there, [a.conn.info.backend_pid]):
        pass
    a.conn.close()
    assert claim(api, worker) == [first, second]


def test_a_lane_whose_look_fails_holds_up_no_other_however_many_wait(own: Any) -> None:
    own.conn.execute(FAILS)
    worker = own.register_worker()
    for n in range(30):
        add(own, 1, f"bad{n}")
    own.add_jobs([{"identifier": "t", "queue_name": f"q{n}"} for n in range(5000)])
    for _ in range(10):
        own.promote_jobs()
    assert len(claim(own, worker, 6000)) == 5000


@pytest.mark.parametrize("lane", ["queue", "sequence"])
def test_what_waits_behind_a_failing_look_is_looked_at_again(own: Any, lane: str) -> None:
    own.conn.execute(FAILS)
    worker = own.register_worker()
    policy = {"sequence_policy": {"key": "s"}} if lane == "sequence" else {}
    ids = add(own, 2, "bad", **policy)
    good = add(own, 1, "good")
    assert claim(own, worker) == good
    own.conn.execute("drop trigger fails on pyworker.live_jobs")
    own.rows("select set_config('pyworker.clock_offset', '6 seconds', false)")
    assert finish_all(own, worker) == sorted(ids + good)


def test_a_database_that_came_from_a_server_a_little_ahead_forgets_no_request(own: Any) -> None:
    """By a dump: the other server had given out a few more transaction ids."""
    worker = own.register_worker()
    own.rows("update pyworker.gate set floor = (pg_current_xact_id()::text::bigint + 3000)::text::xid8")
    ids = add(own, 1)
    assert claim(own, worker) == ids
