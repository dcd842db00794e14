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
    """Claims until this worker will wait for a notification: one that did anything comes again in 5 ms."""
    for _ in range(1000):
        if not api.claim_jobs(worker, 1000) and look(api) > 0.005:
            return
    raise AssertionError("this worker never waits")


def look(api: Any, *filters: Any) -> float:
    """Seconds after which a worker that waits looks again, notified or not."""
    # Rows of other tests may have made a walk dear: not what is asked for here.
    api.rows(
        "select set_config('pyworker.floor_' || name, '', false) from unnest('{ready,due}'::text[]) name"
    )
    due = api.seconds_until_due(*filters)
    return 2.0 if due is None else due


def calm(api: Any, *filters: Any) -> None:
    """Nothing brings a worker that waits before its time.

    Other tests use the server, too: while a transaction of theirs is open, a worker looks more often.
    """
    for _ in range(300):
        if look(api, *filters) == 2:
            return
        api.rows("select pg_sleep(0.1)")
    raise AssertionError(f"a worker looks again after {look(api, *filters)} s")
