"""One turn of a worker, for the tests of work."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

WORK = "select * from pyworker.work(%s, %s::bigint[], %s::bigint[], %s::jsonb[], %s, %s, %s, %s, %s)"


@dataclass
class Turn:
    jobs: list[Any]
    refused: list[tuple[int | None, int | None, str]]
    again: float


def arguments(
    worker: Any,
    done: Any = (),
    reports: Any = None,
    room: Any = 10,
    results: Any = None,
    tasks: Any = None,
    queues: Any = None,
    flags: Any = None,
) -> list[Any]:
    ids, runs = ([job[at] for job in done] for at in (0, 1))
    return [
        worker,
        ids,
        runs,
        results,
        None if reports is None else Jsonb(reports),
        room,
        tasks,
        queues,
        flags,
    ]


def turn_of(rows: list[Any]) -> Turn:
    *before, last = rows
    assert last.kind == "turn"
    assert 0 <= last.again_in_s <= 5
    assert {row.kind for row in before} <= {"job", "refused"}
    return Turn(
        [row for row in before if row.kind == "job"],
        [(row.id, row.run, row.why) for row in before if row.kind == "refused"],
        last.again_in_s,
    )


def work(api: Any, *args: Any, **named: Any) -> Turn:
    return turn_of(api.rows(WORK, arguments(*args, **named)))


def turn_when(right: Callable[[Turn], bool], api: Any, worker: Any, done: Any = (), **named: Any) -> Turn:
    """Turns, each when the one before has asked for it, until one is right. The first reports `done`."""
    turn = work(api, worker, done, **named)
    for _ in range(200):
        if right(turn):
            return turn
        assert turn.again <= 0.25, "it comes again soon"
        api.rows("select pg_sleep(%s)", [turn.again])
        turn = work(api, worker, **named)
    raise AssertionError(f"no turn was right; the last one: {turn}")


def later(actor: Any, *args: Any, **named: Any) -> Future[Any]:
    return actor.session.start(WORK, arguments(*args, **named))


def claimed(api: Any, worker: int, *tasks: str, **options: Any) -> list[Any]:
    """Running jobs of these tasks, one of each."""
    for task in tasks:
        api.add_job(task, **options)
    jobs = work(api, worker, room=len(tasks)).jobs
    assert sorted(job.task_identifier for job in jobs) == sorted(tasks)
    return sorted(jobs, key=lambda job: job.task_identifier)


def word(job: Any, do: str, **more: Any) -> dict[str, Any]:
    return {"id": job.id, "run": job.run, "do": do, **more}
