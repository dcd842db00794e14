"""examples/order: a flow with a charge that happens at most once, and an approval by a person."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import Any

import psycopg


def test_an_order_waits_for_its_approval_and_then_is_done(example: Any) -> None:
    order = example("order")
    order.python("-m", "pyworker", "migrate")
    ids = dict(reversed(line.split()) for line in order.python("order.py", "add", "17").splitlines())
    assert list(ids) == ["reserve", "charge", "approve", "ship", "mail", "invoice", "done"]

    order.python("-m", "pyworker", "run", "order", "--once")
    assert order.rows("select * from orders") == [(17, "R17", "reserved")]
    assert order.rows("select what from events") == [("charged for R17",)]
    told = order.python("-m", "pyworker", "explain", ids["approve"])
    assert re.search("signal: waits for the signal 'approved' until", told)

    order.python("-m", "pyworker", "signal", ids["approve"], "approved", '{"by": "ann"}')
    order.python("-m", "pyworker", "run", "order", "--once")
    assert order.rows("select state from orders") == [("done",)]
    assert sorted(order.rows("select what from events")) == [
        ("charged for R17",), ("invoiced with receipt C17",), ("mailed",), ("shipped, approved by ann",),
    ]  # fmt: skip


def test_an_order_that_nobody_approves_is_cancelled_after_three_days(example: Any) -> None:
    order = example("order")
    order.python("-m", "pyworker", "migrate", "--movable-clock")
    ids = dict(reversed(line.split()) for line in order.python("order.py", "add", "17").splitlines())
    order.python("-m", "pyworker", "run", "order", "--once")
    order.rows("select pyworker.advance_clock('73 hours')")
    order.python("-m", "pyworker", "run", "order", "--once")
    ended = "select state, last_error from pyworker.history where id = " + ids["approve"]
    assert order.rows(ended) == [("cancelled", "it was not approved in three days")]
    assert order.rows("select state from pyworker.jobs where id = " + ids["done"]) == [("pending",)]


def test_an_order_whose_worker_dies_as_it_charges_is_not_charged_again_until_a_person_decides(
    example: Any,
) -> None:
    order = example("order")
    order.python("-m", "pyworker", "migrate")
    ids = dict(reversed(line.split()) for line in order.python("order.py", "add", "17").splitlines())
    state = f"select state, reason from pyworker.jobs where id = {ids['charge']}"
    with psycopg.connect(order.dsn, autocommit=True) as watch, psycopg.connect(order.dsn) as other:

        def until(sql: str) -> None:
            while watch.execute(sql).fetchone() == (False,):
                watch.execute("select pg_sleep(0.02)")

        other.execute("lock table events in access exclusive mode")  # the charge cannot be written
        worker = subprocess.Popen(
            [sys.executable, "-m", "pyworker", "run", "order"],
            cwd=order.directory, env=order.environment, start_new_session=True,
        )  # fmt: skip
        charging = (
            "from pg_locks l join pg_database d on d.oid = l.database "
            "where d.datname = current_database() and l.relation = 'events'::regclass and not l.granted"
        )
        until(f"select exists (select {charging})")
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
        watch.execute(f"select pg_terminate_backend(l.pid, 10000) {charging}")
        other.rollback()
        until("select sum(pyworker.sweep_workers()) > 0")
    assert order.rows(state) == [("discarded", "lost")]
    assert order.rows("select what from events") == []
    assert order.rows("select state from orders") == [("reserved",)]
    waiting = [ids[name] for name in ("approve", "ship", "mail", "invoice", "done")]
    pending = f"select distinct state from pyworker.jobs where id in ({', '.join(waiting)})"
    assert order.rows(pending) == [("pending",)]
    told = order.python("-m", "pyworker", "explain", ids["approve"])
    assert f"waits for the success of job {ids['charge']}, charge (discarded)" in told

    order.python("-m", "pyworker", "retry", ids["charge"])
    order.python("-m", "pyworker", "signal", ids["approve"], "approved", '{"by": "ann"}')
    order.python("-m", "pyworker", "run", "order", "--once")
    assert order.rows("select state from orders") == [("done",)]
    assert order.rows("select count(*) from events where what like 'charged%'") == [(1,)]
