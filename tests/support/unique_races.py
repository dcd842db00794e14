"""Unique adds in several sessions."""

from __future__ import annotations

from typing import Any

REJECT, IGNORE, REPLACE = ({"keys": ["args"], "on_conflict": c} for c in ("reject", "ignore", "replace"))

OPEN = "('scheduled', 'pending', 'available', 'running', 'retryable')"


def spec(policy: Any, n: int = 1) -> dict[str, Any]:
    return {"identifier": "t", "payload": {"n": n}, "unique_policy": policy}
