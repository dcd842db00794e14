"""Jobs as the database returns them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class JobRow:
    """A job as the database returns it.

    It is the result of add_job and the other job functions. Field names are those of the SQL type
    `job`.
    """

    id: int
    task_identifier: str
    queue_name: str | None
    payload: Any
    meta: dict[str, Any] | None
    priority: int
    run_at: datetime
    attempts: int
    max_attempts: int
    last_error: str | None
    created_at: datetime
    updated_at: datetime
    key: str | None
    revision: int
    flags: dict[str, bool] | None
    locked_at: datetime | None
    locked_by: str | None
    state: str
    delivery: str
    unique_key: str | None
    sequence_key: str | None
    deduplicated: bool
    sequence_halted_by: int | None
    run: int
    reason: str | None
    finished_at: datetime | None
    result: Any
    progress: float | None = None
    progress_message: str | None = None


_JSON_FIELDS = ("payload", "meta", "flags", "result")
_NAMES = [field.name for field in dataclasses.fields(JobRow)]
_TIMES = [field.name for field in dataclasses.fields(JobRow) if "datetime" in str(field.type)]
_SENT = {  # JSON and times as text that no session setting changes
    **{name: "j.{0}::text" for name in _JSON_FIELDS},  # decoded per job: a bad one affects no other
    **{name: "to_json(j.{0})::text as {0}" for name in _TIMES},
}
JOB_COLUMNS = ", ".join(_SENT.get(name, "j.{0}").format(name) for name in _NAMES)


def job_row(row: Sequence[Any] | None) -> JobRow | None:
    if row is None or row[0] is None:
        return None
    return JobRow(
        *[_DECODED[name](v) if name in _DECODED else v for name, v in zip(_NAMES, row, strict=True)]
    )


def _decoded(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except ValueError:  # JSON that Python cannot hold, such as a number of more than 4,300 digits
        return text


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text.strip('"'))


_DECODED: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(_JSON_FIELDS, _decoded),
    **dict.fromkeys(_TIMES, _time),
}
