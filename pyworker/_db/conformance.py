"""What `python -m pyworker.conformance` asks a database about a worker that it does not know."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, cast

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from .connect import connect
from .database import Database
from .migrations import migrate
from .rows import JobRow
from .scripts import drop_schema_text

_CONFIGURE = "configure(worker_ttl => %s)"
# A worker's connections: by the name that the script gave them, or by what they said last.
_ITS_CONNECTIONS = """
    select pid, query_start from pg_stat_activity
    where datname = current_database() and backend_type = 'client backend'
      and (application_name = %(schema)s or strpos(query, %(schema)s) > 0)
      and application_name <> %(own)s"""
_BLOCKED_BY = "select pid from pg_stat_activity where %s = any (pg_blocking_pids(pid))"
_TERMINATE = "select pg_terminate_backend(p) from unnest(%s::integer[]) p"
_WORK = (
    "work(%s, %s::bigint[], %s::bigint[], %s::jsonb[], null, %s, %s::text[]) where kind in ('job', 'refused')"
)
_IN_RUN = "select worker_id, run from {}.live_jobs where id = %s"
_REPORT = """select id
    from {}.work(%(worker)s, %(ids)s::bigint[], %(runs)s::bigint[], null, %(reports)s::jsonb, 0)
    where kind = 'refused'"""
_HOLD = sql.SQL("select from {}.{} where id = %s for update")
_NEWER = sql.SQL("insert into {}.migrations (version, name, breaking) values (9999, 'newer', true)")
_NEWER_NO_LONGER = sql.SQL("delete from {}.migrations where version = 9999")
_TELL_MIGRATED = b"select pg_notify(%s, 'migrate')"
OWN = "pyworker_conformance_script"


class Conformance(Database):
    """A schema of the script's own, and a look at the worker that serves it."""

    def __init__(self, dsn: str, schema: str) -> None:
        super().__init__(self._connected(dsn), schema)
        self._dsn = dsn

    @staticmethod
    def _connected(dsn: str) -> psycopg.Connection[Any]:
        return connect(make_conninfo(dsn, application_name=OWN), worker=True)

    def _named(self, statement: sql.SQL, *names: str) -> sql.Composed:
        return statement.format(*map(sql.Identifier, (self.schema, *names)))

    def install(self, ttl: timedelta) -> None:
        migrate(self.conn, self.schema)
        self._value(_CONFIGURE, ttl)

    def worker_ttl(self) -> float:
        """Seconds without a beat after which a worker counts as dead."""
        return self._value("worker_ttl()").total_seconds()

    def drop(self) -> None:
        self.conn.execute(cast("Any", drop_schema_text(self.schema)))

    # -- jobs

    def add_silently(self, identifier: str, payload: Any, **options: Any) -> JobRow:
        with self.conn.transaction():
            self.keep_quiet()
            return self.add_job(identifier, payload, **options)

    def ask_to_cancel(self, job_id: int, *, notify: bool = True) -> bool:
        """Cancel the job; returns whether start_job had been called for it."""
        with self.conn.transaction():
            if not notify:
                self.keep_quiet()
            self.cancel_job(job_id, False)
            return self.is_started(job_id)

    def is_started(self, job_id: int) -> bool:
        """True if start_job was called for the run that the job is in."""
        rows = self._rows(f"select started_at is not null from {self._s}.live_jobs where id = %s", [job_id])
        return bool(rows and rows[0][0])

    def close_workers(self) -> None:
        self._rows(f"select {self._s}.close_worker(w.id) from {self._s}.live_workers w")

    def cancel_all(self) -> None:
        """Leave nothing to do to the next worker."""
        self._rows(
            f"select ({self._s}.cancel_job(j.id, true)).id from {self._s}.jobs j where j.state <> 'discarded'"
        )

    # -- the worker

    def worker_ids(self) -> list[int]:
        return [row[0] for row in self._rows(f"select id from {self._s}.live_workers order by id")]

    def beats(self) -> list[tuple[Any, ...]]:
        """Each live worker, and when it has called beat."""
        return self._rows(f"select id, beat_at from {self._s}.live_workers")

    def statements(self) -> list[tuple[Any, ...]]:
        """The worker's connections, each with the time of its last statement."""
        return self._rows(_ITS_CONNECTIONS, {"schema": self.schema, "own": OWN})

    def cut_connections(self) -> int:
        pids = [row[0] for row in self.statements()]
        self._rows(_TERMINATE, [pids])
        return len(pids)

    @contextmanager
    def holding(self, table: str, row_id: int) -> Iterator[Holder]:
        """A transaction of another session that has locked this row."""
        with self._connected(self._dsn) as conn, conn.transaction():
            conn.execute(self._named(_HOLD, table), [row_id])
            yield Holder(self, conn)

    def pretend_newer(self) -> None:
        """Record a migration that no program knows yet, and that breaks older ones."""
        self.conn.execute(self._named(_NEWER))
        self.conn.execute(_TELL_MIGRATED, [self.schema])

    def pretend_no_longer(self) -> None:
        self.conn.execute(self._named(_NEWER_NO_LONGER))

    # -- another worker, played by the script

    def open_rival(self) -> int:
        return self.open_worker({"name": "rival"})["worker"]

    def rival_beat(self, worker: int) -> None:
        self._rows(f"select kind from {self._s}.beat(%s)", [worker])

    def rival_claim(self, worker: int, max_jobs: int, tasks: Sequence[str]) -> list[tuple[int, int]]:
        call = f"select id, run from {self._s}.{_WORK}"
        return cast("Any", self._rows(call, [worker, None, None, None, max_jobs, list(tasks)]))

    def rival_finish(self, worker: int, jobs: Sequence[tuple[int, int]], result: str) -> int:
        """Complete these jobs with this result; returns how many of the reports were refused."""
        ids, runs = ([job[at] for job in jobs] for at in (0, 1))
        results = [json.dumps(result)] * len(ids)
        call = f"select id from {self._s}.{_WORK}"
        return len(self._rows(call, [worker, ids, runs, results, 0, []]))


