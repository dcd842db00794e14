"""open_worker, close_worker, snooze_jobs and once for a job: the calls beside work."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.support.turns import claimed, word, work


def test_open_worker_says_how_to_go_on(api: Any) -> None:
    opened = api.open_worker({"host": "h"})
    assert opened == {
        "worker": opened["worker"],
        "channel": "pyworker",
        "ttl_s": 20,
        "beat_s": 1,
        "stop_after_s": 15,
    }
    assert api.value("select info from pyworker.live_workers where id = %s", [opened["worker"]]) == {
        "host": "h"
    }
    api.configure(worker_ttl="1 minute")
    assert api.open_worker()["stop_after_s"] == 45


@pytest.mark.parametrize("protocol", [0, 2, None])
def test_open_worker_refuses_a_protocol_that_it_does_not_speak(api: Any, protocol: int | None) -> None:
    with api.refusal("PW006", f"speaks protocol 1, got {'NULL' if protocol is None else protocol}"):
        api.open_worker({}, protocol)


@pytest.mark.parametrize("info", ["[]", "7", "null", None])
def test_open_worker_refuses_info_that_is_no_object(api: Any, info: str | None) -> None:
    with api.refusal("PW001", "open_worker: info must be a JSON object"):
        api.open_worker(info)


def test_close_worker_hands_back_and_may_be_called_twice(api: Any, worker: int) -> None:
    (job,) = claimed(api, worker, "t")
    api.close_worker(worker)
    api.close_worker(worker)
    api.close_worker(4711)
    assert (api.get_job(job.id).state, api.get_job(job.id).attempts) == ("available", 0)


def test_snooze_jobs_postpones_each_job_by_its_delay(api: Any, worker: int) -> None:
    a, b = claimed(api, worker, "a", "b")
    accepted = api.snooze_jobs([b.id, a.id, 77], [b.run, a.run, 1], ["2 hours", "1 hour", "1 s"])
    assert sorted(accepted) == sorted([a.id, b.id])
    ahead = [(api.get_job(job.id).run_at - api.at()).total_seconds() for job in (a, b)]
    assert ahead == pytest.approx([3600, 7200], abs=60)


@pytest.mark.parametrize("delay", ["-1 s", "1001 years", None])
def test_snooze_jobs_refuses_a_delay_that_is_none(api: Any, worker: int, delay: str | None) -> None:
    a, b = claimed(api, worker, "a", "b")
    with api.refusal("PW001", "snooze_jobs: each delay must be from 0 to 1000 years, got"):
        api.snooze_jobs([a.id, b.id], [a.run, b.run], ["1 s", delay])
    assert api.get_job(a.id).state == "running"


def test_snooze_jobs_refuses_arrays_of_unequal_length(api: Any) -> None:
    with api.refusal("PW001", "must be of one length, got 1, 1 and 2"):
        api.snooze_jobs([1], [1], ["1 s", "1 s"])


def test_once_is_true_once_for_each_job_and_name_over_all_runs(api: Any, worker: int) -> None:
    a, b = claimed(api, worker, "a", "b")
    assert api.once(a.id, a.run, "mail") is True
    assert api.once(a.id, a.run, "mail") is False
    assert api.once(a.id, a.run, "bill") is True
    assert api.once(b.id, b.run, "mail") is True
    work(api, worker, (), [word(a, "release")], 0)
    (again,) = work(api, worker).jobs
    assert api.once(again.id, again.run, "mail") is False
    with api.refusal("PW002", f"once: job {a.id} is not held by run {a.run} any more"):
        api.once(a.id, a.run, "other")


@pytest.mark.parametrize("name", ["", None, "x" * 401])
def test_once_of_a_job_refuses_a_name_that_is_none(api: Any, worker: int, name: str | None) -> None:
    (job,) = claimed(api, worker, "t")
    with api.refusal("PW001", "once: name must be 1 to 400 characters long"):
        api.once(job.id, job.run, name)


def test_once_keeps_its_claim_until_its_transaction_ends(api: Any, actor: Any, worker: int) -> None:
    (job,) = claimed(api, worker, "t")
    handler, other = actor(), actor()
    handler.begin()
    assert handler.once(job.id, job.run, "mail") is True
    waiting = other.later.cancel_job(job.id, True)
    other.blocked(waiting)
    handler.commit()
    waiting.result(20)
    with pytest.raises(psycopg.Error, match="is not held by run"):
        api.once(job.id, job.run, "bill")
