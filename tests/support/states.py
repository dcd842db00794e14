"""The states of a job, as a policy lists them."""

from __future__ import annotations

REQUIRED = ["scheduled", "pending", "available", "running"]  # of a policy in River's spelling
LIVE = [*REQUIRED, "retryable"]
HISTORY = ["completed", "cancelled"]
ENDED = [*HISTORY, "discarded"]
ALL = [*LIVE, "discarded", *HISTORY]