class Holder(Database):
    """The session of a lock: who waits for it? Its transaction may report, as the worker would."""

    def __init__(self, db: Conformance, conn: psycopg.Connection[Any]) -> None:
        super().__init__(conn, db.schema)
        self._db = db

    def waiting(self) -> list[int]:
        return [row[0] for row in self._db._rows(_BLOCKED_BY, [self.conn.info.backend_pid])]

    def cut_waiting(self) -> int:
        pids = self.waiting()
        self._db._rows(_TERMINATE, [pids])
        return len(pids)

    def start(self, job_id: int) -> bool:
        """Start this job as its worker would."""
        ((_, run),) = self._rows(_IN_RUN.format(self._s), [job_id])
        return self.start_job(job_id, run)

    def report(self, job_id: int, report: dict[str, Any]) -> bool:
        """Report the run of this job as its worker would. True if the report counted.

        The numbers are strings, as JavaScript sends them.
        """
        ((worker, run),) = self._rows(_IN_RUN.format(self._s), [job_id])
        done = report["do"] == "done"
        item = {"id": f"{job_id}", "run": f"{run}", **report}
        values = {
            "worker": worker, "ids": [job_id] if done else [], "runs": [run] if done else [],
            "reports": json.dumps([] if done else [item]),
        }  # fmt: skip
        return not self._rows(_REPORT.format(self._s), values)

    def rival_claim(self, worker: int, tasks: Sequence[str]) -> list[tuple[int, int]]:
        """What another worker claims within this transaction."""
        call = f"select id, run from {self._s}.{_WORK}"
        return cast("Any", self._rows(call, [worker, None, None, None, 50, list(tasks)]))
