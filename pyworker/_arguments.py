"""The options of jobs, tasks and schedules, as types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol, Required, TypedDict

JobKeyMode = Literal["replace", "preserve_run_at", "unsafe_dedupe"]
Delivery = Literal["at_least_once", "at_most_once"]
On = Literal["success", "end", "failure"]
Flags = list[str] | tuple[str, ...] | set[str] | frozenset[str]


class TaskLike(Protocol):
    """What an add takes from a task in place of its name: a pyworker Task."""

    name: str

    @property
    def add_options(self) -> dict[str, Any]: ...

    def encoded(self, payload: Any) -> Any: ...


class _Defaults(TypedDict, total=False):
    max_attempts: int | None
    priority: int | None
    queue_name: str | None
    unique_policy: Mapping[str, Any] | None
    sequence_policy: Mapping[str, Any] | None
    delivery: Delivery | None


class _JobOptions(_Defaults, total=False):
    job_key: str | None
    job_key_mode: JobKeyMode | None
    flags: Flags | None
    meta: Mapping[str, Any] | None


class FlowOptions(_JobOptions, total=False):
    """The options of a flow's add: those of add_job, with `after` in place of depends_on."""

    run_at: datetime | timedelta | str | None
    delay: timedelta | float | str | None
    expires_at: datetime | timedelta | str | None
    max_wait: timedelta | float | str | None


class AddOptions(FlowOptions, total=False):
    """The options of add_job. None means "not given".

    run_at: a datetime with a time zone, a timedelta from now, or a text that PostgreSQL reads, such
    as "tomorrow". delay: in place of run_at, a timedelta or seconds from now. depends_on: the jobs that
    this one waits for: ids, refs of the same add_jobs call, or {"id": 17, "on": "end"}; or
    {"jobs": […], "on_unmet": "cancel"}. expires_at: as run_at; a job that has not begun by then is
    cancelled. max_wait: a timedelta, or seconds; however often a job with a job_key is replaced, it runs
    within that time of its first add.
    """

    depends_on: Sequence[int | str | Mapping[str, Any]] | Mapping[str, Any] | None


class JobSpec(AddOptions, total=False):
    """One job of add_jobs: add_job's arguments as a dict.

    identifier: the task, or its name. ref: by it, depends_on of another job of the call names this one.
    """

    identifier: Required[str | TaskLike]
    payload: Any
    ref: str | None


class TaskOptions(_Defaults, total=False):
    """The options of @task. timeout and retention: timedeltas, or seconds.

    batch: the handler is called with a list of up to so many jobs.
    """

    name: str | None
    result: bool
    batch: int | None
    timeout: timedelta | float | None
    backoff: list[Any] | dict[str, Any] | None
    retention: timedelta | float | None


class CronOptions(_JobOptions, total=False):
    """The options of @cron. backfill: a timedelta, or seconds."""

    name: str | None
    timezone: str | None
    backfill: timedelta | float | str | None
    payload: Any
