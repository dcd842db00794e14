"""What a contender's program reads and writes: a JSON array per line, [verb, …arguments], and for each a line
{"ok": …} or {"error": …} when it is done."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import os
import random
import sys
import time
import traceback
from typing import Any

DSN = os.environ["DATABASE_URL"]
TRAIL = os.open(os.environ["BENCH_TRAIL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
_count = itertools.count(1)  # threads share it


def now() -> float:
    """Seconds on a clock that all processes of this machine share."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


# What every contender's handlers do: count, and record every 1,000th job; or record how long it took until
# the handler started.
def noop() -> None:
    if next(_count) % 1000 == 0:
        os.write(TRAIL, b"%f 1000\n" % now())


def leave(value: float) -> None:
    os.write(TRAIL, b"%f\n" % value)


def stamp(payload: dict[str, Any]) -> None:
    leave(now() - payload["t"])


def payload(n: int) -> dict[str, Any]:
    return {"n": n, "to": "ada@example.org"}


def gaps(n: int, gap_ms: float) -> Any:
    """n times: wait a random time around gap_ms, then yield the time."""
    for _ in range(n):
        time.sleep(gap_ms / 1000 * random.uniform(0.5, 1.5))
        yield {"t": now()}


async def latencies(n: int, gap_ms: float) -> Any:
    """The same, without blocking the loop."""
    for _ in range(n):
        await asyncio.sleep(gap_ms / 1000 * random.uniform(0.5, 1.5))
        yield {"t": now()}


async def calls(n: int, loops: int, call: Any) -> None:
    """n calls by so many loops at once."""
    numbers = iter(range(n))

    async def loop(lane: int) -> None:
        for i in numbers:
            await call(i, lane)

    await asyncio.gather(*(loop(lane) for lane in range(loops)))


def chunks(n: int) -> Any:
    return (range(start, min(start + 1000, n)) for start in range(0, n, 1000))


def serve(verbs: dict[str, Any]) -> None:
    asyncio.run(_serve(verbs))


async def _serve(verbs: dict[str, Any]) -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not an answer

    def say(value: Any) -> None:
        out.write(json.dumps(value) + "\n")
        out.flush()

    say({"ok": "ready"})
    while line := await asyncio.to_thread(sys.stdin.readline):
        verb, *arguments = json.loads(line)
        try:
            result = verbs[verb](*arguments)
            say({"ok": await result if inspect.isawaitable(result) else result})
        except Exception:
            say({"error": traceback.format_exc()})
    os._exit(0)
