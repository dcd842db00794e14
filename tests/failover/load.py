"""What runs on the cluster while it changes: producers, workers, a schedule, an observer. All of them have
one DSN with all servers, and find the leader by themselves."""

from __future__ import annotations

import math
import threading
import time
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row, namedtuple_row
from psycopg.types.json import Jsonb

from pyworker._db.migrations import migrate
from tests.failover.clients import FINAL, SEED
from tests.failover.cluster import DEADLINE, Cluster
from tests.support.checker import Event, read, violations
from tests.support.observer import observe
from tests.support.producers import Producer, Signs
from tests.support.tasks.recorded_tasks import Recorder
from tests.support.workers import Queue

PRODUCERS = 4
INSTALL = """
    create table public.effects (job_id bigint, run bigint);
    create index on public.effects (job_id);
    select pyworker.configure(max_crashes => 1000, completed_retention => '1 day');
    select pyworker.set_queue('narrow', 2);
    select pyworker.add_schedule('each minute', '* * * * *', 'plain', '{}', backfill => '1 hour');"""
# The jobs of the schedule, and when each of them was due.
TICKS = """
    select id, payload #>> '{_cron,ts}' as due from (
        select id, payload from pyworker.live_jobs union all select id, payload from pyworker.finished_jobs
    ) j where payload #>> '{_cron,ts}' is not null"""


class Client(Producer):
    """It also adds jobs that wait for others, and counts what was acknowledged."""

    acknowledged = 0

    def deeds(self) -> list[Any]:
        return [*super().deeds(), self.add_child, self.add_child]

    def _do(self, what: str, fields: dict[str, Any], deed: Any) -> str:
        outcome = super()._do(what, fields, deed)
        self.acknowledged += what == "add" and outcome == "ok"
        return outcome

    def add_child(self) -> None:
        parent = self._ids[-1]
        arguments = {
            "identifier": "plain", "payload": Jsonb({}), "max_attempts": 1000,
            "depends_on": Jsonb([{"id": parent, "on": "end"}]),
        }  # fmt: skip
        fields = {"id": None, "key": None, "parent": parent}
        self._do("add", fields, lambda conn: {"id": self._add(conn, arguments)})


def children_wait(events: list[Event]) -> list[str]:
    """Begins of a job before the first end of the job that it waits for. A cancelled job has ended, too, and
    may run later all the same, if it is retried."""
    cancelled = {event["id"] for event in events if event["what"] in ("cancel", "retry")}
    first: dict[tuple[str, int], float] = {}
    for event in sorted(events, key=lambda event: event["t"]):
        if event["what"] in ("begin", "end"):
            first.setdefault((event["what"], event["id"]), event["t"])
    return [
        f"job {event['id']} began before its parent {event['parent']} had ended"
        for event in events
        if event["what"] == "add" and event["outcome"] == "ok" and "parent" in event
        if event["parent"] not in cancelled
        if ("begin", event["id"]) in first and ("end", event["parent"]) in first
        if first["begin", event["id"]] < first["end", event["parent"]]
    ]


