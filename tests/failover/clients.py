"""Clients that add, remove, cancel and retry jobs at random, an observer, and what is asked in the end.
All write down what they see; checker.py judges the record."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row, namedtuple_row
from psycopg.types.json import Jsonb

from tests.support.tasks.recorded_tasks import Recorder

SEED = os.environ.get("PYWORKER_SEED", "3")
BACKLOG = 300

IN_SEQUENCE = {"by_args": ["customer"], "continue_on_cancelled": True, "continue_on_discarded": True}
UNIQUE = {"keys": ["type", "args"], "on_conflict": "ignore"}

SAMPLE = """
    select coalesce(json_agg(json_build_object(
        'id', j.id, 'state', j.state, 'run', j.run, 'key', j.job_key, 'unique', encode(j.unique_key, 'hex'),
            'sequence', j.sequence_key,
        'queue', j.queue_name, 'worker', (w.info ->> 'pid')::bigint,
            'since', extract(epoch from w.started_at))), '[]') as jobs
    from pyworker.live_jobs j left join pyworker.workers w on w.id = j.worker_id
    where j.state <> 'discarded' or j.job_key is not null -- the others only grow in number"""
VIEWS = {
    "jobs": ("select count(*) from pyworker.jobs", "select count(*) from pyworker.live_jobs"),
    "history": ("select count(*) from pyworker.history", "select count(*) from pyworker.finished_jobs"),
    "queue_stats": (
        "select sum(available + running + pending + scheduled + retryable + discarded) "
        "from pyworker.queue_stats",
        "select nullif(count(*), 0) from pyworker.live_jobs",
    ),
    "live_workers": (
        "select count(*) from pyworker.live_workers",
        "select count(*) from pyworker.workers where dead_at is null",
    ),
}
FINAL = """
    select j.id, j.task_identifier as task, j.state, j.reason, j.run, j.delivery,
        array(select e.run from public.effects e where e.job_id = j.id order by 1) as effects
    from (select id, task_identifier, state, reason, run, delivery from pyworker.live_jobs
          union all
          select id, task_identifier, state, reason, run, delivery from pyworker.finished_jobs) j"""


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    kept = Path(os.environ.get("PYWORKER_HISTORY") or tmp_path / "history").absolute()
    kept.mkdir(parents=True, exist_ok=True)
    assert not list(kept.glob("*.jsonl")), f"{kept} has a record already"
    monkeypatch.setenv("PYWORKER_HISTORY", str(kept))
    return kept


class Producer:
    """One client: it does one thing after the other, and writes down what came of it."""

    def __init__(self, number: int, dsn: str, stop: threading.Event, crowded: threading.Event) -> None:
        self._rng = random.Random(f"{SEED} {number}")
        self._record = Recorder(f"producer-{number}")
        self._dsn, self._stop, self._crowded = dsn, stop, crowded
        self._ids = [1]
        self._conn: psycopg.Connection[Any] | None = None

    def deeds(self) -> list[Callable[[], None]]:
        return [self.add] * 12 + [self.add_in_transaction] * 2 + [self.remove, self.cancel, self.retry]

    def work(self) -> None:
        deeds = self.deeds()
        while not self._stop.is_set():
            if self._conn is None or self._conn.closed:
                with suppress(psycopg.OperationalError):
                    self._conn = psycopg.connect(
                        self._dsn, autocommit=True, row_factory=namedtuple_row, connect_timeout=5
                    )
            elif self._crowded.is_set():
                self._stop.wait(0.05)
            else:
                self._rng.choice(deeds)()
            self._stop.wait(self._rng.uniform(0, 0.03))
        if self._conn is not None:
            self._conn.close()

    def _do(self, what: str, fields: dict[str, Any], deed: Callable[[Any], dict[str, Any]]) -> None:
        began = time.time()
        try:
            fields |= {"outcome": "ok", **deed(self._conn)}
        except psycopg.Error as error:
            refused = self._conn is not None and not self._conn.closed and error.sqlstate
            fields["outcome"] = "error" if refused else "unknown"
            if self._conn is not None and isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
                self._conn.close()  # another server has taken over
        self._record(what, began=began, **fields)

    def _arguments(self) -> dict[str, Any]:
        rng = self._rng
        kind = rng.choice(["plain", "plain_async", "only_once", "effect", "effect_async"])
        arguments: dict[str, Any] = {
            "identifier": kind,
            "payload": Jsonb({}),
            "max_attempts": 1000,
            "priority": rng.randrange(-1, 2),
        }
        match rng.randrange(8):
            case 0:
                mode = rng.choice(["replace", "preserve_run_at", "unsafe_dedupe"])
                arguments |= {"job_key": f"k{rng.randrange(10)}", "job_key_mode": mode}
            case 1:
                arguments |= {"payload": Jsonb({"n": rng.randrange(10)}), "unique_policy": Jsonb(UNIQUE)}
            case 2 | 3:
                arguments |= {
                    "payload": Jsonb({"customer": rng.randrange(10)}),
                    "sequence_policy": Jsonb(IN_SEQUENCE),
                }
            case 4:
                arguments["queue_name"] = rng.choice(["narrow", "serial"])
        if rng.random() < 0.1:
            arguments["run_at"] = datetime.now(UTC) + timedelta(seconds=rng.uniform(0, 3))
        return arguments

    def _add(self, conn: Any, arguments: dict[str, Any]) -> int:
        names = ", ".join(f"{name} => %s" for name in arguments)
        return (
            conn.execute(f"select id from pyworker.add_job({names})", list(arguments.values())).fetchone().id
        )

    def add(self) -> None:
        arguments = self._arguments()

        def deed(conn: Any) -> dict[str, Any]:
            self._ids.append(self._add(conn, arguments))
            return {"id": self._ids[-1]}

        self._do("add", {"id": None, "key": arguments.get("job_key")}, deed)

    def add_in_transaction(self) -> None:
        arguments, rolls_back = self._arguments(), self._rng.random() < 0.5
        for name in (
            "job_key",
            "job_key_mode",
            "unique_policy",
        ):  # its id may be that of a job that was there before
            arguments.pop(name, None)

        def deed(conn: Any) -> dict[str, Any]:
            with conn.transaction(force_rollback=rolls_back):
                job_id = self._add(conn, arguments)
                conn.execute("select pg_sleep(%s)", [self._rng.uniform(0, 0.02)])
            return {"id": job_id, "outcome": "rolled back" if rolls_back else "ok"}

        self._do("add", {"id": None, "key": None}, deed)

    def remove(self) -> None:
        key = f"k{self._rng.randrange(10)}"
        self._do(
            "remove", {"id": None, "key": key},
            lambda conn: {"id": conn.execute("select (pyworker.remove_job(%s)).id", [key]).fetchone().id},
        )  # fmt: skip

    def _on_some_job(self, what: str) -> None:
        job_id = self._rng.choice(self._ids[-50:])
        self._do(
            what,
            {"id": job_id},
            lambda conn: conn.execute(f"select pyworker.{what}_job(%s)", [job_id]) and {},
        )

    def cancel(self) -> None:
        self._on_some_job("cancel")

    def retry(self) -> None:
        self._on_some_job("retry")


def observe(
    dsn: str, stop: threading.Event, crowded: threading.Event, looking: threading.Lock | None = None
) -> None:
    """`looking` is held while it looks: who holds it keeps the observer away."""
    record, looking = Recorder("observer"), looking or threading.Lock()
    while not stop.wait(0.2):
        with looking, suppress(psycopg.OperationalError), psycopg.connect(dsn, row_factory=dict_row) as conn:
            conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            jobs = conn.execute(SAMPLE).fetchone()["jobs"]  # type: ignore[index,call-overload]
            values = [
                [name, *(int(conn.execute(sql).fetchone().popitem()[1] or 0) for sql in both)]
                for name, both in VIEWS.items()
            ]  # type: ignore
            record("sample", jobs=jobs, views=values)
            waiting = sum(job["state"] != "discarded" for job in jobs)
            (crowded.set if waiting > BACKLOG else crowded.clear)()
