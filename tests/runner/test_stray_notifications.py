"""Every role of the database may NOTIFY: that breaks no worker."""

from __future__ import annotations

from typing import Any

import psycopg


def test_notifications_of_others_disturb_no_worker(queue: Any) -> None:
    """Each is a hint. The role has no right in the schema; its payloads are ours, unknown or large."""
    queue.rows("drop role if exists stray; create role stray")
    worker = queue.start().until_ready()
    with psycopg.connect(queue.dsn, autocommit=True) as other:
        other.execute("set session authorization stray")
        for payload in (
            "",
            "migrate",
            "cancel",
            "x" * 7999,
            "\x1b]0;owned\x07",
            "9" * 400,
            "{}",
            "1,2,3",
            "é\u202e",
        ):
            for channel in ("pyworker", "pyworker_ended", "pyworker_discarded"):
                for _ in range(20):
                    other.execute("select pg_notify(%s, %s)", [channel, payload])
    job = queue.add("act", {})
    queue.until_state("completed", job)
    assert worker.stop() == 0
    assert "Traceback" not in worker.log
    assert "owned" not in worker.log
    queue.rows("drop role stray")
