"""The Python runner speaks the protocol of docs/protocol.md, as every other runner: what its connections
send, read on the wire while jobs end in every way."""

from __future__ import annotations

import re
from typing import Any

from psycopg.types.json import Jsonb

from tests.support import ROOT
from tests.support.proxy import Proxy

# What else the runner calls, and what for.
BEYOND = {
    "declare_schedules": "it owns the schedules of its tasks",
    "update_worker": "dashboards show its memory",
    "get_job": "it logs which of the jobs that failed are discarded now",
    "report_crash": "its parent knows which jobs ran in the process that has died",
    "fail_jobs": "its parent has ended that process, as a handler did not stop in time",
}
JOBS: list[tuple[str, Any, dict[str, Any]]] = [
    *((f"act{kind}", answer, {}) for kind in ("", "_async") for answer in (
        {"value": 1}, {"raise": ["discard", "useless"]}, {"raise": ["cancel", "unwanted"]},
        {"raise": ["snooze", 3600]}, {"raise": ["error", "boom"]})),
    ("write", {"then": ["note", None]}, {}),
    ("write_async", {"raise": ["error", "boom"]}, {}),
    ("deliver", {}, {}),
    ("deliver_async", {"not_started": 1}, {}),
    ("deliver", {"fail": True}, {}),
    ("mail_once", {}, {}),
    ("die", {}, {}),
    ("too_long", {}, {}),
    ("too_long_async", {}, {}),
    ("log_a_line", {}, {}),
    ("five_steps", {}, {}),
    ("batch", [1, 2], {}),
    ("note", None, {"sequence_policy": {"key": "s"}}),
    ("note", None, {"queue_name": "serial"}),
]  # fmt: skip


def test_a_worker_calls_the_functions_of_the_protocol_and_reads_no_table(queue: Any) -> None:
    page = set(re.findall(r"\w+", (ROOT / "docs" / "protocol.md").read_text("utf-8")))
    network, said = Proxy(queue.dsn), set[str]()
    network.fault = lambda message: said.add(message.about) is None
    worker = queue.start("--dsn", network.dsn, modules="handlers stepped").until_ready()
    specs = [{"identifier": name, "payload": payload, **more} for name, payload, more in JOBS]
    queue.rows("select count(*) from pyworker.add_jobs(%s)", Jsonb(specs))
    busy = "select count(*) from pyworker.jobs where state in ('available', 'running', 'pending')"
    queue.until(f"select ({busy}) = 0")
    (running,) = queue.rows("select id from pyworker.add_job('look_around', '{}')")
    queue.until("select state = 'running' from pyworker.jobs where id = %s", running.id)
    queue.rows("select from pyworker.cancel_job(%s)", running.id)
    queue.until("select state = 'cancelled' from pyworker.history where id = %s", running.id)
    assert worker.stop() == 0
    network.close()
    ours = r"""(?<!')\bpyworker"?\.(\w+)(\(?)"""  # but no setting, as in set_config('pyworker.schedules', …)
    named = {found for text in said for found in re.findall(ours, text)}
    called = {name for name, _ in named}
    assert {name for name, bracket in named if not bracket} == set()
    assert {"work", "beat", "start_job", "finish_job", "once", "save_step", "close_worker"} < called
    assert called - page == BEYOND.keys()
