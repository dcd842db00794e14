"""pause_queue and resume_queue: no job of a paused queue starts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.support.queues import add, answered, claim, states


@pytest.mark.parametrize("limit", [1, 3, None])
def test_no_job_of_a_paused_queue_starts_and_adding_goes_on(api: Any, worker: int, limit: int | None) -> None:
    api.set_queue("q", limit)
    ids = add(api, 5)
    api.pause_queue("q")
    ids += add(api, 5)
    assert claim(api, worker) == []
    assert states(api) == {"available": 10}
    api.resume_queue("q")
    assert claim(api, worker) == ids[:limit]


@pytest.mark.parametrize("name", ["q", "q*"])
@pytest.mark.parametrize("limit", [1, 3, None])
def test_a_pause_holds_when_each_open_transaction_has_seen_it(
    api: Any, worker: int, limit: int | None, name: str
) -> None:
    """A job that was let in would start from then on."""
    api.set_queue("q", limit)
    add(api, 2)
    api.pause_queue(name)
    answered(api)
    add(api, 2)
    answered(api)
    assert claim(api, worker) == []


@pytest.mark.parametrize("limit", [1, 3, None])
def test_a_pause_holds_for_jobs_that_were_let_in_too(api: Any, worker: int, limit: int | None) -> None:
    api.set_queue("q", limit)
    ids = add(api, 5)
    api.promote_jobs()
    api.pause_queue("q")
    assert claim(api, worker) == []
    api.resume_queue("q")
    assert claim(api, worker) == ids[:limit]


@pytest.mark.parametrize("end", ["finish", "fail", "release", "snooze"])
def test_running_jobs_of_a_paused_queue_run_on_and_nothing_follows_them(
    api: Any, worker: int, clock: Any, end: str
) -> None:
    add(api, 3)
    (job,) = api.claim_jobs(worker, 10)
    api.pause_queue("q")
    if end == "finish":
        assert api.finish_jobs([job.id], [job.run]) == [job.id]
    elif end == "fail":
        api.fail(job, delay=0)
    elif end == "release":
        api.release_jobs([job.id], [job.run])
    else:
        api.snooze_job(job.id, job.run, "0")
    clock.advance(seconds=1)
    assert claim(api, worker) == []
    assert states(api) == {"available": 2 if end == "finish" else 3}


@pytest.mark.parametrize("limit", [1500, None])
def test_a_pause_holds_with_1500_jobs_that_wait_in_the_claim_index_or_run(
    api: Any, worker: int, limit: int | None
) -> None:
    api.set_queue("q", 1500)
    ids = add(api, 3000)
    claimed = claim(api, worker, 100)
    while api.promote_jobs():
        pass
    api.set_queue("q", limit)
    api.pause_queue("q")
    assert states(api) == {"running": 100, "available": 2900}
    assert claim(api, worker, 10) == []
    api.finish(*claimed)
    assert claim(api, worker, 10) == []
    api.resume_queue("q")
    claimed = []
    while more := claim(api, worker, 1000):
        claimed += more
    assert sorted(claimed) == ids[100:][:limit]


def test_a_paused_queue_without_a_limit_stays_paused_while_1500_run(api: Any, worker: int) -> None:
    api.rows("update pyworker.workers set expires_at = 'infinity'")
    api.set_queue("q", None)
    ids = add(api, 2000)
    claimed = [*claim(api, worker, 1000), *claim(api, worker, 500)]
    assert claimed == ids[:1500]
    api.pause_queue("q")
    assert claim(api, worker) == []
    for i in range(0, 1500, 500):
        api.finish(*claimed[i : i + 500])
        assert claim(api, worker) == []
    api.resume_queue("q")
    assert claim(api, worker, 1000) == ids[1500:]


def test_a_queue_can_be_paused_before_it_has_a_job_or_a_setting(api: Any, worker: int) -> None:
    api.pause_queue("q")
    ids = add(api, 3)
    assert claim(api, worker) == []
    api.resume_queue("q")
    assert claim(api, worker) == ids[:1]
    assert api.rows("select from pyworker.queues") == []


def test_a_pause_of_a_paused_queue_changes_nothing(api: Any, worker: int) -> None:
    api.set_queue("q", 2)
    ids = add(api, 3)
    api.pause_queue("q")
    api.pause_queue("q")
    assert claim(api, worker) == []
    api.resume_queue("q")
    assert claim(api, worker) == ids[:2]


def test_set_queue_changes_the_limit_of_a_paused_queue_and_leaves_it_paused(api: Any, worker: int) -> None:
    ids = add(api, 5)
    api.pause_queue("q")
    api.set_queue("q", 3)
    assert claim(api, worker) == []
    api.resume_queue("q")
    assert claim(api, worker) == ids[:3]


def test_one_queue_of_a_family_is_paused_alone_and_keeps_to_its_family(api: Any, worker: int) -> None:
    api.set_queue("c:*", 2)
    one, two = add(api, 5, "c:1"), add(api, 5, "c:2")
    api.pause_queue("c:1")
    assert claim(api, worker) == two[:2]
    api.set_queue("c:*", 3)
    assert claim(api, worker) == two[2:3]
    api.resume_queue("c:1")
    assert claim(api, worker) == one[:3]
    api.set_queue("c:*", 4)  # being paused once was no setting of its own
    assert claim(api, worker) == [one[3], two[3]]


def test_a_job_that_moves_into_a_paused_queue_waits_and_one_that_moves_out_runs(
    api: Any, worker: int
) -> None:
    api.pause_queue("q")
    api.add_job("t", job_key="in")
    moved = api.add_job("t", job_key="in", queue_name="q")
    api.add_job("t", job_key="out", queue_name="q")
    out = api.add_job("t", job_key="out")
    assert claim(api, worker) == [out.id]
    assert api.get_job(moved.id).state == "available"


def test_what_falls_due_in_a_paused_queue_waits_there(api: Any, worker: int, clock: Any) -> None:
    job = api.add_job("t", queue_name="q", run_at=api.at("1 hour"))
    api.pause_queue("q")
    clock.advance(hours=2)
    api.heartbeat(worker)
    assert claim(api, worker) == []
    assert api.get_job(job.id).state == "available"
    api.resume_queue("q")
    assert claim(api, worker) == [job.id]


# resume_queue -------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_after_a_resume_no_more_start_than_the_limit(api: Any, worker: int, limit: int) -> None:
    api.set_queue("q", limit)
    ids = add(api, 8)
    running = claim(api, worker, 1)
    api.pause_queue("q")
    api.resume_queue("q")
    assert running + claim(api, worker) == ids[:limit]


def test_the_resume_of_a_queue_that_is_unknown_or_not_paused_changes_nothing(api: Any, worker: int) -> None:
    api.resume_queue("unknown")
    api.set_queue("q", 2)
    ids = add(api, 3)
    before = api.rows("select * from pyworker.queue_stats")
    api.resume_queue("q")
    assert api.rows("select * from pyworker.queue_stats") == before
    assert claim(api, worker) == ids[:2]


@pytest.mark.parametrize("limit", ["family", 2, None])
def test_several_resumes_at_once_are_as_one(api: Any, worker: int, dsn: str, limit: Any) -> None:
    api.set_queue(*(("q*", 2) if limit == "family" else ("q", limit)))
    ids = add(api, 6)
    api.pause_queue("q")

    def resume(_: int) -> list[int]:
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute("select pyworker.resume_queue('q')")
            rows = conn.execute("select id from pyworker.claim_jobs(%s, 10)", [worker]).fetchall()
            return [row[0] for row in rows]

    with ThreadPoolExecutor(4) as threads:
        claimed = [job for jobs in threads.map(resume, range(4)) for job in jobs]
    claimed += claim(api, worker)
    assert sorted(claimed) == ids[: 2 if limit else None]
