"""Jobs as the database tells them, and values as it is told them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from .errors import InvalidArgument


@dataclasses.dataclass(frozen=True, slots=True)
class JobRow:
    """A job as the database tells it: the result of add_job and its kin. Field names are the SQL type's."""

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


_JSON_FIELDS = ("payload", "meta", "flags", "result")
_NAMES = [field.name for field in dataclasses.fields(JobRow)]
# JSON travels as text: decoding is done per job, so one that cannot be decoded harms no other.
JOB_COLUMNS = ", ".join(f"j.{name}::text" if name in _JSON_FIELDS else f"j.{name}" for name in _NAMES)


class JsonText(str):
    """JSON that is sent as it is."""


def to_json(value: Any) -> str:
    """JSON text of a payload or result: plain JSON values, dataclasses, pydantic models, msgspec structs."""
    if isinstance(value, JsonText):
        return value
    try:
        return json.dumps(value, default=_plain, allow_nan=False)
    except ValueError as error:  # before the database sees it, which would abort the caller's transaction
        raise InvalidArgument(f"what is stored must be JSON: {error}") from None


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if dump := getattr(value, "model_dump", None):  # pydantic
        return dump(mode="json")
    if hasattr(value, "__struct_fields__"):  # msgspec
        import msgspec

        return msgspec.to_builtins(value)
    raise TypeError(f"a value of type {type(value).__name__} cannot be stored as JSON")


def job_row(row: Sequence[Any] | None) -> JobRow | None:
    if row is None or row[0] is None:
        return None
    values = [_decoded(v) if name in _JSON_FIELDS else v for name, v in zip(_NAMES, row, strict=True)]
    return JobRow(*values)


def _decoded(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except ValueError:  # JSON that Python cannot hold, such as a number of more than 4,300 digits
        return text
