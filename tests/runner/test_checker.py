"""The torture's checker notices each kind of violation: it is given histories in which one
invariant is broken."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.checker import FENCE, INVARIANTS, Event, violations


def job(job_id: int, state: str = "running", **more: Any) -> Event:
    return {
        "id": job_id,
        "state": state,
        "run": 1,
        "key": None,
        "unique": None,
        "sequence": None,
        "queue": None,
        "worker": 10,
        "since": 0.5,
    } | more


def history() -> dict[str, Event]:
    """Nothing is wrong with this one; its events by names. Worker 10 has the process 11, which is
    killed while it runs job 1."""
    no_lane = {"task": "plain", "sequence": None, "queue": None, "pid": 11, "parent": 10}
    no_key = {"what": "add", "outcome": "ok", "key": None}
    final = {
        "what": "final", "t": 99.0, "task": "plain", "state": "completed", "delivery": "at_least_once",
        "effects": [],
    }  # fmt: skip
    return {
        "limit": {"what": "limit", "t": 0.0, "queue": "narrow", "limit": 2},
        "add 1": {**no_key, "began": 1.0, "t": 1.1, "id": 1, "key": "k"},
        "add 2": {**no_key, "began": 1.2, "t": 1.3, "id": 2},
        "add 3": {**no_key, "began": 1.4, "t": 1.5, "id": 3},
        "add 4": {**no_key, "began": 1.6, "t": 1.7, "id": 4, "outcome": "rolled back"},
        "add 5": {**no_key, "began": 1.6, "t": 1.8, "id": None, "outcome": "unknown"},
        "begin 1": {"what": "begin", "t": 2.0, "id": 1, "run": 1, **no_lane},
        "sample": {
            "what": "sample",
            "t": 2.1,
            "views": [["jobs", 3, 3]],
            "jobs": [
                job(1, key="k", unique="u"),
                job(2, "available", sequence="s"),
                job(3, "pending", sequence="s"),
            ],
        },
        "kill": {"what": "kill", "t": 2.2, "pid": 11, "parent": 10, "how": "child"},
        "begin 1 again": {
            "what": "begin",
            "t": 4.0,
            "id": 1,
            "run": 2,
            **no_lane,
            "task": "effect",
            "pid": 12,
        },
        "end 1": {"what": "end", "t": 4.1, "id": 1, "run": 2, "pid": 12},
        "begin 2": {
            "what": "begin",
            "t": 5.0,
            "id": 2,
            "run": 1,
            **no_lane,
            "sequence": "s",
            "queue": "q",
            "pid": 12,
        },
        "end 2": {"what": "end", "t": 5.1, "id": 2, "run": 1, "pid": 12},
        "begin 3": {
            "what": "begin",
            "t": 6.0,
            "id": 3,
            "run": 1,
            **no_lane,
            "sequence": "s",
            "queue": "q",
            "pid": 12,
        },
        "end 3": {"what": "end", "t": 6.1, "id": 3, "run": 1, "pid": 12},
        "add 9": {**no_key, "began": 58.0, "t": 58.1, "id": 9},
        "begin 9": {"what": "begin", "t": 59.0, "id": 9, "run": 1, **no_lane, "pid": 12},
        "end 9": {"what": "end", "t": 59.1, "id": 9, "run": 1, "pid": 12},
        "late sample": {"what": "sample", "t": 60.0, "views": [["jobs", 1, 1]], "jobs": [job(7, worker=13)]},
        "final 1": {**final, "id": 1, "run": 2, "task": "effect", "effects": [2]},
        "final 2": {**final, "id": 2, "run": 1, "delivery": "at_most_once"},
        "final 3": {**final, "id": 3, "run": 1, "schedule": "daily", "due": "Monday"},
        "final 9": {**final, "id": 9, "run": 1},
        # the one in doubt
        "final 6": {**final, "id": 6, "run": 1, "state": "cancelled", "schedule": "daily", "due": "Tuesday"},
    }


def test_a_history_of_faults_that_did_no_harm_has_no_violations() -> None:
    assert violations(history().values()) == []


def test_with_no_worker_there_to_look_the_jobs_of_the_dead_stay_with_them() -> None:
    recorded = history()
    recorded["kill"].update(pid=13)
    recorded["begin 9"].update(parent=14)
    assert violations(recorded.values()) == []


def test_a_worker_that_has_the_number_of_a_process_that_was_killed_before_it_started_is_not_dead() -> None:
    recorded = history()
    recorded["kill"].update(pid=13)
    recorded["late sample"]["jobs"][0].update(since=50.0)
    assert violations(recorded.values()) == []


DOCTORED: list[tuple[str, Callable[[dict[str, Event]], Any]]] = [
    ("I1", lambda h: h["kill"].update(pid=13)),
    ("I2", lambda h: h["sample"]["jobs"][1].update(key="k")),
    ("I3", lambda h: h["sample"]["jobs"][2].update(state="available")),
    ("I3", lambda h: (h["end 2"].update(t=6.05), h["begin 3"].update(queue=None))),
    ("I3", lambda h: (h["begin 3"].update(t=4.5), h["end 3"].update(t=4.6))),
    ("I4", lambda h: h.pop("final 2")),
    ("I4", lambda h: h.update(more={**h["final 6"], "id": 8, "due": "Friday"})),
    (
        "I5",
        lambda h: h.update(
            more={**h["begin 2"], "t": 7.0, "run": 2}, final=h["final 2"].update(run=2) or h["final 2"]
        ),
    ),
    ("I6", lambda h: h.pop("begin 3")),
    ("I6", lambda h: h["final 6"].update(state="retryable")),
    ("I7", lambda h: h["begin 1 again"].update(run=1)),
    ("I7", lambda h: h["late sample"]["jobs"].append(job(1, run=0))),
    (
        "I7",
        lambda h: (
            h["begin 2"].update(run=2),
            h["end 2"].update(run=2),
            h["final 2"].update(run=2),
            h.update(
                retry={"what": "retry", "outcome": "ok", "id": 2, "began": 5.2, "t": 5.3},
                late={**h["begin 2"], "t": 7.0, "run": 1},
            ),
        ),
    ),
    ("I8", lambda h: h["final 6"].update(due="Monday")),
    ("I9", lambda h: h["final 1"].update(run=1, effects=[])),
    ("I9", lambda h: h["final 1"].update(effects=[1, 2])),
    ("I9", lambda h: h["final 1"].update(effects=[1])),
    ("I10", lambda h: h.update(more={**h["final 6"], "id": 4, "due": "Friday"}, doubt={**h["add 5"]})),
    ("I10", lambda h: h.update(more={**h["begin 3"], "id": 4, "sequence": None, "queue": None})),
    ("I11", lambda h: h["sample"].update(views=[["jobs", 3, 2]])),
    ("I12", lambda h: h["sample"]["jobs"][1].update(unique="u")),
    ("I13", lambda h: (h["begin 3"].update(sequence=None, t=5.05), h["begin 2"].update(sequence=None))),
    ("I13", lambda h: [each.update(queue="q", state="running") for each in h["sample"]["jobs"][:2]]),
    (
        "I13",
        lambda h: [
            each.update(queue="narrow", state="running", sequence=None) for each in h["sample"]["jobs"]
        ],
    ),
]


def test_what_a_crash_of_the_server_takes_back_of_a_claim_is_claimed_again_under_the_same_number() -> None:
    doctored = history() | {"crash": {"what": "stop", "t": 3.0, "how": "immediate"}}
    doctored["begin 1 again"]["run"] = doctored["end 1"]["run"] = doctored["final 1"]["run"] = 1
    doctored["final 1"]["effects"] = [1]
    assert violations(doctored.values()) == []
    doctored["begin 1"]["queue"] = "q"
    assert [line.split(":")[0] for line in violations(doctored.values())] == ["I7"]


def test_a_job_whose_claim_a_crash_took_back_may_be_cancelled_though_it_has_begun() -> None:
    doctored = history() | {"crash": {"what": "stop", "t": 3.9, "how": "immediate"}}
    doctored["final 1"].update(state="cancelled", run=1, effects=[])
    assert violations(doctored.values()) == []
    doctored["begin 1 again"]["queue"] = "q"
    assert [line.split(":")[0] for line in violations(doctored.values())] == ["I9"]
    doctored["begin 1 again"]["queue"] = None
    doctored["final 1"]["delivery"] = "at_most_once"
    assert "I9" in [line.split(":")[0] for line in violations(doctored.values())]


def test_a_process_that_stood_still_may_begin_late_what_others_have_done_since() -> None:
    recorded = history()
    assert violations([*recorded.values(), {**recorded["begin 1"], "t": 8.0}])[0].startswith(
        "I7: job 1 began twice"
    )
    late = {**recorded["begin 1"], "t": 8.0}
    del recorded["begin 1"]
    assert violations([*recorded.values(), late]) == []


def test_who_claimed_before_a_crash_may_begin_after_it() -> None:
    doctored = history() | {"crash": {"what": "stop", "t": 1.9, "how": "immediate"}}
    doctored["begin 1 again"]["run"] = doctored["end 1"]["run"] = doctored["final 1"]["run"] = 1
    doctored["final 1"]["effects"] = [1]
    assert violations(doctored.values()) == []
    doctored["crash"]["t"] = 1.9 - FENCE
    assert [line.split(":")[0] for line in violations(doctored.values())] == ["I7"]


def test_after_a_crash_another_job_may_have_the_id_of_an_add_that_was_rolled_back() -> None:
    recorded = history()
    recorded["add 4 again"] = {**recorded["add 4"], "outcome": "ok", "began": 2.5, "t": 2.6}
    recorded["begin 4"] = {**recorded["begin 1"], "id": 4, "t": 2.7}
    recorded["final 4"] = {**recorded["final 3"], "id": 4, "run": 1, "schedule": None}
    assert [line.split(":")[0] for line in violations(recorded.values())] == ["I10"]
    recorded["crash"] = {"what": "stop", "t": 2.4, "how": "immediate"}
    assert violations(recorded.values()) == []


def test_a_handler_without_an_end_ran_while_its_process_is_known_to_have_lived() -> None:
    recorded = history()
    del recorded["end 2"]
    recorded["begin 2"].update(pid=14)
    recorded["kill"].update(pid=14, t=7.0, parent=13)  # the number of another process, by then
    assert violations(recorded.values()) == []
    recorded["kill"].update(parent=10)
    assert [line.split(":")[0] for line in violations(recorded.values())] == ["I3", "I13"]


def test_a_job_may_have_run_more_than_once_before_its_key_made_another_one_of_it() -> None:
    recorded = history()
    recorded["begin 1 again"]["task"] = "plain"
    recorded["add 1 again"] = {**recorded["add 1"], "began": 4.2, "t": 4.3}
    recorded["begin 1 once"] = {**recorded["begin 1"], "t": 4.4, "run": 3, "task": "only_once"}
    recorded["final 1"].update(run=3, effects=[], delivery="at_most_once", task="only_once")
    assert violations(recorded.values()) == []
    began = recorded.pop("begin 1 once")  # or it never began as that
    assert violations(recorded.values()) == []
    recorded["begin 1 once"] = began
    recorded["begin 1 twice"] = {**recorded["begin 1 once"], "t": 4.5, "run": 4}
    recorded["final 1"].update(run=4)
    assert [line.split(":")[0] for line in violations(recorded.values())] == ["I5"]


@pytest.mark.parametrize(
    ("invariant", "doctor"), DOCTORED, ids=[f"{name}-{n}" for n, (name, _) in enumerate(DOCTORED)]
)
def test_a_broken_invariant_is_noticed(invariant: str, doctor: Callable[[dict[str, Event]], Any]) -> None:
    doctored = copy.deepcopy(history())
    doctor(doctored)
    found = violations(event for event in doctored.values())
    assert {line.split(":")[0] for line in found} == {invariant}, found


def test_every_invariant_is_broken_here_once() -> None:
    assert {name for name, _ in DOCTORED} == {
        invariant.__name__.split("_")[0].upper() for invariant in INVARIANTS
    }
