"""Torture: producers, workers and faults of every kind. All write down what they see; afterwards
checker.py judges the record alone.

PYWORKER_TORTURE_SECONDS says how long (make nightly: an hour). PYWORKER_HISTORY names a directory
that keeps the record.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row, namedtuple_row
from psycopg.types.json import Jsonb

from tests.support.checker import read, summary, violations
from tests.support.proxy import Proxy
from tests.support.servers import Postgres
from tests.support.tasks.recorded_tasks import Recorder
from tests.support.workers import Queue

SECONDS = float(os.environ.get("PYWORKER_TORTURE_SECONDS", "60"))
SEED = os.environ.get("PYWORKER_SEED", "3")
PRODUCERS = 4
BACKLOG = 300
pytestmark = pytest.mark.torture

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


class Producer:
    """One client: it does one thing after the other, and writes down what came of it."""

    def __init__(self, number: int, dsn: str, stop: threading.Event, crowded: threading.Event) -> None:
        self._rng = random.Random(f"{SEED} {number}")
        self._record = Recorder(f"producer-{number}")
        self._dsn, self._stop, self._crowded = dsn, stop, crowded
        self._ids = [1]
        self._conn: psycopg.Connection[Any] | None = None

    def work(self) -> None:
        deeds = [self.add] * 12 + [self.add_in_transaction] * 2 + [self.remove, self.cancel, self.retry]
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


def observe(dsn: str, stop: threading.Event, crowded: threading.Event) -> None:
    record = Recorder("observer")
    while not stop.wait(0.2):
        with suppress(psycopg.OperationalError), psycopg.connect(dsn, row_factory=dict_row) as conn:
            conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            jobs = conn.execute(SAMPLE).fetchone()["jobs"]  # type: ignore[index,call-overload]
            values = [
                [name, *(int(conn.execute(sql).fetchone().popitem()[1] or 0) for sql in both)]
                for name, both in VIEWS.items()
            ]  # type: ignore
            record("sample", jobs=jobs, views=values)
            waiting = sum(job["state"] != "discarded" for job in jobs)
            (crowded.set if waiting > BACKLOG else crowded.clear)()


class Faults:
    def __init__(self, server: Postgres, network: Proxy, queue: Queue) -> None:
        self._server, self._network, self._queue = server, network, queue
        self._rng = random.Random(SEED)
        self._record = Recorder("faults")
        self.workers = [self._start() for _ in range(2)]

    def _start(self) -> Any:
        return self._queue.start(
            "--dsn", self._network.dsn, "--processes", "2", "--concurrency", "4", modules="recorded_tasks",
            PYWORKER_RUN_NO_UVLOOP=self._rng.choice("01"),
        )  # fmt: skip

    def strike(self) -> None:
        deeds = [self.parent, self.child, self.child, self.backend, self.freeze, self.cut, self.hush_one]
        self._rng.choice([*deeds, *deeds, self.server])()

    def _kill(self, how: str, pid: int, **more: Any) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self._record("kill", pid=pid, how=how, **more)

    def parent(self) -> None:
        at = self._rng.randrange(len(self.workers))
        with self._queue.ends_of(self.workers[at].children()):
            self._kill("parent", self.workers[at].pid)
            self.workers[at].process.wait()
        self.workers[at] = self._start()

    def child(self) -> None:
        worker = self._rng.choice(self.workers)
        if children := worker.children():
            self._kill("child", self._rng.choice(children), parent=worker.pid)

    def backend(self) -> None:
        self._server.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'pyworker' "
            "order by random() limit 2"
        )

    def freeze(self) -> None:
        worker = self._rng.choice(self.workers)
        frozen = [worker.pid, *worker.children()]
        for sign in (signal.SIGSTOP, signal.SIGCONT):
            for pid in frozen:
                with suppress(ProcessLookupError):
                    os.kill(pid, sign)
            time.sleep(self._rng.uniform(0.1, 1.0))

    def cut(self) -> None:
        self._network.cut()

    def hush_one(self) -> None:
        if links := list(self._network.links):
            self._rng.choice(links).silent = True

    def server(self) -> None:
        self._record("stop", how="immediate")
        self._server.stop_immediately()
        self._server.start()


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    kept = Path(os.environ.get("PYWORKER_HISTORY") or tmp_path / "history").absolute()
    kept.mkdir(parents=True, exist_ok=True)
    assert not list(kept.glob("*.jsonl")), f"{kept} has a record already"
    monkeypatch.setenv("PYWORKER_HISTORY", str(kept))
    return kept


def test_the_record_of_a_tortured_queue_has_no_violation(history: Path, tmp_path: Path) -> None:
    print(f"PYWORKER_SEED={SEED}")
    stop, crowded = threading.Event(), threading.Event()
    with ExitStack() as closing:
        server = Postgres(closing, max_connections="300")
        server.install()
        server.execute("create table public.effects (job_id bigint, run bigint)")
        server.execute("create index on public.effects (job_id)")
        server.execute("select pyworker.set_queue('narrow', 2)")
        Recorder("limits")("limit", queue="narrow", limit=2)
        network = Proxy(server.url)
        closing.callback(network.close)
        queue = Queue(server.url, tmp_path)
        closing.callback(queue.close)
        faults = Faults(server, network, queue)
        closing.callback(stop.set)
        threads = [
            threading.Thread(target=Producer(n, network.dsn if n else server.url, stop, crowded).work)
            for n in range(PRODUCERS)
        ]
        watching = threading.Event()
        observer = threading.Thread(target=observe, args=(server.url, watching, crowded))
        closing.callback(watching.set)
        for thread in (*threads, observer):
            thread.start()
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            time.sleep(random.uniform(0.2, 1.5))
            faults.strike()
        stop.set()
        network.cut()  # a client that waits for an answer of a silent one
        for thread in threads:
            thread.join()
        queue.conn.close()
        queue.conn = psycopg.connect(server.url, autocommit=True, row_factory=namedtuple_row)
        queue.until_so(
            "all jobs have ended",
            lambda: not queue.value("select count(*) from pyworker.jobs where state <> 'discarded'"),
        )
        watching.set()
        observer.join()
        for worker in faults.workers:
            worker.until_log(" started: ")  # one that begins just now has no handler of SIGTERM yet
        assert [worker.stop() for worker in faults.workers] == [0, 0]
        record = Recorder("final")
        with psycopg.connect(server.url, row_factory=dict_row, options="-c search_path=pyworker") as conn:
            for final in conn.execute(FINAL).fetchall():
                record("final", **final)
            assert conn.execute("select * from _invariants()").fetchall() == []
    events = list(read(history))
    print(summary(events), Counter(event["state"] for event in events if event["what"] == "final"))
    assert violations(events) == []
    began = [event["t"] for event in events if event["what"] == "begin"]
    first = min(began)
    tenths = Counter(int((t - first) / SECONDS * 10) for t in began)
    assert all(tenths[n] > 0 for n in range(9)), f"it came to a stop: {tenths}"
