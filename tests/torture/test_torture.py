"""Torture: clients, workers and faults of every kind. All write down what they see; afterwards
checker.py judges the record alone.

PYWORKER_TORTURE_SECONDS says how long (make nightly: an hour). PYWORKER_HISTORY names a directory
that keeps the records, PYWORKER_FIGURES a file to which each run adds a line of figures.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from tests.torture.world import World

pytestmark = pytest.mark.torture


def test_the_record_of_a_tortured_queue_has_no_violation(make_world: Callable[..., World]) -> None:
    world = make_world()
    world.crew.python(world.network.dsn)
    world.crew.python(world.network.dsn, bounds=True, uvloop=True)
    world.run()


def test_workers_of_every_kind_share_a_queue(make_world: Callable[..., World]) -> None:
    """Behind PgBouncer, and in other languages, beside one that has all a worker can have."""
    world = make_world()
    world.crew.python(world.network.dsn)
    if shutil.which("pgbouncer"):
        world.crew.python(world.pooled(), kind="pooled")
    else:
        print("without a worker behind PgBouncer, which is not here")
    for name in ("node", "go"):
        world.crew.foreign(name, world.url)
    world.usual = [*world.usual, "kill_pooler"]
    world.run()


def test_workers_that_stand_still_for_longer_than_their_leases_do_no_harm_when_they_go_on(
    make_world: Callable[..., World],
) -> None:
    """Until they hear that they are dead, their handlers go on, beside those of others. None of their reports
    counts, no job that may run once runs twice, no writes of a transaction are there twice."""
    world = make_world(
        usual=["doze", "child", "child", "backend", "cut"], rare=["parent", "still"], pause=6.0
    )
    for bounds in (False, False, True):
        world.crew.python(world.network.dsn, bounds=bounds)
    world.run()
