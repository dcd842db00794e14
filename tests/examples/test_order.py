"""examples/order: a flow with a charge that happens at most once, and an approval by a person."""

from __future__ import annotations

import re
from typing import Any


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
