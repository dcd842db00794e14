"""A worker that docs/protocol.md describes, and a producer, one statement a step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tests.crashpoints.recording import ALWAYS, NEVER, Fact, Recorder

OFF = "set_config('synchronous_commit', 'off', true)"  # as pyworker's own runner claims and beats
ROW = "kind, id, run, task_identifier, queue_name, sequence_key, delivery, why"
Runs = Sequence[tuple[int, int]]


def added(rows: list[Any]) -> list[Fact]:
    return [Fact("added", (row[0],)) for row in rows]


class Runner:
    """A worker."""

    def __init__(self, it: Recorder, name: str) -> None:
        self.it, self.name, self.runs = it, name, dict[str, list[tuple[int, int]]]()
        rows = it.step(
            f"open-{name}", "select (pyworker.open_worker(%s) ->> 'worker')::bigint",
            [json.dumps({"name": name})], on=name, durable=ALWAYS,
            learns=lambda rows: [Fact("worker", rows[0])],
        )  # fmt: skip
        self.id: int = rows[0][0]

    def turn(
        self,
        step: str,
        claim: int = 0,
        tasks: Sequence[str] | None = None,
        done: Runs = (),
        reports: Sequence[dict[str, Any]] = (),
    ) -> list[tuple[int, int]]:
        """Reports and claims; returns the runs that were claimed."""
        ends = [(report["id"], report["run"]) for report in reports if report["do"] != "log"] + [*done]

        def learned(rows: list[Any]) -> list[Fact]:
            refused = {(row[1], row[2]) for row in rows if row[0] == "refused"}
            return [
                *(Fact("accepted", run) for run in ends if run not in refused),
                *(Fact("claimed", (self.id, *row[1:3])) for row in rows if row[0] == "job"),
            ]

        rows = self.it.step(
            step,
            f"select {ROW} from {'' if ends else OFF + ', '}pyworker.work(%s, %s, %s, null, %s, %s, %s)",
            [self.id, [id for id, _ in done], [run for _, run in done], json.dumps(list(reports)), claim,
             list(tasks) if tasks else None],
            on=self.name, durable=ALWAYS if ends else NEVER, learns=learned,
        )  # fmt: skip
        self.it.steps[-1].undone = [(r["id"], r["run"]) for r in reports if r["do"] == "not_started"]
        jobs = [row for row in rows if row[0] == "job"]
        if any(row[4] or row[5] for row in jobs):  # of a queue or a sequence: on disk all the same
            self.it.steps[-1].durable = ALWAYS
        return [(row[1], row[2]) for row in jobs]

    def start(self, step: str, run: tuple[int, int]) -> None:
        self.it.step(
            step, "select pyworker.start_job(%s, %s)", run, on=f"{self.name}-handler", durable=ALWAYS,
            learns=lambda rows: [Fact("started", run)] if rows[0][0] else [],
        )  # fmt: skip

    def beat(self, step: str, held: Runs = ()) -> None:
        self.it.step(
            step,
            f'select kind, id, why from {OFF}, pyworker.beat(%s, %s, %s, "lock" => true)',
            [self.id, [id for id, _ in held], [run for _, run in held]],
            on=f"{self.name}-beat", durable=NEVER,
        )  # fmt: skip

    def handler(self, step: str, statement: str, parameters: Sequence[Any] = (), **more: Any) -> list[Any]:
        return self.it.step(step, statement, parameters, on=f"{self.name}-handler", **more)


def add(it: Recorder, step: str, task: str, options: str = "", **more: Any) -> int:
    rows = it.step(
        step, f"select id, state from pyworker.add_job('{task}'{options and ', ' + options})",
        learns=added, **more,
    )  # fmt: skip
    return rows[0][0] if rows else 0
