"""Queries and actions of the command line, the terminal UI and the tests."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, cast

from .base import Base
from .queue import add_job_call, send_signal_call
from .rows import JOB_COLUMNS, JobRow, job_row
from .text import as_identifier


class Admin(Base):
    """Jobs, queues, sequences and schedules."""

    def add_job(self, identifier: str, payload: Any = None, **options: Any) -> JobRow:
        call = add_job_call(self.schema, identifier, payload, options, self.job_columns)
        return cast("JobRow", job_row(self._rows(*call)[0]))

    def get_job(self, job_id: int) -> JobRow | None:
        return next(iter(self._jobs("get_job(%s)", job_id)), None)

    def show_job(self, job_id: int) -> JobRow | None:
        """The job without its payload and result."""
        return next(iter(self._jobs("show_job(%s)", job_id)), None)

    def may_read_payloads(self) -> bool:
        may = "select has_function_privilege(%s, 'execute')"
        return bool(self._rows(may, [f"{as_identifier(self.schema)}.get_job(bigint)"])[0][0])

    def states(self, job_ids: Sequence[int]) -> dict[int, str | None]:
        """The states of these jobs, for a message; None for a job that is not there."""
        source = f"unnest(%s::bigint[]) i(id) cross join lateral {self._s}.get_job(i.id) j"
        rows = self._rows(f"select i.id, j.state from {source}", [list(job_ids)])
        return {job_id: state for job_id, state in rows}

    def has_queue(self, queue_name: str) -> bool:
        """True if the queue, or a queue of this family, has jobs, a limit of its own, or is paused."""
        prefix = queue_name.removesuffix("*") if queue_name.endswith("*") else None
        known = (
            f"select from {self._s}.queue_stats q where q.queue_name = %s or starts_with(q.queue_name, %s)"
        )
        return bool(self._rows(f"select exists ({known})", [queue_name, prefix])[0][0])

    def is_paused(self, queue_name: str) -> bool:
        paused = f"select from {self._s}.queue_stats q where q.queue_name = %s and q.paused"
        return bool(self._rows(f"select exists ({paused})", [queue_name])[0][0])

    def paused_family(self, queue_name: str) -> str | None:
        """A paused family to which the queue belongs."""
        rows = self._rows(
            f"select q.queue_name from {self._s}.queue_stats q where q.paused and q.queue_name <> %s and"
            " right(q.queue_name, 1) = '*' and starts_with(%s, left(q.queue_name, -1)) order by 1 limit 1",
            [queue_name, queue_name],
        )
        return rows[0][0] if rows else None

    def job_errors(self, job_id: int) -> list[tuple[Any, ...]]:
        return self._rows(f"select run, at, worker, error from {self._s}.job_errors(%s)", [job_id])

    def counts(self) -> dict[str, int]:
        """How many jobs there are in each state, live and finished: exactly, so it reads all of them."""
        union = f"select state from {self._s}.jobs union all select state from {self._s}.history"
        rows = self._rows(f"select state, count(*) from ({union}) j group by state")
        return {state: jobs for state, jobs in rows}

    def waiting_jobs(self) -> list[JobRow]:
        """Jobs that have not started, in the order of their ids."""
        rows = self._rows(
            f"select {JOB_COLUMNS} from {self._s}.jobs v cross join lateral {self._s}.get_job(v.id) j"
            " where v.state in ('scheduled', 'pending', 'available', 'retryable') order by v.id"
        )
        return [job for row in rows if (job := job_row(row))]

    def jobs_left(self, host: str, pid: int) -> int:
        """How many jobs the worker processes of this parent are running or may run next."""
        of_a_worker = (
            "w.info ->> 'host' = %s and w.info -> 'pid' = to_jsonb(%s::integer)"
            " and w.info -> 'task_identifiers' ? j.task_identifier"
            " and coalesce(w.info -> 'queue_names' ? coalesce(j.queue_name, 'default'), true)"
            " and not coalesce("
            "j.flags ?| array(select jsonb_array_elements_text(w.info -> 'forbidden_flags')), false)"
        )
        jobs = f"{self._s}.jobs j where j.state in ('available', 'pending', 'running')"
        any_worker = f"exists (select from {self._s}.live_workers w where {of_a_worker})"
        return self._rows(f"select count(*) from {jobs} and {any_worker}", [host, pid])[0][0]

    def get_steps(self, job_id: int) -> list[dict[str, Any]]:
        return self._dicts("name, result, run, at", "get_steps(%s)", job_id)

    def job_marks(self, job_id: int) -> list[dict[str, Any]]:
        """The saved steps and the signals (kind), without what they hold."""
        return self._dicts("kind, name, run, at", "job_marks(%s)", job_id)

    def job_log(self, job_id: int) -> list[dict[str, Any]]:
        return self._dicts("run, attempt, at, level, message", "job_log(%s)", job_id)

    def job_signals(self, job_id: int) -> list[dict[str, Any]]:
        return self._dicts("name, payload, at", "job_signals(%s)", job_id)

    def job_graph(self, job_id: int) -> list[dict[str, Any]]:
        columns = "side, id, task_identifier, state, ref, condition, blocks"
        return self._dicts(columns, "job_graph(%s)", job_id)

    def send_signal(self, job_id: int, name: str, payload: Any) -> str:
        """Returns what became of it: answered, kept or ignored."""
        return self._rows(*send_signal_call(self.schema, job_id, name, payload))[0][0]

    def explain_job(self, job_id: int) -> list[dict[str, Any]]:
        return self._dicts("reason, detail, remedy", "explain_job(%s) order by position", job_id)

    def why_untaken(self, job_id: int) -> str | None:
        """Why none of the live workers takes the job."""
        call = "explain_job(%s) where reason = 'no worker takes it'"
        rows = self._dicts("detail, remedy", call, job_id)
        return next((f"{row['detail']}: {row['remedy']}" for row in rows), None)

    def retry_job(self, job_id: int) -> JobRow:
        return self._jobs("retry_job(%s)", job_id)[0]

    def cancel_job(self, job_id: int, force: bool) -> JobRow:
        return self._jobs("cancel_job(%s, %s)", job_id, force)[0]

    def delete_job(self, job_id: int) -> JobRow:
        return self._jobs("delete_job(%s)", job_id)[0]

    def remove_job(self, job_key: str) -> JobRow | None:
        return next(iter(self._jobs("remove_job(%s)", job_key)), None)

    def list_tasks(self) -> list[dict[str, Any]]:
        options = (
            "max_attempts, priority, queue_name, unique_policy, sequence_policy, delivery, timeout,"
            " backoff, retention"
        )
        return self._dicts(f"identifier, {options}, updated_at", "list_tasks() order by identifier")

    def modules_of(self, task: str) -> list[str]:
        """The modules that the newest live worker with this task has loaded."""
        workers = self._dicts(
            "info", "list_workers() where info -> 'task_identifiers' ? %s order by id desc limit 1", task
        )
        return [name for worker in workers for name in worker["info"].get("modules", [])]

    def force_unlock_workers(self, worker_ids: Sequence[str]) -> None:
        self._value("force_unlock_workers(%s)", list(worker_ids))

    def worker_health(self, worker: str | None) -> list[dict[str, Any]]:
        return self._dicts("worker_id, name, live, ready, detail", "worker_health(%s)", worker)

    def queue_stats(self) -> list[dict[str, Any]]:
        return self._dicts(
            "queue_name, concurrency, paused, available, running, pending, scheduled, retryable,"
            " discarded, oldest_waiting, rate_limit, rate_period, rate_used, rate_left, rate_free_at, fair",
            "queue_stats order by queue_name",
        )

    def set_queue(
        self,
        queue_name: str,
        concurrency: int | None,
        rate: tuple[str, str] | None = None,
        fair: bool = False,
    ) -> timedelta | None:
        """`rate`: how many jobs may start in which period, such as ("10", "1m"). Returns this period."""
        call, values = "set_queue(%s, %s::integer", [queue_name, concurrency]
        if rate:
            call, values = f"{call}, %s::integer, %s::interval", [*values, *rate]
        self._value(call + (", fair => true)" if fair else ")"), *values)
        return self._rows("select %s::interval", [rate[1]])[0][0] if rate else None

    def pause_queue(self, queue_name: str) -> None:
        self._value("pause_queue(%s)", queue_name)

    def resume_queue(self, queue_name: str) -> None:
        self._value("resume_queue(%s)", queue_name)

    def resume_sequence(self, sequence_key: str) -> bool:
        return self._value("resume_sequence(%s)", sequence_key)

    def schedules(self) -> list[dict[str, Any]]:
        return self._dicts(
            "name, cron, timezone, words, identifier, next_at, last_at, last_job_id, paused, last_error,"
            " backfill, queue_name, query_role, origin",
            "schedules order by name",
        )

    def describe_cron(self, cron: str) -> str:
        return self._value("describe_cron(%s)", cron)

    def next_runs(self, schedule: str, timezone: str, n: int) -> list[dict[str, Any]]:
        """The next n runs of the schedule with this name, or else of this cron expression."""
        statement = (
            f"select c.cron, c.timezone, {self._s}.describe_cron(c.cron), r.run_at, r.local_time"
            " from (values (%s::text, %s::text)) given (schedule, timezone)"
            f" left join {self._s}.schedules s on s.name = given.schedule"
            " cross join lateral ("
            "select coalesce(s.cron, given.schedule), coalesce(s.timezone, given.timezone)"
            ") c (cron, timezone)"
            f" left join lateral {self._s}.next_runs(c.cron, c.timezone, %s) r on true order by r.run_at"
        )
        names = ("cron", "timezone", "words", "run_at", "local_time")
        return [dict(zip(names, row, strict=True)) for row in self._rows(statement, [schedule, timezone, n])]

    def run_schedule(self, name: str) -> list[JobRow]:
        return self._jobs("run_schedule(%s)", name)

    def pause_schedule(self, name: str) -> None:
        self._value("pause_schedule(%s)", name)

    def resume_schedule(self, name: str) -> None:
        self._value("resume_schedule(%s)", name)

    def remove_schedule(self, name: str) -> None:
        self._value("remove_schedule(%s)", name)

    def parse_crontab(self, content: str) -> list[tuple[Any, ...]]:
        return self._rows(f"select line, schedule, payload from {self._s}.parse_crontab(%s)", [content])

    def doctor(self) -> list[dict[str, Any]]:
        return self._dicts("check_name, severity, finding, fix", "doctor()")

    def metrics(self) -> list[dict[str, Any]]:
        return self._dicts("name, kind, help, labels, value", "metrics()")

    def clock(self) -> datetime:
        return self._value("clock()")

    def advance_clock(self, by: timedelta) -> datetime:
        return self._value("advance_clock(%s)", by)
