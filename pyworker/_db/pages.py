"""The lists and actions of the dashboard, `pyworker top` and the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from .base import Base, Rows, Value

_SHOWN = "id, task_identifier, state, queue_name, key, attempts, max_attempts, run_at, last_error"
PAGE = 1000  # rows, the most that list_jobs and list_sequences return at once


class Pages(Base):
    """Paged lists, and actions on their rows."""

    overview = Value[[], dict[str, Any]]("overview()")
    problems = Rows[[]]("problems()", "check_name, severity, finding, fix")
    waiting_queues = Rows[[int]]("waiting_queues(%s)", "queue_name, job_id, seconds, usual_p95, paused, late")
    throughput = Rows[[int, int]](
        "throughput(%s, %s) order by minute",
        "minute, completed, cancelled, failed, waited_p50, waited_p95, ran_p50, ran_p95, exact",
    )
    activity = Rows[[str, int, int]](
        "activity(%s, %s, %s)",
        "name, completed, cancelled, failed, waited_p95, ran_p50, ran_p95, ran_total, exact",
    )
    list_workers = Rows[[]](
        "list_workers() order by id", "id, info, started_at, beat_at, expires_at, silent, running, jobs"
    )
    list_queues = Rows[[str | None, int]](
        "list_queues(%s, %s)",
        "queue_name, concurrency, paused, available, running, exact, oldest, oldest_id, rate_limit,"
        " rate_period, rate_used, rate_left, rate_free_at, fair",
    )
    # Halted ones only, or all, after a key, at most so many.
    list_sequences = Rows[[bool, str | None, int]](
        "list_sequences(%s, %s, %s)", "sequence_key, running, waiting, halted_by, reason, since, exact"
    )
    # The newest jobs that were lost: they may have been done.
    lost_jobs = Rows[[int]]("jobs where reason = 'lost' order by id desc limit %s", _SHOWN)
    perform_action = Rows[[str, Sequence[str], str, dict[str, Any]]](
        "perform_action(%s, %s::text[], %s, %s::jsonb)", "target, ok, outcome, audit_id"
    )
    action_sql = Value[[str, str, dict[str, Any]], str | None]("action_sql(%s, %s, %s::jsonb)")
    audit = Rows[[int | None, int]](
        "audit where id < coalesce(%s::bigint, 9223372036854775807) order by id desc limit %s",
        "id, at, actor, db_role, action, target, ok, outcome",
    )

    def count_jobs(self) -> dict[str, dict[str, Any]]:
        rows = self._dicts("state, jobs, exact", "count_jobs()")
        return {row["state"]: row for row in rows}

    def count_listed_jobs(self, **filters: Any) -> dict[str, dict[str, Any]]:
        """By the arguments of list_jobs, but for states and pages."""
        call, values = _named("count_listed_jobs", filters)
        return {row["state"]: row for row in self._dicts("state, jobs, exact", call, *values)}

    def job_page(self, **filters: Any) -> tuple[list[dict[str, Any]], int | None]:
        """A page of jobs, by the arguments of list_jobs.

        If the search stopped before the page was full, also the id to continue from.
        """
        columns = (
            "id, task_identifier, state, queue_name, key, sequence_key, priority, run_at, attempts,"
            " max_attempts, created_at, locked_at, locked_by, finished_at, reason, last_error, ran"
        )
        call, values = _named("list_jobs", filters)
        rows = self._dicts(columns, call, *values)
        more = rows.pop()["id"] if rows and rows[-1]["state"] is None else None
        return rows, more

    def list_jobs(
        self,
        *,
        states: Sequence[str],
        tasks: Sequence[str],
        queues: Sequence[str],
        key: str | None,
        limit: int,
    ) -> list[dict[str, Any]]:
        """The newest jobs, live and finished; empty filters match all."""
        filters = {
            "states": list(states) or None,
            "tasks": list(tasks) or None,
            "queues": list(queues) or None,
            "job_key": key,
        }
        found: list[dict[str, Any]] = []
        after = None
        while True:
            size = min(limit - len(found), PAGE)
            rows, more = self.job_page(**filters, after_id=after, max_jobs=size)
            found += rows
            if len(found) == limit or (more is None and len(rows) < size):
                return found
            after = more or rows[-1]["id"]

    def tasks_of(self, job_ids: Sequence[int]) -> dict[int, str]:
        """The tasks of these jobs, live or in history."""
        columns = "id, task_identifier"
        rows: list[dict[str, Any]] = []
        for view in ("jobs", "history"):
            rows += self._dicts(columns, f"{view} where id = any (%s::bigint[])", list(job_ids))
        return {row["id"]: row["task_identifier"] for row in rows}

    def lost_among(self, job_ids: Sequence[int]) -> list[int]:
        """Those of these jobs that were lost."""
        source = "jobs where id = any (%s::bigint[]) and reason = 'lost' order by id"
        return [row["id"] for row in self._dicts("id", source, list(job_ids))]

    def last_claim(self, job_id: int) -> datetime | None:
        """When the last run of a job began that is in history."""
        rows = self._dicts("locked_at", "history where id = %s", job_id)
        return rows[0]["locked_at"] if rows else None

    def jobs_waiting_for(self, job_id: int, limit: int) -> list[dict[str, Any]]:
        """The newest jobs that wait for the end of this one."""
        waiting = f"select d.job_id from {self._s}.dependencies d where d.depends_on = %s"
        source = f"jobs v where v.state = 'pending' and v.id in ({waiting}) order by v.id desc limit %s"
        return self._dicts(_SHOWN, source, job_id, limit)

    def sequences(self, limit: int) -> list[dict[str, Any]]:
        """Halted sequences first, each kind by key."""
        halted, others = self.each(
            partial(self._sequences, True, limit), partial(self._sequences, False, limit)
        )
        return [*halted, *(row for row in others if row["halted_by"] is None)][:limit]

    def _sequences(self, halted: bool, limit: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while True:
            size = min(limit - len(found), PAGE)
            rows = self.list_sequences(halted, found[-1]["sequence_key"] if found else None, size)
            found += rows
            if len(found) == limit or len(rows) < size:
                return found

    def perform_on_listed(self, action: str, actor: str, **filters: Any) -> dict[str, Any]:
        """A chunk of the jobs that list_jobs finds by these arguments."""
        columns = "done, refused, outcomes, next_id, first_audit, last_audit"
        call, values = _named("perform_on_listed", {"action": action, "actor": actor, **filters})
        return self._dicts(columns, call, *values)[0]

    def action_outcomes(self, first_audit: int, last_audit: int, actor: str) -> dict[str, Any]:
        columns = "action, done, refused, outcomes"
        return self._dicts(columns, "action_outcomes(%s, %s, %s)", first_audit, last_audit, actor)[0]

    def job_actions(self, job_id: int) -> dict[str, str]:
        """The SQL of each action that would change this job."""
        rows = self._dicts("action, statement", "job_actions(%s)", job_id)
        return {row["action"]: row["statement"] for row in rows}


def _named(function: str, arguments: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """A call with these arguments, but for those that are None, and their values."""
    given = {name: value for name, value in arguments.items() if value is not None}
    return f"{function}({', '.join(f'{name} => %s' for name in given)})", list(given.values())
