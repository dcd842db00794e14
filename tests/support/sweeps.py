"""Workers whose heartbeats stop, and the state in which a sweep sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest


def state_of(api: Any, worker: int) -> str:
    (row,) = api.rows("select * from pyworker.workers where id = %s", [worker])
    return "dead" if row.dead_at else "suspect" if row.suspect_since else "locked" if row.locked else "leased"


def gap(api: Any, seconds: float = 11) -> None:
    """As if no session had swept for so long. It goes by the real clock."""
    api.rows(
        "select setval('pyworker.swept_at', (extract(epoch from clock_timestamp()) * 1000)::bigint - %s)",
        [int(seconds * 1000)],
    )


@pytest.fixture
def running(api: Any) -> Callable[..., Any]:
    """A job that this worker runs."""

    def make(worker: int, **named: Any) -> Any:
        job = api.add_job("t", **named)
        claimed = api.claim(worker)
        assert claimed.id == job.id
        return claimed

    return make


@pytest.fixture
def holder(actor: Any, worker: int) -> Any:
    """The worker's control connection, with its lock."""
    a = actor()
    assert a.hold_worker_lock(worker) is True
    return a


@pytest.fixture
def patient(api: Any) -> Iterator[None]:
    """What takes the jobs of a worker waits 200 ms for a locked one, and then leaves it to a sweep: here it
    waits until the test goes on."""
    wait = "alter function pyworker._lock_free_jobs(bigint[]) set lock_timeout = '{}'"
    api.rows(wait.format("1h"))
    yield
    api.rows(wait.format("200ms"))
