"""All SQL that pyworker sends, and nothing else. One short method per SQL function; columns are always listed.

Rules live in the database: this module carries arguments there and rows back, and decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, cast

import psycopg
from psycopg import sql

from ._payload import JsonText as JsonText
from ._payload import to_json
from ._rows import JOB_COLUMNS, job_row
from ._rows import JobRow as JobRow
from .errors import translated

# -- sessions ---------------------------------------------------------------------------------------------------------

BACKEND_PID = b"select pg_backend_pid()"
SHOW_ISOLATION = b"show default_transaction_isolation"
SET_ALL = b"select set_config(s.name, s.value, false) from unnest(%s::text[], %s::text[]) s(name, value)"
# Null: there is no such process, or its statement is not ours to see.
AT_IT = b"select bool_or(state = 'active' and wait_event_type is distinct from 'Client') from pg_stat_activity where pid = %s"
BE_QUIET = b"select set_config('pyworker.notify', 'off', false)"
READ_COMMITTED = b"set default_transaction_isolation = 'read committed'"

# -- migrations -------------------------------------------------------------------------------------------------------

BEGIN = "begin isolation level read committed;\n"
SET_SCHEMA = sql.SQL(
    "select set_config('pyworker.schema', {schema}, true), set_config('pyworker.newest', {newest}::text, true)"
)
HAS_MIGRATIONS = b"select true from pg_tables where schemaname = %s and tablename = 'migrations'"
MIGRATIONS = sql.SQL("select version, name, checksum from {schema}.migrations order by version")
RECORD_MIGRATION = b"insert into migrations (version, name, breaking, checksum) values (%s, %s, %s, %s)"
FILL_CHECKSUM = b"update migrations set checksum = %s where version = %s"
MAKE_CLOCK_MOVABLE = b"update settings set movable_clock = true;\n"
CLOCK_IS_MOVABLE = b"select movable_clock from settings"

# For a script inside a transaction that is not ours: what begin.sql sets, as it was before.
KEEP_SETTINGS = (
    "select set_config('pyworker.before', json_object_agg(s, current_setting(s))::text, true) from unnest(array["
    "'search_path', 'lock_timeout', 'client_min_messages', 'standard_conforming_strings', 'datestyle', 'intervalstyle']) s;\n"
)
RESTORE_SETTINGS = (
    "select set_config(s.key, s.value, true) from json_each_text(current_setting('pyworker.before')::json) s;\n"
)


def drop_schema_text(schema: str) -> str:
    return f"drop schema {as_identifier(schema)} cascade"


def unless_applied(version: int, text: str) -> str:
    """A script that does nothing where the migration has been applied."""
    return (
        f"do $pyworker_unless$\nbegin\nif not exists (select from migrations m where m.version = {version:d}) then\n"
        f"execute $pyworker_migration$\n{text}$pyworker_migration$;\nend if;\nend;\n$pyworker_unless$;\n"
    )


def record_migration_text(version: int, name: str, breaking: bool, checksum: str) -> str:
    values = sql.SQL(", ").join(sql.Literal(value) for value in (version, name, breaking, checksum))
    return (
        sql.SQL("insert into migrations (version, name, breaking, checksum) values ({});\n")
        .format(values)
        .as_string(None)
    )


# -- jobs -------------------------------------------------------------------------------------------------------------


# The argument names of add_job, each with the type it is cast to.
ADD_ARGUMENTS = {
    "identifier": "text",
    "payload": "json",
    "queue_name": "text",
    "run_at": "timestamptz",
    "max_attempts": "integer",
    "job_key": "text",
    "priority": "integer",
    "flags": "text[]",
    "job_key_mode": "text",
    "unique_policy": "jsonb",
    "sequence_policy": "jsonb",
    "meta": "jsonb",
    "delivery": "text",
}
_DEFINE_ARGUMENTS = {
    "identifier": "text",
    "max_attempts": "integer",
    "priority": "integer",
    "queue_name": "text",
    "unique_policy": "jsonb",
    "sequence_policy": "jsonb",
    "delivery": "text",
    "timeout": "interval",
    "backoff": "jsonb",
    "retention": "interval",
}
# What @cron may say of a schedule, besides its cron expression.
SCHEDULE_OPTIONS = (ADD_ARGUMENTS.keys() - {"identifier", "run_at"}) | {"name", "timezone", "backfill"}
TASK_OPTIONS = _DEFINE_ARGUMENTS.keys() - {"identifier"}
# Times as seconds: psycopg takes longer for two times than for all the rest. A double has room for the microseconds of these centuries.
_CLAIMED = (
    "id, run, task_identifier, payload::text, attempts, max_attempts, priority, date_part('epoch', run_at), queue_name, key, flags::text, "
    "meta::text, sequence_key, date_part('epoch', created_at), delivery, crashes"
)


# Times from now, by the queue's clock, which an installation for tests may move.
SOON = "{schema}.clock() + make_interval(secs => {value}::double precision)"
SPECS = """(select coalesce(jsonb_agg(case when s.spec ? 'run_in'
    then s.spec - 'run_in' || jsonb_build_object('run_at', {soon}) else s.spec end order by s.nr), '[]')
    from jsonb_array_elements(%(specs)s::jsonb) with ordinality s(spec, nr))"""


def as_identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def quoted(schema: str) -> str:
    """In a statement with parameters, where drivers take a lone % for one."""
    return as_identifier(schema).replace("%", "%%")


def named_call(schema: str, function: str, arguments: Mapping[str, str]) -> str:
    given = ", ".join(f"{name} => %({name})s::{kind}" for name, kind in arguments.items())
    return f"{quoted(schema)}.{function}({given})"


def rows_of(schema: str, call: str) -> str:
    return f"select {JOB_COLUMNS} from {quoted(schema)}.{call} j"  # noqa: S608


def literal(value: Any) -> str:
    """As it stands in a statement for psql."""
    return sql.Literal(str(value) if isinstance(value, str) else value).as_string(None).strip()


Call = tuple[str, list[Any]]


def finish_job_statement(schema: str) -> str:
    """Its second column names the transaction, to ask what became of it."""
    return f"select {quoted(schema)}.finish_job(%s, %s), pg_current_xact_id()::text"


def start_job_statement(schema: str) -> str:
    return f"select {quoted(schema)}.start_job(%s, %s)"


def get_job_statement(schema: str) -> str:
    return f"select {JOB_COLUMNS} from {quoted(schema)}.get_job(%s) j"  # noqa: S608


def job_errors_statement(schema: str) -> str:
    return f"select at, worker, error from {quoted(schema)}.job_errors(%s)"  # noqa: S608


def once_statement(schema: str) -> str:
    return f"select {quoted(schema)}.once(%s)"


# Partitions by the name of what they are partitions of.
_CHANGES = """
    select coalesce(parent.relname, s.relname), sum(s.n_tup_ins)::int, sum(s.n_tup_upd)::int, sum(s.n_tup_del)::int
    from pg_stat_xact_user_tables s
    left join pg_inherits i on i.inhrelid = s.relid
    left join pg_class parent on parent.oid = i.inhparent
    where s.schemaname = %s and s.n_tup_ins + s.n_tup_upd + s.n_tup_del > 0
    group by 1 order by 1"""


def printable(text: str) -> str:
    return text.replace("\0", "\ufffd").encode("utf-8", "backslashreplace").decode()


class Database:
    """The SQL functions of one schema, over one psycopg connection."""

    def __init__(self, conn: psycopg.Connection[Any], schema: str = "pyworker") -> None:
        self.conn = conn
        self.schema = schema
        self._s = quoted(schema)

    def _rows(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> list[tuple[Any, ...]]:
        with translated():
            # In binary: the text of a time or an interval depends on settings of the session.
            return self.conn.execute(cast("Any", statement), parameters, binary=True).fetchall()

    def _value(self, call: str, *parameters: Any) -> Any:
        return self._rows(f"select {self._s}.{call}", parameters)[0][0]

    def _jobs(self, source: str, *parameters: Any) -> list[JobRow]:
        rows = self._rows(f"select {JOB_COLUMNS} from {self._s}.{source} j", parameters)  # noqa: S608
        return [job for row in rows if (job := job_row(row))]

    def each(self, *calls: Callable[[], Any]) -> list[Any]:
        """What a command does in several statements."""
        return [call() for call in calls]

    # a dry run

    def keep_quiet(self) -> None:
        """Nothing is said that could not be taken back: when somebody was last notified is no part of a transaction."""
        self.conn.execute(b"select set_config('pyworker.notify', 'off', true)")

    def changes(self) -> list[tuple[str, int, int, int]]:
        """What this transaction has done so far: table, rows inserted, updated, deleted."""
        return cast("Any", self._rows(_CHANGES, [self.schema]))

    # 20_add

    def add_job(self, identifier: str, payload: Any = None, **options: Any) -> JobRow:
        from ._calls import add_job_call  # it needs this module

        row = self._rows(*add_job_call(self.schema, identifier, payload, options))[0]
        return cast("JobRow", job_row(row))

    def remove_job(self, job_key: str) -> JobRow | None:
        return next(iter(self._jobs("remove_job(%s)", job_key)), None)

    # 10_tasks

    def define_task(self, identifier: str, options: Mapping[str, Any]) -> None:
        parameters: dict[str, Any] = dict.fromkeys(_DEFINE_ARGUMENTS)
        parameters.update(options, identifier=identifier)
        for name in ("unique_policy", "sequence_policy", "backoff"):
            if parameters[name] is not None:
                parameters[name] = json.dumps(parameters[name])
        self._rows(f"select {named_call(self.schema, 'define_task', _DEFINE_ARGUMENTS)}", parameters)

    def list_tasks(self) -> list[dict[str, Any]]:
        options = (
            "max_attempts, priority, queue_name, unique_policy, sequence_policy, delivery, timeout, backoff, retention"
        )
        return self._dicts(f"identifier, {options}, updated_at", "list_tasks() order by identifier")

    # 40_claim, 50_finish, 60_fail: a worker's turn sends several of these in one round trip

    def send(self, call: Call) -> psycopg.Cursor[Any]:
        return self.conn.execute(cast("Any", call[0]), call[1], binary=True)

    def claim_call(
        self,
        worker_id: int,
        max_jobs: int,
        tasks: Sequence[str] | None,
        queues: Sequence[str] | None,
        forbidden_flags: Sequence[str] | None,
        alone: bool,
    ) -> Call:
        """alone: nothing else is in its transaction, so that its commit need not wait for the disk."""
        with_it = "set_config('synchronous_commit', 'off', true), " if alone else ""
        return (
            f"select {_CLAIMED} from {with_it}{self._s}.claim_jobs(%s, %s, %s::text[], %s::text[], %s::text[])",  # noqa: S608
            [worker_id, max_jobs, *(None if v is None else list(v) for v in (tasks, queues, forbidden_flags))],
        )

    def finish_call(self, jobs: Iterable[tuple[int, int, str | None]]) -> Call:
        """Each job: id, run, and its result as JSON text or None."""
        ids, runs, results = (list(column) for column in zip(*jobs, strict=True))
        kept = results if any(result is not None for result in results) else None
        # Arrays of numbers as text: written in a tenth of the time that psycopg takes for a list.
        numbers = ["{" + ",".join(map(str, column)) + "}" for column in (ids, runs)]
        return f"select cardinality({self._s}.finish_jobs(%s::bigint[], %s::bigint[], %s::jsonb[]))", [*numbers, kept]

    def fail_call(self, failures: Sequence[Mapping[str, Any]]) -> Call:
        # jsonb can hold neither NUL nor half a surrogate pair; an error does without, a payload is never altered.
        cleaned = [{**failure, "error": printable(str(failure["error"]))} for failure in failures]
        return f"select {self._s}.fail_jobs(%s::jsonb)", [json.dumps(cleaned)]

    def snooze_call(self, job_id: int, run: int, delay: timedelta) -> Call:
        return f"select {self._s}.snooze_job(%s, %s, %s)", [job_id, run, delay]

    def release_call(self, jobs: Iterable[tuple[int, int]]) -> Call:
        ids, runs = (list(column) for column in zip(*jobs, strict=True))
        return f"select {self._s}.release_jobs(%s::bigint[], %s::bigint[])", [ids, runs]

    def discarded(self, job_ids: Sequence[int]) -> list[tuple[int, str | None]]:
        """Which of these jobs are discarded, and why."""
        which = f"unnest(%s::bigint[]) i(id), {self._s}.get_job(i.id) j where j.state = 'discarded' order by j.id"
        return cast("Any", self._rows(f"select j.id, j.reason from {which}", [list(job_ids)]))  # noqa: S608

    def seconds_until_due(self) -> float | None:
        return self._value("seconds_until_due()")

    def finish_job(self, job_id: int, run: int) -> str:
        return self._rows(finish_job_statement(self.schema), [job_id, run])[0][1]

    def was_finished(self, job_id: int, run: int, transaction: str) -> bool | None:
        return self._value("was_finished(%s, %s, %s::xid8)", job_id, run, transaction)

    # 45_start

    def start_job(self, job_id: int, run: int) -> bool:
        return self._value("start_job(%s, %s)", job_id, run)

    def once(self, key: str) -> bool:
        return self._value("once(%s)", key)

    # 70_workers

    def register_worker(self, info: Mapping[str, Any]) -> int:
        return self._value("register_worker(%s::jsonb)", json.dumps(info))

    def describe_worker(self, worker_id: int, info: Mapping[str, Any]) -> None:
        self._value("describe_worker(%s, %s::jsonb)", worker_id, json.dumps(info))

    def heartbeat(self, worker_id: int) -> bool:
        return self._value("heartbeat(%s)", worker_id)

    def reconcile(self, worker_id: int, jobs: Sequence[tuple[int, int]]) -> list[int]:
        ids, runs = ([job[at] for job in jobs] for at in (0, 1))
        return self._value("reconcile(%s, %s::bigint[], %s::bigint[])", worker_id, ids, runs)

    def hold_worker_lock(self, worker_id: int) -> bool:
        return self._value("hold_worker_lock(%s)", worker_id)

    def worker_died(self, worker_id: int, jobs: Sequence[tuple[int, int]], error: str) -> None:
        ids, runs = ([job[at] for job in jobs] for at in (0, 1))
        self._value("worker_died(%s, %s::bigint[], %s::bigint[], %s)", worker_id, ids, runs, error)

    def sweep_workers(self) -> int:
        return self._value("sweep_workers()")

    def worker_ttl(self) -> timedelta:
        return self._value("worker_ttl()")

    def task_timeouts(self, tasks: Sequence[str]) -> dict[str, float]:
        rows = self._rows(f"select identifier, timeout from {self._s}.task_timeouts(%s)", [list(tasks)])  # noqa: S608
        return {name: timeout.total_seconds() for name, timeout in rows}

    def called_off(self, jobs: Sequence[tuple[int, int]]) -> list[int]:
        ids, runs = ([job[at] for job in jobs] for at in (0, 1))
        return self._value("called_off(%s::bigint[], %s::bigint[])", ids, runs)

    def fail_job(self, failure: Mapping[str, Any]) -> None:
        self.send(self.fail_call([failure])).fetchall()

    def unregister_worker(self, worker_id: int) -> None:
        self._value("unregister_worker(%s)", worker_id)

    def force_unlock_workers(self, worker_ids: Sequence[str]) -> None:
        self._value("force_unlock_workers(%s)", list(worker_ids))

    def listen(self) -> None:
        self.conn.execute(cast("Any", f"listen {as_identifier(self.schema)}"))

    # 80_admin, 85_maintain, 90_views

    def get_job(self, job_id: int) -> JobRow | None:
        return next(iter(self._jobs("get_job(%s)", job_id)), None)

    def modules_of(self, task: str) -> list[str]:
        """What the newest live worker that knows this task has loaded."""
        workers = self._dicts(
            "info", "live_workers where info -> 'task_identifiers' ? %s order by id desc limit 1", task
        )
        return [name for worker in workers for name in worker["info"].get("modules", [])]

    def jobs_left(self, host: str, pid: int) -> int:
        """How many jobs the worker processes of this parent may run, or run now."""
        of_a_worker = (
            "w.info ->> 'host' = %s and w.info -> 'pid' = to_jsonb(%s::integer) and w.info -> 'task_identifiers' ? j.task_identifier"
            " and coalesce(w.info -> 'queue_names' ? coalesce(j.queue_name, 'default'), true)"
            " and not coalesce(j.flags ?| array(select jsonb_array_elements_text(w.info -> 'forbidden_flags')), false)"
        )
        jobs = f"{self._s}.jobs j where j.state in ('available', 'pending', 'running')"
        any_worker = f"exists (select from {self._s}.live_workers w where {of_a_worker})"
        return self._rows(f"select count(*) from {jobs} and {any_worker}", [host, pid])[0][0]  # noqa: S608

    def waiting_jobs(self) -> list[JobRow]:
        """In the order of their ids."""
        rows = self._rows(
            f"select {JOB_COLUMNS} from {self._s}.jobs v cross join lateral {self._s}.get_job(v.id) j"  # noqa: S608
            " where v.state in ('scheduled', 'pending', 'available', 'retryable') order by v.id"
        )
        return [job for row in rows if (job := job_row(row))]

    def job_errors(self, job_id: int) -> list[tuple[Any, ...]]:
        return self._rows(f"select run, at, worker, error from {self._s}.job_errors(%s)", [job_id])  # noqa: S608

    def retry_job(self, job_id: int) -> JobRow:
        return self._jobs("retry_job(%s)", job_id)[0]

    def cancel_job(self, job_id: int, force: bool) -> JobRow:
        return self._jobs("cancel_job(%s, %s)", job_id, force)[0]

    def delete_job(self, job_id: int) -> JobRow:
        return self._jobs("delete_job(%s)", job_id)[0]

    def maintain(self) -> dict[str, int] | None:
        return self._value("maintain()")

    def check_version(self, client_version: int) -> None:
        with translated():
            try:
                self._value("check_version(%s)", client_version)
            except (psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedFunction) as error:
                from .errors import SchemaVersionError

                own = SchemaVersionError(
                    f"there is no pyworker in schema {self.schema!r} of this database, or a very old one"
                )
                own.detail, own.hint = "older", "Run: pyworker migrate"
                raise own from error

    def list_jobs(
        self, *, states: Sequence[str], tasks: Sequence[str], queues: Sequence[str], key: str | None, limit: int
    ) -> list[dict[str, Any]]:
        """Newest first, live and finished; empty filters match all."""
        columns = "id, task_identifier, queue_name, state, priority, run_at, attempts, max_attempts, key, last_error, finished_at"
        parts = " union all ".join(
            f"(select {columns} from {self._s}.{view}"  # noqa: S608
            " where (cardinality(%(states)s::text[]) = 0 or state = any (array_replace(%(states)s::text[], 'active', 'running')))"
            " and (cardinality(%(tasks)s::text[]) = 0 or task_identifier = any (%(tasks)s))"
            " and (cardinality(%(queues)s::text[]) = 0 or coalesce(queue_name, 'default') = any (%(queues)s))"
            " and (%(key)s::text is null or key = %(key)s) order by id desc limit %(limit)s)"
            for view in ("jobs", "history")
        )
        rows = self._rows(
            f"select {columns} from ({parts}) j order by id desc limit %(limit)s",  # noqa: S608
            {"states": list(states), "tasks": list(tasks), "queues": list(queues), "key": key, "limit": limit},
        )
        return [dict(zip(columns.split(", "), row, strict=True)) for row in rows]

    def counts(self) -> dict[str, int]:
        """How many jobs there are in each state, live and finished."""
        union = f"select state from {self._s}.jobs union all select state from {self._s}.history"  # noqa: S608
        return dict(self._rows(f"select state, count(*) from ({union}) j group by state"))  # type: ignore[arg-type]  # noqa: S608

    def _dicts(self, columns: str, source: str, *parameters: Any) -> list[dict[str, Any]]:
        rows = self._rows(f"select {columns} from {self._s}.{source}", parameters)  # noqa: S608
        return [dict(zip(columns.split(", "), row, strict=True)) for row in rows]

    def queue_stats(self) -> list[dict[str, Any]]:
        return self._dicts(
            "queue_name, concurrency, paused, available, running, pending, scheduled, retryable, discarded, oldest_waiting",
            "queue_stats order by queue_name",
        )

    # 82_queues, 83_explain

    def set_queue(self, queue_name: str, concurrency: int | None) -> None:
        self._value("set_queue(%s, %s::integer)", queue_name, concurrency)

    def pause_queue(self, queue_name: str) -> None:
        self._value("pause_queue(%s)", queue_name)

    def resume_queue(self, queue_name: str) -> None:
        self._value("resume_queue(%s)", queue_name)

    def sequences(self, limit: int) -> list[dict[str, Any]]:
        """Halted ones first, then those where most wait."""
        return self._dicts(
            "sequence_key, running, waiting, halted_by, reason, since",
            "sequences order by halted_by is null, waiting desc, sequence_key limit %s",
            limit,
        )

    def resume_sequence(self, sequence_key: str) -> bool:
        return self._value("resume_sequence(%s)", sequence_key)

    def explain_job(self, job_id: int) -> list[dict[str, Any]]:
        return self._dicts("reason, detail, remedy", "explain_job(%s) order by position", job_id)

    # 35_cron, 36_schedules, 37_crontab

    def describe_cron(self, cron: str) -> str:
        return self._value("describe_cron(%s)", cron)

    def next_runs(self, schedule: str, timezone: str, n: int) -> list[dict[str, Any]]:
        """Of the schedule of this name, or else of this cron expression."""
        statement = (
            f"select c.cron, c.timezone, {self._s}.describe_cron(c.cron), r.run_at, r.local_time"  # noqa: S608
            f" from (values (%s::text, %s::text)) given (schedule, timezone) left join {self._s}.schedules s on s.name = given.schedule"
            " cross join lateral (select coalesce(s.cron, given.schedule), coalesce(s.timezone, given.timezone)) c (cron, timezone)"
            f" left join lateral {self._s}.next_runs(c.cron, c.timezone, %s) r on true order by r.run_at"
        )
        names = ("cron", "timezone", "words", "run_at", "local_time")
        return [dict(zip(names, row, strict=True)) for row in self._rows(statement, [schedule, timezone, n])]

    def schedules(self) -> list[dict[str, Any]]:
        return self._dicts(
            "name, cron, timezone, words, identifier, next_at, last_at, last_job_id, paused, last_error, backfill, queue_name, query_role"
            ", origin",
            "schedules order by name",
        )

    def run_schedules(self, seconds: float) -> tuple[float | None, int]:
        """Fire what is due: seconds until the next tick, and how many were fired now. A query is cut off after so many seconds."""
        with translated(), self.conn.pipeline():  # one transaction, one round trip
            self.conn.execute(b"select set_config('statement_timeout', %s, true)", [f"{int(seconds * 1000)}"])
            # In this order: what falls due in between is not forgotten.
            told = self.send((f"select {self._s}.seconds_until_tick(), {self._s}.run_schedules()", []))
            tick, fired = cast("Any", told.fetchone())
        return tick, fired

    def run_schedule(self, name: str) -> list[JobRow]:
        return self._jobs("run_schedule(%s)", name)

    def pause_schedule(self, name: str) -> None:
        self._value("pause_schedule(%s)", name)

    def resume_schedule(self, name: str) -> None:
        self._value("resume_schedule(%s)", name)

    def remove_schedule(self, name: str) -> None:
        self._value("remove_schedule(%s)", name)

    def parse_crontab(self, content: str) -> list[tuple[Any, ...]]:
        return self._rows(f"select line, schedule, payload from {self._s}.parse_crontab(%s)", [content])  # noqa: S608

    def declare_schedules(
        self, origins: Sequence[str], schedules: Sequence[Mapping[str, Any]], dry_run: bool = False
    ) -> list[dict[str, Any]]:
        source = "declare_schedules(%s::text[], %s::jsonb, %s)"
        return self._dicts("name, action", source, list(origins), to_json(list(schedules)), dry_run)

    # 84_health

    def worker_health(self, worker: str | None) -> list[dict[str, Any]]:
        return self._dicts("worker_id, name, live, ready, detail", "worker_health(%s)", worker)

    # 91_pages, 92_act

    def overview(self) -> dict[str, Any]:
        return self._value("overview()")

    def throughput(self, minutes: int = 60) -> list[dict[str, Any]]:
        columns = "minute, completed, cancelled, failed, waited_p50, waited_p95, ran_p50, ran_p95, exact"
        return self._dicts(columns, "throughput(%s) order by minute", minutes)

    def job_page(self, **filters: Any) -> tuple[list[dict[str, Any]], int | None]:
        """A page of jobs by the arguments of list_jobs; and, if the look ended before the page was full, the id to go on from."""
        columns = (
            "id, task_identifier, state, queue_name, key, sequence_key, priority, run_at, attempts, max_attempts, created_at, locked_at, "
            "locked_by, finished_at, reason, last_error"
        )
        rows = self._dicts(columns, f"list_jobs({', '.join(f'{name} => %s' for name in filters)})", *filters.values())
        more = rows.pop()["id"] if rows and rows[-1]["state"] is None else None
        return rows, more

    def list_workers(self) -> list[dict[str, Any]]:
        columns = "id, info, started_at, beat_at, expires_at, silent, running, jobs"
        return self._dicts(columns, "list_workers() order by id")

    def list_queues(self, after: str | None = None, limit: int = 50) -> list[dict[str, Any]]:
        columns = "queue_name, concurrency, paused, available, running, exact"
        return self._dicts(columns, "list_queues(%s, %s)", after, limit)

    def list_sequences(self, halted: bool = False, after: str | None = None, limit: int = 50) -> list[dict[str, Any]]:
        columns = "sequence_key, running, waiting, halted_by, reason, since, exact"
        return self._dicts(columns, "list_sequences(%s, %s, %s)", halted, after, limit)

    def act(self, action: str, targets: Sequence[str], actor: str) -> list[dict[str, Any]]:
        return self._dicts("target, ok, outcome", "act(%s, %s::text[], %s)", action, list(targets), actor)

    def audit(self, before: int | None, limit: int) -> list[dict[str, Any]]:
        columns = "id, at, actor, db_role, action, target, ok, outcome"
        source = "audit where %s::bigint is null or id < %s order by id desc limit %s"
        return self._dicts(columns, source, before, before, limit)

    def limit_time(self, seconds: int) -> None:
        """Of each statement in this transaction."""
        self.conn.execute(b"select set_config('statement_timeout', %s, true)", [f"{seconds}s"])

    # 93_metrics

    def metrics(self) -> list[dict[str, Any]]:
        return self._dicts("name, kind, help, labels, value", "metrics()")

    # 87_doctor

    def doctor(self) -> list[dict[str, Any]]:
        return self._dicts("check_name, severity, finding, fix", "doctor()")

    # the clock of an installation for tests

    def clock(self) -> datetime:
        return self._value("clock()")

    def advance_clock(self, by: timedelta) -> datetime:
        return self._value("advance_clock(%s)", by)

    def seconds_until_tick(self) -> float | None:
        return self._value("seconds_until_tick()")

    def database_clock(self) -> float:
        """Seconds since 1970, by the real clock."""
        return float(self._rows("select extract(epoch from clock_timestamp())")[0][0])
