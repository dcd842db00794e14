"""What a process claims of which queues, by the bounds that `--queue NAME=N` gives it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from .config import OTHERS, RunConfig


class Share(NamedTuple):
    """A part of what a turn claims: `most` jobs, of `queues` (None: all) but not of `without`."""

    most: int
    queues: list[str] | None
    without: list[str] | None = None


def shares(config: RunConfig, room: int, held: Iterable[str | None]) -> list[Share]:
    """Divide `room` among the queues. `held`: for each job that the process has, its queue."""
    if not config.bounds:
        return [Share(room, config.queue_filter)]
    named = [name for name in config.queues if name != OTHERS]
    counts = Counter(name if name in named else OTHERS for name in (queue or "default" for queue in held))
    found: list[Share] = []
    free = [name for name in named if name not in config.bounds]
    parts: list[tuple[int | None, Share]] = [
        (config.bounds[name] - counts[name], Share(0, [name])) for name in named if name in config.bounds
    ]
    if free:
        parts.append((None, Share(0, free)))
    if OTHERS in config.queues:
        bound = config.bounds.get(OTHERS)
        parts.append((bound and bound - counts[OTHERS], Share(0, None, named)))
    for left, share in parts:
        most = room if left is None else min(room, left)
        if most > 0:
            found.append(share._replace(most=most))
    return found
