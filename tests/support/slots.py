"""Jobs of a queue with a limit, by the names of their tasks."""

from __future__ import annotations

from typing import Any


def add(api: Any, *identifiers: str, queue: str = "q", **named: Any) -> list[int]:
    return [api.add_job(identifier, queue_name=queue, **named).id for identifier in identifiers or ("known",)]
