"""queue_stats: what waits, runs and is paused, per queue."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.queues import add, claim


def test_queue_stats_show_limits_pauses_and_families(api: Any, worker: int) -> None:
    api.set_queue("c:*", 2)
    api.set_queue("free", None)
    api.set_queue("empty", 9)
    api.pause_queue("c:1")
    for name, count in {"c:1": 2, "c:2": 3, "free": 4, "plain": 2, "default": 1}.items():
        add(api, count, name)
    api.claim_jobs(worker, 2, None, ["c:2"])
    rows = api.rows(
        "select queue_name, concurrency, paused, available, running, pending from pyworker.queue_stats"
    )
    assert sorted(map(tuple, rows)) == [
        ("c:*", 2, False, 0, 0, 0),
        ("c:1", 2, True, 2, 0, 0),
        ("c:2", 2, False, 1, 2, 0),
        ("default", None, False, 1, 0, 0),
        ("empty", 9, False, 0, 0, 0),
        ("free", None, False, 4, 0, 0),
        ("plain", 1, False, 2, 0, 0),
    ]


def test_jobs_without_a_queue_belong_to_no_family(api: Any, worker: int) -> None:
    api.set_queue("*", 1)
    api.set_queue("d*", 1)
    ids = add(api, 3, "default")
    assert claim(api, worker) == ids
    (row,) = api.rows("select concurrency from pyworker.queue_stats where queue_name = 'default'")
    assert row.concurrency is None


def test_queue_stats_tell_what_waits_and_since_when(api: Any, worker: int, job_in: Any) -> None:
    oldest = api.at("-1 day")
    add(api, 2)
    add(api, 1, run_at=str(oldest))
    add(api, 1, run_at=str(api.at("1 hour")))
    first, *_ = api.claim_jobs(worker, 1)
    api.fail(first, delay="1 hour")
    (second,) = api.claim_jobs(worker, 1)
    api.fail(second, discard=True)
    (row,) = api.rows("select * from pyworker.queue_stats")
    assert (row.scheduled, row.retryable, row.discarded, row.pending + row.available) == (1, 1, 1, 1)
    assert row.oldest_waiting > oldest


@pytest.mark.parametrize("statistics", ["of empty tables", "of full tables"])
def test_queue_stats_stay_quick_with_thousands_of_queues_that_were_set(
    api: Any, actor: Any, statistics: str
) -> None:
    a = actor()
    a.rows("set statement_timeout = '10s'")
    api.rows("truncate pyworker.live_jobs, pyworker.queues; analyze pyworker.live_jobs, pyworker.queues")
    api.rows(
        "insert into pyworker.queues (queue_name, concurrency)"
        " select 'q' || i, 2 from generate_series(1, 20000) i"
        " union all select 'q' || i || '*', 2 from generate_series(1, 20) i"
    )
    api.rows(
        "select from pyworker.add_jobs((select jsonb_agg(jsonb_build_object('identifier', 't', "
        "'queue_name', 'q' || i))"
        " from generate_series(15000, 25000) i))"
    )
    if statistics == "of full tables":
        api.rows("analyze pyworker.live_jobs, pyworker.queues")
    assert a.value("select count(*) from pyworker.queue_stats where concurrency = 2") == 25_020


def test_queue_stats_run_nothing_for_each_queue(api: Any, watched: Any) -> None:
    for n in range(30):
        api.set_queue(f"plain{n}", 2)
        api.set_queue(f"with a rate{n}", rate_limit=5, rate_period="1 minute")
    plans = watched(lambda a: a.rows("select * from pyworker.queue_stats"))
    assert len(watched.result) == 60
    assert len(plans) < 10