class Load:
    def __init__(self, stack: ExitStack, cluster: Cluster, history: Path, directory: Path) -> None:
        self.cluster, self._history = cluster, history
        with psycopg.connect(cluster.dsn, autocommit=True) as conn:
            migrate(conn)
            conn.execute(INSTALL)
        Recorder("limits")("limit", queue="narrow", limit=2)
        self.record = Recorder("faults")
        self.recoveries: list[tuple[str, float, float]] = []  # what was lost, when, and for how long
        self._probe = Recorder("probe")
        self._signs, self._watching = Signs(), threading.Event()
        self.looking = threading.Lock()  # held: the observer looks at nothing
        self.queue = Queue(cluster.dsn, directory)
        stack.callback(self.queue.close)
        options = ["--dsn", cluster.dsn, "--processes", "2", "--concurrency", "4"]
        self.workers = [
            self.queue.start(*options, modules="recorded_tasks", PYWORKER_RUN_NO_UVLOOP=uvloop)
            for uvloop in "01"
        ]
        self.clients = [Client(f"producer-{n}", cluster.dsn, SEED, self._signs) for n in range(PRODUCERS)]
        self._threads = [threading.Thread(target=client.work, daemon=True) for client in self.clients]
        observer = (cluster.dsn, self._watching, self._signs.crowded, self.looking)
        self._observer = threading.Thread(target=observe, args=observer, daemon=True)
        stack.callback(self._watching.set)
        stack.callback(self._signs.stop.set)
        for thread in (*self._threads, self._observer):
            thread.start()
        self.go_on()

    def go_on(self, adds: int = 100) -> None:
        """Until so many more adds were acknowledged, of each client some, and a job added now is done."""
        before = [client.acknowledged for client in self.clients]

        def enough() -> bool:
            more = [client.acknowledged - n for client, n in zip(self.clients, before, strict=True)]
            return sum(more) >= adds and min(more) > 0

        self.cluster.until("all clients go on", enough)
        self.do_one_job()

    def do_one_job(self) -> float:
        """A job that is added now, by a client that connects now, is done; when that was."""
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            began, outcome, job_id = time.time(), "unknown", None
            try:
                with psycopg.connect(self.cluster.dsn, autocommit=True, connect_timeout=2) as conn:
                    job_id = conn.execute("select id from pyworker.add_job('effect')").fetchall()[0][0]
                    outcome = "ok"
                    self._probe("add", id=job_id, key=None, began=began, outcome="ok")
                    done = "select 1 from pyworker.get_job(%s) where state = 'completed'"
                    while not conn.execute(done, [job_id]).fetchall() and time.monotonic() < end:
                        time.sleep(0.01)
                    return time.time()
            except psycopg.OperationalError as error:
                if outcome == "unknown" and error.sqlstate is None:
                    self._probe("add", id=None, key=None, began=began, outcome="unknown")
                time.sleep(0.05)
        raise AssertionError(f"no job is done\n{self.cluster.report()}\n{self.logs()}")

    def lost(self, how: str) -> float:
        """Call it when the leader is lost, or is about to be."""
        self.record("stop", how=how)
        return time.time()

    def recovered(self, how: str, since: float) -> None:
        self.recoveries.append((how, since, self.do_one_job() - since))

    def logs(self) -> str:
        return "\n".join(worker.log[-3000:] for worker in self.workers)

    def finish(self) -> list[Event]:
        """Let the workers end all jobs, write down how they ended, and return the whole record."""
        self._signs.stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a client has not come back"
        self.queue.conn.close()
        self.queue.conn = psycopg.connect(self.cluster.dsn, autocommit=True, row_factory=namedtuple_row)
        self.queue.value("select 1 from pyworker.remove_schedule('each minute')")
        left = "select count(*) from pyworker.jobs where state <> 'discarded'"
        self.cluster.until("all jobs have ended", lambda: not self.queue.value(left))
        self._watching.set()
        self._observer.join()
        assert [worker.stop() for worker in self.workers] == [0, 0], self.logs()
        assert "the worker process failed" not in self.logs()
        record = Recorder("final")
        with psycopg.connect(self.cluster.dsn, row_factory=dict_row) as conn:
            ticks = {tick["id"]: tick["due"] for tick in conn.execute(TICKS).fetchall()}
            for final in conn.execute(FINAL).fetchall():
                due = ticks.get(final["id"])
                record("final", **final, schedule=due and "each minute", due=due)
                if due:
                    record("add", id=final["id"], key=None, began=time.time(), outcome="ok")
            conn.execute("set search_path = pyworker")
            assert conn.execute("select * from _invariants()").fetchall() == []
        return list(read(self._history))

    def figures(self, events: list[Event]) -> str:
        adds = [event for event in events if event["what"] == "add"]
        counts = {word: sum(add["outcome"] == word for add in adds) for word in ("ok", "unknown", "error")}
        lines = [f"adds: {counts}, jobs: {sum(event['what'] == 'final' for event in events)}"]
        ends = [(event["t"], "end") for event in events if event["what"] == "end"]
        ends += [(add["t"], "add") for add in adds if add["outcome"] == "ok"]
        losses = [since for _, since, _ in self.recoveries] + [math.inf]
        for (how, since, seconds), until in zip(self.recoveries, losses[1:], strict=True):
            still = [pause([t for t, what in ends if what == of], since, until) for of in ("add", "end")]
            lines.append(
                f"{how}: no add for {still[0]:.1f} s, no handler ended for {still[1]:.1f} s, "
                f"a new job done after {seconds:.1f} s"
            )
        return "\n".join(lines)


def pause(times: list[float], since: float, until: float) -> float:
    """The longest time without one of these between the two."""
    return max((b - a for a, b in pairwise(sorted(t for t in times if since - 1 < t < until))), default=0.0)


def found(events: list[Event]) -> list[str]:
    """What must not be in the record."""
    return violations(events) + children_wait(events)


class Insider(threading.Thread):
    """A client with a connection to one server, and to no other: it adds as long as that server takes it."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._conn: psycopg.Connection[Any] = psycopg.connect(url, autocommit=True)
        self._record = Recorder("insider")
        self.acknowledged: list[int] = []
        self.tried = 0

    def run(self) -> None:
        with suppress(psycopg.Error):
            while True:
                began, fields = time.time(), {"id": None, "key": None, "outcome": "unknown"}
                self.tried += 1
                try:
                    row = self._conn.execute("select id from pyworker.add_job('plain')").fetchone()
                    fields |= {"id": row and row[0], "outcome": "ok"}
                    self.acknowledged.append(fields["id"])
                except psycopg.errors.ReadOnlySqlTransaction:
                    fields["outcome"] = "error"
                    raise
                finally:
                    self._record("add", began=began, **fields)
                time.sleep(0.05)
