"""An add to a sequence meets the end of the job before it, a halt, or other adds."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from tests.support.api import ids
from tests.support.sequences import ENDS, S, add, drain, now
from tests.support.sequences import impatient as impatient
from tests.support.sequences import running as running
from tests.support.sessions import LEVELS

ORDERS = [
    order
    for order in permutations(["add", "add ends", "finish", "finish ends"])
    if order.index("add") < order.index("add ends") and order.index("finish") < order.index("finish ends")
]


@pytest.mark.parametrize("looking", [False, True], ids=["", "a worker claims all the time"])
@pytest.mark.parametrize(
    ("level", "end"),
    [(LEVELS[0], "commit"), (LEVELS[0], "kill"), (LEVELS[1], "commit"), (LEVELS[2], "rollback")],
)
@pytest.mark.parametrize("order", ORDERS, ids=", ".join)
def test_an_add_that_meets_the_end_of_its_predecessor_is_neither_lost_nor_early(
    impatient: Any, actor: Any, worker: int, running: Any, order: Any, level: str, end: str, looking: bool
) -> None:
    api = impatient
    adder, handler = actor(), actor()
    now(adder)
    now(handler)
    new = None
    ended: set[str] = set()
    for step in order:
        if step == "add":
            adder.begin()
            new = add(adder)[0]
        elif step == "add ends":
            adder.commit()
        elif step == "finish":
            handler.begin(level)
            handler.finish_job(running.id, running.run)
        else:
            getattr(handler, end)()
        ended.add(step)
        if looking and not ({"add ends", "finish ends"} <= ended and end == "commit"):
            assert api.claim_jobs(worker, 10) == []
            api.maintain()
    if end != "commit":
        assert api.claim_jobs(worker, 10) == []
        api.finish_job(running.id, running.run)
    assert ids(api.claim_jobs(worker, 10)) == [new.id]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("by", ["add_job", "add_jobs", "keyed"])
def test_an_add_that_stays_open_neither_delays_nor_is_delayed(
    impatient: Any, actor: Any, worker: int, running: Any, by: str, level: str
) -> None:
    api = impatient
    adder = actor()
    now(adder)
    adder.begin(level)

    def one() -> Any:
        if by == "add_jobs":
            return adder.add_jobs([{"identifier": "t", "sequence_policy": S}])[0]
        return add(adder, **({"job_key": f"k{len(late)}"} if by == "keyed" else {}))[0]

    late: list[Any] = []
    late.append(one())
    second, third = add(api, 2)
    late.append(one())
    api.finish_job(running.id, running.run)
    late.append(one())
    assert api.claim(worker).id == second.id
    late.append(one())
    api.finish(second.id)
    assert api.claim(worker).id == third.id
    adder.commit()
    assert api.claim(worker) is None, "a lower id that commits late waits for the end of what runs"
    api.finish(third.id)
    assert drain(api, worker) == ids(late)


@pytest.mark.parametrize("end", ["rollback", "kill"])
def test_an_add_that_is_rolled_back_leaves_nothing(
    impatient: Any, actor: Any, worker: int, running: Any, end: str
) -> None:
    api = impatient
    adder = actor()
    adder.begin()
    add(adder, 3)
    (kept,) = add(api)
    api.finish_job(running.id, running.run)
    getattr(adder, end)()
    assert drain(api, worker) == [kept.id]


def test_lower_ids_that_commit_late_run_next_and_by_id(impatient: Any, actor: Any, worker: int) -> None:
    api = impatient
    adders = [actor(), actor(), actor()]
    late = []
    for a in adders:
        a.begin()
        late += add(a)
    first, last = add(api, 2)
    assert api.claim(worker).id == first.id
    for a in (adders[2], adders[0]):
        a.commit()
        assert api.claim(worker) is None
    api.finish(first.id)
    assert api.claim(worker).id == late[0].id
    adders[1].commit()
    api.finish(late[0].id)
    assert drain(api, worker) == ids([late[1], late[2], last])


def test_adds_of_several_sessions_to_an_idle_sequence_start_one_job(
    impatient: Any, actor: Any, worker: int
) -> None:
    api = impatient
    adders = [actor() for _ in range(4)]
    jobs = []
    for a in adders:
        now(a)
        a.begin()
        jobs += add(a)
    for a in adders[::-1]:
        a.commit()
        claimed = api.claim_jobs(worker, 10)
        assert ids(claimed) == ([jobs[3].id] if a is adders[3] else [])
    api.finish(jobs[3].id)
    assert drain(api, worker) == ids(jobs[:3])


# Halts against adds -------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["discarded", "cancelled"])
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "not kept"])
@pytest.mark.parametrize("how", ["prune", "maintain"])
def test_an_add_behind_a_halting_job_that_is_just_being_pruned_is_not_stranded(
    api: Any, actor: Any, worker: int, clock: Any, state: str, kept: bool, how: str
) -> None:
    if not kept:
        api.configure(cancelled_retention="0", discarded_retention="0")
    add(api)
    api.fail(api.claim(worker), cancel=state == "cancelled", discard=True)
    p = actor()
    clock.advance(days=50)
    worker = api.register_worker()
    p.begin()
    getattr(p, how)()
    (new,) = add(api)
    assert api.claim(worker) is None
    p.commit()
    assert drain(api, worker) == [new.id]


@pytest.mark.parametrize("end", ENDS)
def test_an_add_meets_a_halt_that_is_not_committed(
    impatient: Any, actor: Any, worker: int, running: Any, end: str
) -> None:
    api = impatient
    w = actor()
    w.begin()
    w.fail(running, discard=True)
    (new,) = add(api)
    assert (new.sequence_halted_by, api.claim(worker)) == (None, None)
    getattr(w, end)()
    if end == "commit":
        assert api.claim(worker) is None
        assert api.get_job(new.id).sequence_halted_by == running.id
    else:
        api.finish_job(running.id, running.run)
        assert drain(api, worker) == [new.id]
