"""How many statements PostgreSQL executes for a turn and for a beat. PL/pgSQL computes the rest by itself."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

from tests.support.plans import TIDIED
from tests.support.turns import work

# What a turn reports and claims, and how many statements it takes, the call of work included.
TURNS: dict[str, tuple[dict[str, Any] | None, int]] = {
    "nothing": (None, 5),
    "a plain job": ({}, 8),
    "a job of a serial queue": ({"queue_name": "q"}, 10),
    "a job of a sequence": ({"sequence_policy": {"key": "s"}}, 10),
}


@pytest.mark.parametrize("what", TURNS)
def test_a_turn_of_one_job_executes_few_statements(api: Any, worker: int, watched: Any, what: str) -> None:
    options, most = TURNS[what]
    held: list[Any] = []
    if options is not None:
        api.add_jobs([{"identifier": "t", **options}] * 13)

    def turn(session: Any) -> None:
        held[:] = work(session, worker, [(job.id, job.run) for job in held], room=1).jobs

    watched(turn)
    watched(lambda session: session.rows(TIDIED))
    executed = list[int]()
    for _ in range(12):  # some look for due jobs and for what is left over, too
        # Those without a text look at the clock that tests can move: an installation has none.
        executed.append(len([plan for plan in watched(turn) if plan["Query Text"]]))
        assert len(held) == (options is not None)
    assert 1 < median(executed) <= most, executed


def test_a_beat_with_nothing_to_do_executes_few_statements(api: Any, worker: int, watched: Any) -> None:
    def beat(session: Any) -> None:
        (alive,) = session.rows("select * from pyworker.beat(%s, lock => true)", [worker])
        assert alive.kind == "alive"

    executed = [len(watched(beat)) for _ in range(12)]  # some sweep
    assert 1 < median(executed) <= 6, executed
