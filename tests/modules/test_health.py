"""Promises of worker_health."""

from __future__ import annotations

from typing import Any


def healths(db: Any, worker: str | None = None) -> list[tuple[bool, bool]]:
    return db.execute(
        "select live, ready from pyworker.worker_health(%s) order by worker_id", [worker]
    ).fetchall()


def test_a_worker_is_live_until_its_lease_is_over_and_again_when_it_beats(
    db: Any, worker: int, clock: Any
) -> None:
    assert healths(db) == [(True, True)]
    clock.advance(seconds=21)
    assert healths(db) == [(False, False)]
    db.execute("select pyworker.heartbeat(%s)", [worker])
    assert healths(db) == [(True, True)]


def test_a_worker_that_holds_a_lock_is_live_while_its_session_is(db: Any, worker: int, session: Any) -> None:
    one = session()
    assert one.value("select pyworker.hold_worker_lock(%s)", [worker])
    assert healths(db) == [(True, True)]
    one.kill()
    assert healths(db) == [(False, False)]


def test_the_dead_are_told_of_by_id_only(db: Any) -> None:
    (worker,) = db.execute("""select pyworker.register_worker('{"name": "x"}')""").fetchone()
    db.execute("select pyworker.unregister_worker(%s)", [worker])
    assert (healths(db), healths(db, "x"), healths(db, str(worker))) == ([], [], [(False, False)])


def test_a_condition_is_told_and_one_that_is_unknown_means_nothing(db: Any, worker: int) -> None:
    for condition, health in {
        "starting": (True, False), "stopping": (True, False), "refused": (True, False),
        "stuck": (False, False), "well": (True, True),
    }.items():  # fmt: skip
        db.execute(
            "select pyworker.update_worker(%s, jsonb_build_object('condition', %s::text))",
            [worker, condition],
        )
        assert healths(db) == [health]
