"""set_queue with rate_limit and rate_period: in no window start more jobs than that."""

from __future__ import annotations

from typing import Any

from tests.support.queues import add, claim


def test_a_rate_starts_so_many_and_the_next_ones_when_those_have_left_the_window(
    api: Any, worker: int, clock: Any
) -> None:
    api.set_queue("q", None, 3, "10 seconds")
    ids = add(api, 8)
    assert claim(api, worker) == ids[:3]
    assert claim(api, worker) == []
    clock.advance(seconds=9)
    assert claim(api, worker) == []
    clock.advance(seconds=1)
    assert claim(api, worker) == ids[3:6]
    clock.advance(seconds=10)
    assert claim(api, worker) == ids[6:]


def again_in(api: Any, worker: int, most: int = 100) -> float:
    return api.rows("select again_in_s from pyworker.work(%s, null, null, null, null, %s)", [worker, most])[
        -1
    ].again_in_s
