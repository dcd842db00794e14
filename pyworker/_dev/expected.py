"""What the assertions of pyworker.testing compare, and how they show it."""

from __future__ import annotations

from typing import Any, cast

from .._db.rows import JobRow


def fits(value: Any, wanted: Any) -> bool:
    if callable(wanted):
        return bool(wanted(value))
    if isinstance(wanted, dict) and isinstance(value, dict):
        return all(
            name in value and fits(value[name], part) for name, part in cast("dict[str, Any]", wanted).items()
        )
    return value == wanted


def in_words(fields: dict[str, Any]) -> str:
    return " with " + ", ".join(f"{name}={value!r}" for name, value in fields.items()) if fields else ""


def listed(jobs: list[JobRow]) -> str:
    return (
        "".join(
            f"\n  {job.id} {job.task_identifier} {job.payload!r} {job.state} run_at={job.run_at}"
            + "".join(
                f" {name}={getattr(job, name)!r}"
                for name in ("queue_name", "key", "sequence_key")
                if getattr(job, name)
            )
            for job in jobs
        )
        or " none"
    )
