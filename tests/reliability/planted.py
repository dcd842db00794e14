"""A short history, written by hand, in which faults do no harm: tests plant a violation in it."""

from __future__ import annotations

from typing import Any

Event = dict[str, Any]


def history() -> dict[str, Event]:
    """By name. Jobs: 1 plain, and run again after a kill; 2 rolled back; 3 once; 4 and 5 a sequence; 6 and 7
    unique; 8 with an effect; 9 abandoned; 10 in doubt; 11 once, lost with its worker; 12 still to run."""

    def add(t: float, op: int, kind: str, **more: Any) -> Event:
        return {"what": "add", "phase": "invoke", "t": t, "op": op, "kind": kind, "key": None} | more

    def said(t: float, op: int, phase: str) -> Event:
        return {"what": "add", "phase": phase, "t": t, "op": op}

    def run(what: str, t: float, op: int, process: int = 20, attempt: int = 1) -> Event:
        return {"what": what, "t": t, "op": op, "job": 100 + op, "attempt": attempt, "process": process}

    return {
        "about": {"what": "about", "t": 0.0, "contender": "by hand", "recovery": "4 s", "within": 4},
        "add 1": add(1.0, 1, "plain"), "ok 1": said(1.1, 1, "ok"),
        "add 2": add(1.2, 2, "plain"), "back 2": said(1.3, 2, "rolled back"),
        "add 3": add(1.4, 3, "once"), "ok 3": said(1.5, 3, "ok"),
        "start 1": run("start", 2.0, 1, process=10),
        "start 11": run("start", 2.1, 11, process=10),
        "start 3": run("start", 2.2, 3), "end 3": run("end", 2.3, 3),
        "add 11": add(1.6, 11, "once"), "ok 11": said(1.7, 11, "ok"),
        "kill": {"what": "fault", "name": "kill", "t": 3.0, "processes": [10]},
        "exit": {"what": "process", "phase": "exit", "t": 3.1, "process": 10, "told": True},
        "start 1 again": run("start", 6.5, 1, attempt=2), "end 1": run("end", 6.6, 1, attempt=2),
        "add 4": add(7.0, 4, "sequence", key="s"), "ok 4": said(7.1, 4, "ok"),
        "add 5": add(7.2, 5, "sequence", key="s"), "ok 5": said(7.3, 5, "ok"),
        "start 4": run("start", 7.4, 4), "end 4": run("end", 7.6, 4),
        "start 5": run("start", 7.6, 5), "end 5": run("end", 7.8, 5),
        "add 6": add(8.0, 6, "unique", key="u"), "ok 6": said(8.1, 6, "ok"),
        "add 7": add(8.0, 7, "unique", key="u"), "ok 7": said(8.2, 7, "ok"),
        "start 6": run("start", 9.0, 6), "end 6": run("end", 9.1, 6),
        "add 8": add(9.2, 8, "effect"), "ok 8": said(9.3, 8, "ok"),
        "start 8": run("start", 9.4, 8), "end 8": run("end", 9.5, 8),
        "add 9": add(9.6, 9, "plain"), "gone 9": said(9.7, 9, "abandoned"),
        "add 10": add(9.8, 10, "plain"), "doubt 10": said(9.9, 10, "unknown"),
        "start 10": run("start", 10.0, 10), "end 10": run("end", 10.1, 10),
        "add 12": add(10.2, 12, "plain"), "ok 12": said(10.3, 12, "ok"),
        "left 11": {"what": "left", "t": 11.0, "op": 11, "state": "discarded, lost", "live": False},
        "left 12": {"what": "left", "t": 11.0, "op": 12, "state": "available", "live": True},
        "effect 8": {"what": "effect", "t": 11.1, "op": 8, "attempt": 1},
        "finish": {"what": "finish", "t": 12.0},
    }  # fmt: skip
