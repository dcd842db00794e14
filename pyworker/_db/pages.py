"""The lists and actions of the dashboard, `pyworker top` and the command line."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from .base import Base

PAGE = 1000  # rows, the most that list_jobs and list_sequences return at once


class Pages(Base):
    """Paged lists, and actions on their rows."""

    def overview(self) -> dict[str, Any]:
        return self._value("overview()")

    def throughput(self, minutes: int = 60) -> list[dict[str, Any]]:
        columns = "minute, completed, cancelled, failed, waited_p50, waited_p95, ran_p50, ran_p95, exact"
        return self._dicts(columns, "throughput(%s) order by minute", minutes)

    def job_page(self, **filters: Any) -> tuple[list[dict[str, Any]], int | None]:
        """A page of jobs, by the arguments of list_jobs.

        If the search stopped before the page was full, also the id to continue from.
        """
        columns = (
            "id, task_identifier, state, queue_name, key, sequence_key, priority, run_at, attempts,"
            " max_attempts, created_at, locked_at, locked_by, finished_at, reason, last_error"
        )
        given = {name: value for name, value in filters.items() if value is not None}
        rows = self._dicts(
            columns, f"list_jobs({', '.join(f'{name} => %s' for name in given)})", *given.values()
        )
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

    def jobs_waiting_for(self, job_id: int, limit: int) -> list[dict[str, Any]]:
        """The newest jobs that wait for the end of this one."""
        columns = "id, task_identifier, state, queue_name, key, attempts, max_attempts, run_at, last_error"
        waiting = f"select d.job_id from {self._s}.dependencies d where d.depends_on = %s"  # noqa: S608
        source = f"jobs v where v.state = 'pending' and v.id in ({waiting}) order by v.id desc limit %s"
        return self._dicts(columns, source, job_id, limit)

    def list_workers(self) -> list[dict[str, Any]]:
        columns = "id, info, started_at, beat_at, expires_at, silent, running, jobs"
        return self._dicts(columns, "list_workers() order by id")

    def list_queues(self, after: str | None = None, limit: int = 50) -> list[dict[str, Any]]:
        columns = (
            "queue_name, concurrency, paused, available, running, exact, oldest, rate_limit, rate_period,"
            " rate_used, rate_left, rate_free_at, fair"
        )
        return self._dicts(columns, "list_queues(%s, %s)", after, limit)

    def list_sequences(
        self, halted: bool = False, after: str | None = None, limit: int = 50
    ) -> list[dict[str, Any]]:
        columns = "sequence_key, running, waiting, halted_by, reason, since, exact"
        return self._dicts(columns, "list_sequences(%s, %s, %s)", halted, after, limit)

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

    def perform_action(self, action: str, targets: Sequence[str], actor: str) -> list[dict[str, Any]]:
        return self._dicts(
            "target, ok, outcome", "perform_action(%s, %s::text[], %s)", action, list(targets), actor
        )

    def audit(self, before: int | None, limit: int) -> list[dict[str, Any]]:
        columns = "id, at, actor, db_role, action, target, ok, outcome"
        source = "audit where %s::bigint is null or id < %s order by id desc limit %s"
        return self._dicts(columns, source, before, before, limit)
