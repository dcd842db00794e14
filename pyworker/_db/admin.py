"""Queries and actions of the command line, the terminal UI and the tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, cast

from .base import Base, Jobs, MaybeJob, OneJob, Rows, Value
from .queue import add_job_call, send_signal_call
from .rows import JOB_COLUMNS, JobRow, job_row
from .text import as_identifier


class Admin(Base):
    """Jobs, queues, sequences and schedules."""

    # -- jobs

    get_job = MaybeJob[[int]]("get_job(%s)")
    show_job = MaybeJob[[int]]("show_job(%s)")  # without its payload and result
    retry_job = OneJob[[int]]("retry_job(%s)")
    cancel_job = OneJob[[int, bool]]("cancel_job(%s, %s)")
    delete_job = OneJob[[int]]("delete_job(%s)")
    remove_job = MaybeJob[[str]]("remove_job(%s)")
    explain_job = Rows[[int]]("explain_job(%s) order by position", "reason, detail, remedy")
    job_errors = Rows[[int]]("job_errors(%s)", "run, at, worker, error")
    get_steps = Rows[[int]]("get_steps(%s)", "name, result, run, at")
    # The saved steps and the signals (kind), without what they hold.
    job_marks = Rows[[int]]("job_marks(%s)", "kind, name, run, at")
    job_log = Rows[[int]]("job_log(%s)", "run, attempt, at, level, message")
    job_signals = Rows[[int]]("job_signals(%s)", "name, payload, at")
    job_graph = Rows[[int]]("job_graph(%s)", "side, id, task_identifier, state, ref, condition, blocks")

    def add_job(self, identifier: str, payload: Any = None, **options: Any) -> JobRow:
        call = add_job_call(self.schema, identifier, payload, options, self.job_columns)
        return cast("JobRow", job_row(self._rows(*call)[0]))

    def send_signal(self, job_id: int, name: str, payload: Any) -> str:
        """Returns what became of it: answered, kept or ignored."""
        return self._rows(*send_signal_call(self.schema, job_id, name, payload))[0][0]

    def may_read_payloads(self) -> bool:
        may = "select has_function_privilege(%s, 'execute')"
        return bool(self._rows(may, [f"{as_identifier(self.schema)}.get_job(bigint)"])[0][0])

    def states(self, job_ids: Sequence[int]) -> dict[int, str | None]:
        """The states of these jobs, for a message; None for a job that is not there."""
        source = f"unnest(%s::bigint[]) i(id) cross join lateral {self._s}.get_job(i.id) j"
        rows = self._rows(f"select i.id, j.state from {source}", [list(job_ids)])
        return {job_id: state for job_id, state in rows}

    def why_untaken(self, job_id: int) -> str | None:
        """Why none of the live workers takes the job."""
        call = "explain_job(%s) where reason = 'no worker takes it'"
        rows = self._dicts("detail, remedy", call, job_id)
        return next((f"{row['detail']}: {row['remedy']}" for row in rows), None)

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

    # -- tasks and workers

    list_tasks = Rows[[]](
        "list_tasks() order by identifier",
        "identifier, max_attempts, priority, queue_name, unique_policy, sequence_policy, delivery, timeout,"
        " backoff, retention, updated_at",
    )
    worker_health = Rows[[str | None]]("worker_health(%s)", "worker_id, name, live, ready, detail")
    doctor = Rows[[]]("doctor()", "check_name, severity, finding, fix")
    metrics = Rows[[]]("metrics()", "name, kind, help, labels, value")
    clock = Value[[], datetime]("clock()")
    advance_clock = Value[[timedelta], datetime]("advance_clock(%s)")

    def modules_of(self, task: str) -> list[str]:
        """The modules that the newest live worker with this task has loaded."""
        newest = "list_workers() where info -> 'task_identifiers' ? %s order by id desc limit 1"
        workers = self._dicts("info", newest, task)
        return [name for worker in workers for name in worker["info"].get("modules", [])]

    # -- queues and sequences

    pause_queue = Value[[str], None]("pause_queue(%s)")
    resume_queue = Value[[str], None]("resume_queue(%s)")
    resume_sequence = Value[[str], bool]("resume_sequence(%s)")
    queue_stats = Rows[[]](
        "queue_stats order by queue_name",
        "queue_name, concurrency, paused, available, running, pending, scheduled, retryable, discarded,"
        " oldest_waiting, rate_limit, rate_period, rate_used, rate_left, rate_free_at, fair",
    )

    def queue_state(self, queue_name: str) -> Mapping[str, Any]:
        """Whether it is known (it, or a queue of this family, has jobs, limits, or is paused) and paused.

        `paused_family`: one to which the queue belongs."""
        stats = f"{self._s}.queue_stats q"
        family = (
            "q.paused and q.queue_name <> n.name and right(q.queue_name, 1) = '*'"
            " and starts_with(n.name, left(q.queue_name, -1))"
        )
        known, paused, paused_family = self._rows(
            f"select exists (select from {stats} where q.queue_name = n.name"
            " or (right(n.name, 1) = '*' and starts_with(q.queue_name, left(n.name, -1)))),"
            f" exists (select from {stats} where q.queue_name = n.name and q.paused),"
            f" (select min(q.queue_name) from {stats} where {family})"
            " from (values (%s::text)) n(name)",
            [queue_name],
        )[0]
        return {"known": known, "paused": paused, "paused_family": paused_family}

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

    # -- schedules

    run_schedule = Jobs[[str]]("run_schedule(%s)")
    pause_schedule = Value[[str], None]("pause_schedule(%s)")
    resume_schedule = Value[[str], None]("resume_schedule(%s)")
    remove_schedule = Value[[str], None]("remove_schedule(%s)")
    parse_crontab = Rows[[str]]("parse_crontab(%s)", "line, schedule, payload")
    schedules = Rows[[]](
        "schedules order by name",
        "name, cron, timezone, words, identifier, next_at, last_at, last_job_id, paused, last_error,"
        " backfill, queue_name, query_role, origin",
    )

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
