"""Graphs of jobs of several steps, and the signals that they wait for, for tests that kill what runs them;
and the judge of what became of them."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from tests.support.databases import check_invariants

STEPS = ("drawn", "booked", "go", "drawn again", "maybe", "booked again")
BOUNDARIES = (*STEPS, "the end")
STATES = {"journey": "completed", "join": "completed", "refuse": "discarded", "never": "cancelled"}


def graph(rng: random.Random) -> list[dict[str, Any]]:
    """A fan-out, a failure with a job for each condition, and a fan-in."""

    def step(ref: str, *depends_on: Any) -> dict[str, Any]:
        kind = rng.choice(["journey", "journey_async"])
        return {"identifier": kind, "ref": ref, "max_attempts": 100, "depends_on": list(depends_on)}

    once = {"max_attempts": 1, "identifier": "refuse"}
    many = {"max_attempts": 100, "identifier": "join"}
    return [
        many | {"ref": "joined", "depends_on": ["left", "right", {"ref": "never", "on": "end"}, "mended"]},
        step("first"),
        step("left", "first"),
        step("right", "first"),
        once | {"ref": "refused", "depends_on": [{"ref": "first", "on": "end"}]},
        many | {"ref": "mended", "depends_on": [{"ref": "refused", "on": "failure"}]},
        once | {"ref": "never", "depends_on": {"jobs": ["refused"], "on_unmet": "cancel"}},
    ]


class Journeys:
    """What was acknowledged of them."""

    def __init__(self) -> None:
        self.kinds: dict[int, str] = {}
        self.to_signal: list[int] = []

    def add(self, conn: psycopg.Connection[Any], rng: random.Random) -> dict[int, str]:
        specs = graph(rng)
        rows = conn.execute("select id from pyworker.add_jobs(%s)", [Jsonb(specs)]).fetchall()
        added = {
            job_id: "never" if spec["ref"] == "never" else str(spec["identifier"]).removesuffix("_async")
            for (job_id,), spec in zip(rows, specs, strict=True)
        }
        self.kinds |= added
        self.to_signal += [job_id for job_id, kind in added.items() if kind == "journey"]
        return added

    def signal(self, conn: psycopg.Connection[Any], rng: random.Random, at_least: int = 0) -> None:
        """Sends a job the signal that it waits for or will, some the other one too, and some one twice."""
        while len(self.to_signal) > at_least:
            job_id = self.to_signal[rng.randrange(len(self.to_signal))]
            for name in rng.choice([["go"], ["go", "go"], ["maybe", "go"], ["go", "maybe"]]):
                # A job that has ended without the second word is refused.
                conn.execute(
                    "select pyworker.send_signal(id, %s, %s) from pyworker.jobs where id = %s",
                    [name, Jsonb(rng.getrandbits(50)), job_id],
                )
            self.to_signal.remove(job_id)
            if not at_least:
                return

    def judge(self, queue: Any) -> Counter[str]:
        """Counts the runs that were cut off, by the step before which that happened."""
        told: dict[int, list[Any]] = defaultdict(list)
        for row in queue.rows("select job_id, run, told, said_at from public.seen order by at"):
            told[row.job_id].append(row)
        ended = {row.id: row for row in queue.rows("select * from pyworker.history")}
        states = {row.id: row.state for row in queue.rows("select id, state from pyworker.jobs")}
        states |= {job_id: row.state for job_id, row in ended.items()}
        for job_id, kind in self.kinds.items():
            assert states[job_id] == STATES[kind], (job_id, kind, states[job_id])
        journeys = [job_id for job_id, kind in self.kinds.items() if kind == "journey"]
        for job_id in journeys:
            judge_steps(queue, job_id, told[job_id])
        for job_id, kind in self.kinds.items():
            judge_parents(queue, job_id, kind, told[job_id])
        check_invariants(queue.conn)
        cut: Counter[str] = Counter()
        for error in queue.rows("select job_id, run from pyworker.errors"):
            if self.kinds.get(error.job_id) == "journey":
                rows = [row for row in told[error.job_id] if row.run == error.run]
                names = [name for row in rows if isinstance(row.told, dict) for name in row.told]
                cut[BOUNDARIES[STEPS.index(names[-1]) + 1 if names else 0]] += 1
        print(f"{len(journeys)} jobs of steps; runs that were cut off before: {dict(cut)}")
        assert cut, "no run was cut off: this proves nothing"
        return cut


def judge_steps(queue: Any, job_id: int, told: list[Any]) -> None:
    """Each step and each wait has one result, which every run got; each transaction was committed once."""
    saved = {row.name: row.result for row in queue.rows("select * from pyworker.get_steps(%s)", job_id)}
    assert tuple(sorted(saved)) == tuple(sorted(STEPS)), (job_id, saved)
    for row in told:
        if isinstance(row.told, dict):
            assert row.told.items() <= saved.items(), (job_id, row, saved)
    assert queue.job(job_id).result == saved, (job_id, saved)
    for name in ("booked", "booked again"):
        assert sum(row.told == name for row in told) == 1, (job_id, name)
    first: dict[str, Any] = {}
    for row in queue.rows("select name, payload from pyworker.job_signals(%s)", job_id):
        first.setdefault(row.name, row.payload)
    assert saved["go"] == first["go"], (job_id, "the first signal counts")
    assert saved["maybe"] in (None, first.get("maybe")), (job_id, saved, first)


def judge_parents(queue: Any, job_id: int, kind: str, told: list[Any]) -> None:
    """It ran after its parents had ended, and knows how."""
    parents = queue.rows(
        """select d.depends_on as id, d.condition, p.state, p.finished_at, p.result
           from pyworker.dependencies d cross join lateral pyworker.get_job(d.depends_on) p
           where d.job_id = %s""",
        job_id,
    )
    for parent in parents:
        assert all(row.said_at >= parent.finished_at for row in told), (job_id, parent, told)
        good = {"success": ("completed",), "failure": ("cancelled", "discarded")}.get(parent.condition)
        assert kind == "never" or good is None or parent.state in good, (job_id, parent)
    if kind == "join":
        knows = {str(parent.id): [parent.state, parent.result] for parent in parents}
        assert queue.job(job_id).result == knows, (job_id, knows)
