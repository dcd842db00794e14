"""Workers that wait for a notification."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def heard(api: Any, actor: Any) -> Callable[[], list[str]]:
    """heard() gives what was notified since the last call: all that was committed before this
    one's own word."""
    ear = actor()
    ear.rows("listen pyworker")

    def heard() -> list[str]:
        api.rows("select pg_notify('pyworker', 'end of hearing')")
        words = []
        for notification in ear.conn.notifies(timeout=10):
            if notification.payload == "end of hearing":
                return words
            words.append(notification.payload)
        raise AssertionError("not even our own word came")

    heard()
    return heard


def wait(api: Any, worker: int) -> None:
    """A claim that comes back short: this worker will wait for a notification."""
    assert len(api.claim_jobs(worker, 1000)) < 1000


def look(api: Any, *filters: Any) -> float:
    """Seconds after which a worker that waits looks again, notified or not."""
    # Rows of other tests may have made a walk dear: not what is asked for here.
    api.rows(
        "select set_config('pyworker.walk_' || name, '', false) "
        "from unnest('{claim,due,requests}'::text[]) name"
    )
    due = api.seconds_until_due(*filters)
    return 2.0 if due is None else due
