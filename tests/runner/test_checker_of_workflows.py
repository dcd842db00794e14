"""The torture's checker notices what is wrong with workflows, rates and ticks: it is given a record in which
one thing is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.checker import Event, figures, violations
from tests.support.checker_of_workflows import WORKFLOWS


def record() -> dict[str, Event]:
    """Nothing is wrong with this one. Job 2 depends on job 1, job 3 is a trip, jobs 4 and 5 are ticks."""
    add = {"what": "add", "outcome": "ok", "key": None, "began": 1.0, "t": 1.1}
    begin = {
        "what": "begin", "run": 1, "pid": 11, "parent": 10, "task": "plain", "sequence": None, "queue": None,
    }  # fmt: skip
    final = {
        "what": "final", "t": 99.0, "task": "plain", "state": "completed", "delivery": "at_least_once",
        "effects": [], "run": 1,
    }  # fmt: skip
    tick = {**final, "task": "ticked", "schedule": "ticks"}
    signal = {"what": "signal", "id": 3, "name": "go", "outcome": "ok"}
    return {
        "share": {"what": "share", "t": 0.0, "parent": 10, "queue": "narrow", "limit": 1},
        "limit": {"what": "limit", "t": 0.0, "queue": "narrow", "limit": 2},
        "rate": {"what": "rate", "t": 0.0, "queue": "rated", "limit": 2, "period": 1.0},
        "add 1": {**add, "id": 1},
        "add 2": {**add, "id": 2, "after": [[1, "success"]]},
        "add 3": {**add, "id": 3},
        "add 8": {**add, "id": 8},
        "begin 1": {**begin, "t": 2.0, "id": 1, "queue": "narrow"},
        "end 1": {"what": "end", "t": 2.1, "id": 1, "run": 1, "pid": 11},
        "begin 2": {**begin, "t": 3.0, "id": 2, "queue": "narrow"},
        "end 2": {"what": "end", "t": 3.1, "id": 2, "run": 1, "pid": 11},
        "sent": {**signal, "began": 3.5, "t": 3.6, "payload": 7},
        "sent again": {**signal, "began": 3.7, "t": 3.8, "payload": 8},
        "begin 3": {**begin, "t": 4.0, "id": 3, "task": "trip"},
        "step": {"what": "step", "t": 4.1, "id": 3, "run": 1, "name": "booked", "result": 5},
        "wait": {"what": "wait", "t": 4.2, "id": 3, "run": 1, "name": "go", "result": 7},
        "maybe": {"what": "wait", "t": 4.3, "id": 3, "run": 1, "name": "maybe", "result": None},
        "begin 4": {**begin, "t": 5.0, "id": 4, "task": "ticked"},
        "begin 5": {**begin, "t": 6.0, "id": 5, "task": "ticked"},
        "start 1": {"what": "start", "t": 98.0, "queue": "rated", "at": 10.0},
        "start 2": {"what": "start", "t": 98.0, "queue": "rated", "at": 10.5},
        "start 3": {"what": "start", "t": 98.0, "queue": "rated", "at": 11.0},
        "final 1": {**final, "id": 1},
        "final 2": {**final, "id": 2},
        "final 3": {**final, "id": 3, "task": "trip", "steps": {"booked": 5, "go": 7}, "booked": ["booked"]},
        "final 4": {**tick, "id": 4, "due": "2026-11-25T10:00:00.000Z"},
        "final 5": {**tick, "id": 5, "due": "2026-11-25T10:01:00.000Z"},
        "final 8": {**final, "id": 8, "state": "cancelled", "reason": "expired"},
    }


DOCTORED: list[tuple[str, Callable[[dict[str, Event]], Any]]] = [
    ("I14", lambda h: (h["end 1"].update(t=3.05), h["share"].update(limit=2))),
    ("I14", lambda h: h["final 1"].update(state="discarded")),
    ("I14", lambda h: h["add 2"].update(after=[[1, "failure"]])),
    ("I14", lambda h: (h["begin 1"].update(t=4.05), h["end 1"].update(t=4.1), h["add 1"].update(callback=3))),
    ("I15", lambda h: h["start 3"].update(at=10.9)),
    ("I16", lambda h: h["step"].update(result=6)),
    ("I16", lambda h: h["step"].update(name="drawn")),
    ("I16", lambda h: h["final 3"].update(booked=["booked", "booked"])),
    ("I16", lambda h: h["final 3"].update(booked=[])),
    ("I18", lambda h: h["wait"].update(result=8)),
    ("I18", lambda h: h["maybe"].update(name="go")),
    ("I18", lambda h: h["sent"].update(outcome="error")),
    ("I19", lambda h: h["end 1"].update(t=3.05) or h["add 2"].update(after=[])),
    ("I20", lambda h: h.update(more={**h["begin 3"], "id": 8})),
    ("I22", lambda h: h["final 5"].update(due="2026-11-25T10:02:00.000Z")),
]


def test_a_record_of_workflows_has_no_violations() -> None:
    assert violations(record().values()) == []


def test_of_two_signals_that_were_sent_at_once_either_may_be_the_first() -> None:
    recorded = record()
    recorded["sent again"].update(began=3.55)
    recorded["wait"].update(result=8)
    assert violations(recorded.values()) == []


def test_a_signal_whose_answer_was_lost_may_have_been_the_first() -> None:
    recorded = record()
    recorded["sent"].update(outcome="unknown")
    assert violations(recorded.values()) == []
    recorded["wait"].update(result=8)
    assert violations(recorded.values()) == []


def test_what_expired_may_have_begun_by_a_claim_that_a_crash_of_the_server_took_back() -> None:
    recorded = record()
    recorded["more"] = {**recorded["begin 3"], "id": 8}
    recorded["crash"] = {"what": "stop", "how": "immediate", "t": 4.0}
    assert violations(recorded.values()) == []


def test_where_the_clock_jumps_handlers_may_overlap_until_a_worker_hears_that_it_is_dead() -> None:
    recorded = record()
    recorded["end 1"].update(t=3.05)
    recorded["add 2"].update(after=[])
    assert violations(recorded.values()) != []
    recorded["jump"] = {"what": "jump", "t": 2.5, "offset": 600.0}
    assert violations(recorded.values()) == []


@pytest.mark.parametrize(
    ("invariant", "doctor"), DOCTORED, ids=[f"{name}-{n}" for n, (name, _) in enumerate(DOCTORED)]
)
def test_what_is_wrong_with_a_workflow_is_noticed(
    invariant: str, doctor: Callable[[dict[str, Event]], Any]
) -> None:
    doctored = copy.deepcopy(record())
    doctor(doctored)
    found = violations(doctored.values())
    assert {line.split(":")[0] for line in found} == {invariant}, found


def test_every_rule_is_broken_here_once() -> None:
    assert {name for name, _ in DOCTORED} == {rule.__name__.split("_")[0].upper() for rule in WORKFLOWS}


def test_figures_count_what_was_done_and_who_was_killed() -> None:
    kills = [{"what": "kill", "how": how} for how in ("parent", "child", "child")]
    stops = [{"what": "stop", "how": how} for how in ("immediate", "killed backend")]
    counted = figures([*record().values(), *kills, *stops])
    assert counted["operations"] == 16
    assert counted["kill -9"] == 4
    assert (counted["killed: child"], counted["server stopped"]) == (2, 1)
