"""The starts of a queue, and the fullest window."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any


def starts(api: Any, queue: str = "q") -> list[datetime]:
    """The times of all starts, as the views show them."""
    sql = "select locked_at from pyworker.{} where queue_name = %s and locked_at is not null"
    both = f"{sql.format('jobs')} union all {sql.format('history')} order by 1"
    return [row.locked_at for row in api.rows(both, [queue, queue])]


def worst(times: list[datetime], period: timedelta) -> int:
    """The most starts in any window [t, t + period)."""
    return max(sum(first <= t < first + period for t in times) for first in times)
