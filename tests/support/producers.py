"""Clients that add, remove, cancel and retry jobs at random. Each does one thing after the other, and writes
down what came of it; checker.py judges the record."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

from tests.support.tasks.recorded_tasks import Recorder

IN_SEQUENCE = {"by_args": ["customer"], "continue_on_cancelled": True, "continue_on_discarded": True}
UNIQUE = {"keys": ["type", "args"], "on_conflict": "ignore"}
KINDS = ["plain", "plain_async", "only_once", "effect", "effect_async"]


class Signs:
    """What the world tells its clients."""

    def __init__(self) -> None:
        self.stop, self.crowded = threading.Event(), threading.Event()


class Client:
    """A connection that comes back when it is lost, and a record."""

    def __init__(self, name: str, dsn: str, seed: str, signs: Signs) -> None:
        self._rng = random.Random(f"{seed} {name}")
        self._record = Recorder(name)
        self._dsn, self._signs = dsn, signs
        self._conn: psycopg.Connection[Any] | None = None

    def deeds(self) -> list[Callable[[], None]]:
        raise NotImplementedError

    def work(self) -> None:
        deeds = self.deeds()
        while not self._signs.stop.is_set():
            if self._conn is None or self._conn.closed:
                with suppress(psycopg.OperationalError):
                    self._conn = psycopg.connect(
                        self._dsn, autocommit=True, row_factory=namedtuple_row, connect_timeout=5
                    )
            elif self._signs.crowded.is_set():
                self._signs.stop.wait(0.05)
            else:
                self._rng.choice(deeds)()
            self._signs.stop.wait(self._rng.uniform(0, 0.03))
        if self._conn is not None:
            self._conn.close()

    def _outcome(self, deed: Callable[[Any], Any]) -> tuple[str, Any]:
        """ok, error (nothing has changed) or unknown (the answer was lost); and the answer."""
        try:
            return "ok", deed(self._conn)
        except psycopg.Error as error:
            refused = self._conn is not None and not self._conn.closed and error.sqlstate
            if self._conn is not None and isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
                self._conn.close()  # another server has taken over
            return ("error" if refused else "unknown"), None

    def _do(self, what: str, fields: dict[str, Any], deed: Callable[[Any], dict[str, Any]]) -> str:
        """Returns the outcome."""
        began = time.time()
        outcome, more = self._outcome(deed)
        event = {"began": began, **fields, "outcome": outcome, **(more or {})}
        self._record(what, **event)
        return event["outcome"]


class Producer(Client):
    """Adds single jobs of every kind, removes, cancels and retries some."""

    queues = ("narrow", "serial")
    dangers: Sequence[tuple[str, str]] = ()  # tasks that mean harm, and how

    def __init__(self, name: str, dsn: str, seed: str, signs: Signs) -> None:
        super().__init__(name, dsn, seed, signs)
        self._ids = [1]

    def deeds(self) -> list[Callable[[], None]]:
        return [self.add] * 12 + [self.add_in_transaction] * 2 + [self.remove, self.cancel, self.retry]

    def _arguments(self) -> dict[str, Any]:
        rng = self._rng
        arguments: dict[str, Any] = {
            "identifier": rng.choice(KINDS),
            "payload": Jsonb({}),
            "max_attempts": 1000,
            "priority": rng.randrange(-1, 2),
        }
        match rng.randrange(12):
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
            case 4 | 5:
                arguments["queue_name"] = rng.choice(self.queues)
            case 6:
                arguments["expires_at"] = datetime.now(UTC) + timedelta(seconds=rng.uniform(0.02, 1))
            case 7:
                arguments |= {
                    "job_key": f"d{rng.randrange(3)}",
                    "run_at": datetime.now(UTC) + timedelta(seconds=1),
                    "max_wait": timedelta(seconds=2),
                }
        if rng.random() < 0.1:
            arguments["run_at"] = datetime.now(UTC) + timedelta(seconds=rng.uniform(0, 3))
        if self.dangers and rng.random() < 0.03 and "job_key" not in arguments:
            arguments |= self._danger()
        return arguments

    def _danger(self) -> dict[str, Any]:
        task, how = self._rng.choice(self.dangers)
        return {"identifier": task, "payload": Jsonb({"how": how}), "max_attempts": 3}

    def _add(self, conn: Any, arguments: dict[str, Any]) -> int:
        names = ", ".join(f"{name} => %s" for name in arguments)
        sql = f"select id from pyworker.add_job({names})"
        return conn.execute(sql, list(arguments.values())).fetchone().id

    def add(self) -> None:
        arguments = self._arguments()

        def deed(conn: Any) -> dict[str, Any]:
            self._ids.append(self._add(conn, arguments))
            return {"id": self._ids[-1]}

        self._do("add", {"id": None, "key": arguments.get("job_key")}, deed)

    def add_in_transaction(self) -> None:
        arguments, rolls_back = self._arguments(), self._rng.random() < 0.5
        # Its id may be that of a job that was there before.
        for name in ("job_key", "job_key_mode", "max_wait", "unique_policy"):
            arguments.pop(name, None)

        def deed(conn: Any) -> dict[str, Any]:
            with conn.transaction(force_rollback=rolls_back):
                job_id = self._add(conn, arguments)
                self._signs.stop.wait(self._rng.uniform(0, 0.02))
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
