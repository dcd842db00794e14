"""The SQL functions that worker processes call."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import psycopg

from .._payload import to_json
from .._texts import printable
from ..errors import translated
from .base import Base, Value
from .queue import DEFINE_ARGUMENTS, naming_times
from .text import as_identifier, named_call

_TURN = (
    "kind, id, run, task_identifier, payload::text, attempts, max_attempts, queue_name, key, flags::text,"
    " meta::text, sequence_key, delivery, crashes, timeout_s, run_at_s, created_at_s, why, again_in_s"
)


class Beat(NamedTuple):
    alive: bool  # false: the worker was declared dead
    unlocked: bool  # another connection holds the worker's lock
    duties: list[str]  # what is due: maintain, schedules
    next_in_s: float


class Worker(Base):
    """The SQL functions for workers, as methods."""

    open_worker = Value[[dict[str, Any]], dict[str, Any]]("open_worker(%s::jsonb)")

    def beat(self, worker_id: int, lock: bool, condition: str | None, busy: bool) -> Beat:
        """`condition` is JSON text; None leaves it as it is.

        `busy`: this process is running schedules already.
        """
        # No heartbeat waits for the disk or a standby. No schedule is run: its query may take long.
        source = (
            "set_config('synchronous_commit', 'off', true) a, set_config('pyworker.schedules', %s, true) b,"
            f' {self._s}.beat(%s, "lock" => %s, condition => %s::jsonb)'
        )
        told = ["busy" if busy else "apart", worker_id, lock, condition]
        rows = self._rows(f"select kind, why, next_in_s from {source}", told)
        kind, why, next_in_s = rows[0]
        words = cast("str", why or "").split()
        return Beat(kind == "alive", "unlocked" in words, [w for w in words if w != "unlocked"], next_in_s)

    def runs_to_stop(
        self, worker_id: int, held: Sequence[tuple[int, int]], lost_answer: bool
    ) -> list[tuple[int, int]]:
        """A beat for the jobs that a process holds: those that are cancelled, or no longer its own."""
        ids, runs = ([job[at] for job in held] for at in (0, 1))
        source = (
            f"set_config('pyworker.schedules', 'busy', true), {self._s}.beat("
            "%s, %s::bigint[], %s::bigint[], lost_answer => %s) b"
        )
        stops = f"select b.id, b.run from {source} where b.kind = 'stop'"
        return cast("Any", self._rows(stops, [worker_id, ids, runs, lost_answer]))

    close_worker = Value[[int], None]("close_worker(%s)")
    update_worker = Value[[int, dict[str, Any]], None]("update_worker(%s, %s::jsonb)")

    def define_task(self, identifier: str, options: Mapping[str, Any]) -> None:
        parameters = {"identifier": identifier, **options}
        for name in parameters.keys() & {"unique_policy", "sequence_policy", "backoff"}:
            parameters[name] = json.dumps(parameters[name])
        given = {name: DEFINE_ARGUMENTS[name] for name in parameters}
        with naming_times("define_task", parameters):
            self._rows(f"select {named_call(self.schema, 'define_task', given)}", parameters)

    def declare_schedules(
        self, origins: Sequence[str], schedules: Sequence[Mapping[str, Any]], dry_run: bool = False
    ) -> list[dict[str, Any]]:
        source = "declare_schedules(%s::text[], %s::jsonb, %s)"
        text = to_json(list(schedules), "schedules")
        return self._dicts("name, action", source, list(origins), text, dry_run)

    def listen(self) -> None:
        with self._guard(self.conn):
            self.conn.execute(cast("Any", f"listen {as_identifier(self.schema)}"))

    def work(
        self,
        worker_id: int,
        ended: Sequence[tuple[int, int, str | None, str | None]],
        max_jobs: int,
        tasks: Sequence[str] | None = None,
        queues: Sequence[str] | None = None,
        forbidden_flags: Sequence[str] | None = None,
        without: Sequence[str] | None = None,
        lines: Sequence[tuple[int, int, str]] = (),
        patience: str | None = None,
        as_texts: bool = False,
    ) -> list[tuple[Any, ...]]:
        """One turn.

        `ended`: of each run id, run, report as read_reports takes it (None: completed), and result.
        `without`: no job of these queues. `lines`: reports of what jobs have logged. `patience`: how long to
        wait for a lock. `as_texts`: send all by read_reports. It costs a turn half as much again, so without
        that only what has not just completed goes by it.

        The rows have `kind` first, `why` and `again_in_s` last."""
        # Arrays as text: psycopg takes ten times as long for a list.
        filters = [
            None if names is None else _array(tuple(names)) for names in (tasks, queues, forbidden_flags)
        ]
        parameters: list[Any] = [worker_id, None, None, max_jobs, *filters]
        said, source = "%s::bigint[], %s::bigint[], null, null", ""
        if lines or ended:
            reports = [*lines, *ended]
            parameters[1:3] = [f"{{{','.join([str(report[at]) for report in reports])}}}" for at in (0, 1)]
        if lines or as_texts or any(text is not None for _, _, text, _ in ended):
            texts = [text for _, _, text in lines]
            texts += [
                text or f'{{"do": "done", "result": {result or "null"}}}' for _, _, text, result in ended
            ]
            parameters[:3] = [*parameters[1:3], _array_of(texts), worker_id]
            source = f"{self._s}.read_reports(%s::bigint[], %s::bigint[], %s::text[]) r, "
            said = "r.done_ids, r.done_runs, r.done_results, r.reports"
        elif any(result is not None for *_, result in ended):
            parameters.insert(3, _array_of([result for *_, result in ended]))
            said = "%s::bigint[], %s::bigint[], %s::jsonb[], null"
        source += f"{self._s}.work(%s, {said}, %s, %s::text[], %s::text[], %s::text[])"
        if not ended:  # only a claim, or lines: the commit need not wait for the disk
            source = f"set_config('synchronous_commit', 'off', true), {source}"
        if patience is not None:
            source = f"set_config('lock_timeout', '{patience}', true) patience, {source}"
        if without:
            source = f"set_config('pyworker.closed_queues', %s, true) closed, {source}"
            parameters.insert(0, _array(tuple(without)))
        with self._guard(self.conn):
            return self.conn.execute(
                cast("Any", f"select {_TURN} from {source}"), parameters, binary=True
            ).fetchall()

    def discarded(self, job_ids: Sequence[int]) -> list[tuple[int, str | None]]:
        """Those of these jobs that are discarded, with the reason."""
        which = (
            f"unnest(%s::bigint[]) i(id), {self._s}.get_job(i.id) j where j.state = 'discarded' order by j.id"
        )
        return cast("Any", self._rows(f"select j.id, j.reason from {which}", [list(job_ids)]))

    # The job is at_most_once from now on: a worker calls it for such jobs alone.
    start_job = Value[[int, int], bool]("start_job(%s, %s, 'at_most_once')")

    def fail_jobs(self, failures: Sequence[Mapping[str, Any]]) -> None:
        """Fail these jobs, but not those that another session has locked: they fail with their worker."""
        if not failures:
            return
        try:
            source = f"set_config('lock_timeout', '200ms', true), {self._s}.fail_jobs(%s::jsonb)"
            told = json.dumps([_printable(failure) for failure in failures])
            self._rows(f"select from {source}", [told])
        except psycopg.errors.LockNotAvailable:
            half = len(failures) // 2
            for part in (failures[:half], failures[half:]) if half else ():
                self.fail_jobs(part)

    def report_crash(self, worker_id: int, jobs: Sequence[tuple[int, int]], error: str) -> None:
        ids, runs = ([job[at] for job in jobs] for at in (0, 1))
        self._value("report_crash(%s, %s::bigint[], %s::bigint[], %s)", worker_id, ids, runs, error)

    maintain = Value[[], dict[str, int] | None]("maintain()")
    seconds_until_tick = Value[[], float | None]("seconds_until_tick()")

    def run_schedules(self, seconds: float) -> int:
        """Fire due schedules and return how many ticks fired.

        `seconds` is the statement timeout, which ends a slow query.
        """
        with self._guard(self.conn), translated(), self.conn.pipeline():  # one transaction, one round trip
            self.conn.execute(b"select set_config('statement_timeout', %s, true)", [f"{int(seconds * 1000)}"])
            ran = self.conn.execute(cast("Any", f"select {self._s}.run_schedules()"), binary=True)
            return cast("Any", ran.fetchone())[0]

    def database_clock(self) -> float:
        """Seconds since 1970, by the server's real clock."""
        return float(self._rows("select extract(epoch from clock_timestamp())")[0][0])


def _array_of(texts: Iterable[str | None]) -> str:
    return f"{{{','.join(['null' if text is None else _quoted(text) for text in texts])}}}"


_array = functools.lru_cache(maxsize=16)(_array_of)


def _quoted(text: str) -> str:
    """As an element of an array."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _printable(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """jsonb cannot hold NUL or half a surrogate pair: clean the error. A payload is never altered."""
    return {**report, "error": printable(str(report["error"]))} if "error" in report else report
