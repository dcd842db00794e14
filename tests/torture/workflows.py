"""Clients that add graphs of jobs, batches, and jobs that wait for signals."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from psycopg.types.json import Jsonb

from tests.support.producers import KINDS, Client, Signs

Edges = list[tuple[int, str]]  # for one of the jobs of a call: the place of each parent, and the condition


class Planner(Client):
    def __init__(self, name: str, dsn: str, seed: str, signs: Signs) -> None:
        super().__init__(name, dsn, seed, signs)
        self._members = [1]  # of graphs and batches: some are cancelled, none is retried
        self.trips: list[int] = []  # that were sent no "go" yet

    def deeds(self) -> list[Callable[[], None]]:
        return [self.graph, self.batch, self.trip, self.trip, self.signal, self.signal, self.cancel]

    def _add_all(self, edges: list[Edges], deed: Callable[[Any], list[int]]) -> list[int]:
        """One record for each job: in doubt, it counts as so many doubts."""
        began = time.time()
        outcome, ids = self._outcome(deed)
        for at, parents in enumerate(edges):
            after = [[ids[parent], on] for parent, on in parents] if ids else []
            job_id = ids[at] if ids else None
            self._record("add", began=began, id=job_id, key=None, outcome=outcome, after=after)
        return ids or []

    def _some_job(self) -> dict[str, Any]:
        if self._rng.random() < 0.2:
            return {"identifier": "doomed", "max_attempts": 1}
        spec: dict[str, Any] = {"identifier": self._rng.choice(KINDS), "max_attempts": 1000}
        match self._rng.randrange(8):
            case 0:
                spec["queue_name"] = self._rng.choice(["narrow", "tenant:1"])
            case 1:
                spec |= {"payload": {"customer": self._rng.randrange(10)}}
                spec["sequence_policy"] = {
                    "by_args": ["customer"], "continue_on_cancelled": True, "continue_on_discarded": True,
                }  # fmt: skip
        return spec

    def graph(self) -> None:
        """Up to eight jobs, each after some of those before it; the last after all: a fan-in."""
        specs, edges = [self._some_job() for _ in range(self._rng.randrange(2, 9))], []
        for at, spec in enumerate(specs):
            some = range(at) if at == len(specs) - 1 else self._rng.sample(range(at), min(at, 2))
            parents = [(parent, self._rng.choice(["success", "end", "end", "failure"])) for parent in some]
            edges.append(parents)
            jobs = [{"ref": f"r{parent}", "on": on} for parent, on in parents]
            spec |= {"ref": f"r{at}", "depends_on": {"jobs": jobs, "on_unmet": "cancel"}}
            if not parents:
                del spec["depends_on"]
        self._members += self._add_all(
            edges,
            lambda conn: [
                row.id for row in conn.execute("select id from pyworker.add_jobs(%s)", [Jsonb(specs)])
            ],
        )

    def batch(self) -> None:
        rng = self._rng
        specs: list[dict[str, Any]] = [
            {"identifier": "member", "max_attempts": 1000, "payload": {"extends": rng.random() < 0.3}}
            for _ in range(rng.randrange(1, 5))
        ]
        on = rng.choice(["end", "end", "success"])
        edges: list[Edges] = [[] for _ in specs]
        edges.append([(at, on) for at in range(len(specs))])
        sql = "select id from pyworker.add_batch(%s, %s, %s)"
        # Its effect is written in the transaction that completes it: the checker counts that.
        callback = Jsonb({"identifier": rng.choice(["effect", "effect_async"]), "max_attempts": 1000})
        self._add_all(edges, lambda conn: [row.id for row in conn.execute(sql, [Jsonb(specs), callback, on])])

    def trip(self) -> None:
        task = self._rng.choice(["trip", "trip_async"])
        sql = "select id from pyworker.add_job(%s, max_attempts => 1000)"
        ids = self._add_all([[]], lambda conn: [conn.execute(sql, [task]).fetchone().id])
        self.trips += ids
        if ids and self._rng.random() < 0.3:  # before it waits
            self._send(ids[0])

    def signal(self) -> None:
        if self.trips:
            self._send(self._rng.choice(self.trips))

    def _send(self, job_id: int) -> None:
        names = self._rng.choice([["go"], ["go", "go"], ["maybe", "go"], ["go", "maybe"], ["maybe"]])
        for name in names:
            self.send(job_id, name)
        if "go" in names:
            self.trips.remove(job_id)  # a lost one is sent again in the end

    def send(self, job_id: int, name: str) -> None:
        payload = self._rng.getrandbits(50)
        call = "select pyworker.send_signal(%s, %s, %s)"
        self._do(
            "signal",
            {"id": job_id, "name": name, "payload": payload},
            lambda conn: conn.execute(call, [job_id, name, Jsonb(payload)]) and {},
        )

    def cancel(self) -> None:
        job_id = self._rng.choice(self._members[-50:])
        self._do(
            "cancel",
            {"id": job_id},
            lambda conn: conn.execute("select pyworker.cancel_job(%s)", [job_id]) and {},
        )
