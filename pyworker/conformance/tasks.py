"""The conformance handlers for `pyworker run pyworker.conformance.tasks`: see docs/conformance.md."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import timedelta
from typing import Any

from ..job import Cancel, Discard, NotStarted, Snooze
from ..tasks import task

ENDS = {"discard": Discard, "cancel": Cancel, "not_started": NotStarted, "fail": ValueError}


def _note(name: str, word: str) -> None:
    with open(os.environ["PYWORKER_CONFORMANCE_LOG"], "a") as log:
        log.write(f"{name} {word}\n")


@task(result=True)
async def conformance(payload: Any) -> Any:
    _note(payload["name"], "begin")
    end = time.monotonic() + payload.get("ms", 0) / 1000
    while time.monotonic() < end:
        await asyncio.sleep(0.05)
        _note(payload["name"], "tick")
    _note(payload["name"], "end")
    if payload.get("do") == "snooze":
        raise Snooze(payload["delay_s"])
    if "do" in payload:
        raise ENDS[payload["do"]](payload["error"])
    return payload.get("result")


@task(result=True, timeout=timedelta(seconds=2))
async def conformance_timeout(payload: Any) -> Any:
    return await conformance.function(payload)
