"""However many sessions claim, roll back or are killed, each queue of a fair family has its turn."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.claimers import work_off
from tests.support.queues import add
from tests.support.rates import begun as begun
from tests.support.sessions import LEVELS


@pytest.mark.parametrize("limit", [None, 2])
@pytest.mark.parametrize("batch", [1, 5])
def test_a_hundred_queues_with_one_job_each_start_beside_a_large_one_within_one_round(
    api: Any, dsn: str, begun: Any, limit: int | None, batch: int
) -> None:
    api.set_queue("t:*", limit, fair=True)
    add(api, 200, "t:large")
    for n in range(100):
        add(api, 1, f"t:{n}")
    work_off(api, dsn, batch, LEVELS[:1] * 4)
    order = [row.queue for row in api.rows("select queue from public.begun order by at")]
    first = {queue: place for place, queue in reversed(list(enumerate(order, 1)))}
    assert len(first) == 101
    assert max(first.values()) <= 150  # without turns 300; a session that waits for a CPU delays its five
