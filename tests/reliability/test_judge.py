"""The judge finds what is wrong in a history, and nothing in one that is right."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.reliability.history import digest, lines, merged, write
from tests.reliability.judge import PROMISES, Event, History, figures, recoveries, verdicts
from tests.reliability.planted import history
from tests.support import ROOT

LOST, ROLLED_BACK, INVENTED, ONCE, EFFECT, UNIQUE, SEQUENCE, AGAIN = PROMISES


def violated(events: dict[str, Event]) -> dict[str, list[Any]]:
    """The promises that do not hold, with the ids."""
    found = verdicts(History(events.values()))
    return {v.promise: [which for which, _ in v.found] for v in found if v.found}


def test_a_history_of_faults_that_did_no_harm_has_no_violation() -> None:
    assert [v.word for v in verdicts(History(history().values()))] == ["holds"] * len(PROMISES)


PLANTED: dict[str, tuple[Callable[[dict[str, Event]], Any], dict[str, list[Any]]]] = {
    "lost": (lambda h: [h.pop("start 1"), h.pop("start 1 again"), h.pop("end 1")], {LOST: [1]}),
    "lost with its worker": (lambda h: [h.pop("start 1 again"), h.pop("end 1")], {LOST: [1], AGAIN: [1]}),
    "lost before it began": (lambda h: [h.pop("start 11"), h.pop("left 11")], {LOST: [11]}),
    "lost, of equal ones": (lambda h: [h.pop("start 6"), h.pop("end 6")], {LOST: ["u"]}),
    "rolled back and run": (lambda h: h.update(more={**h["start 10"], "op": 2}), {ROLLED_BACK: [2]}),
    "abandoned and run": (lambda h: h.update(more={**h["start 10"], "op": 9}), {ROLLED_BACK: [9]}),
    "invented": (lambda h: h.update(more={**h["start 10"], "op": 99}), {INVENTED: [99]}),
    "once, and twice": (lambda h: h.update(more={**h["start 11"], "t": 9, "process": 20}), {ONCE: [11]}),
    "an effect twice": (lambda h: h.update(more={**h["effect 8"], "attempt": 2}), {EFFECT: [8]}),
    "done without its effect": (lambda h: h.pop("effect 8"), {EFFECT: [8]}),
    "unique, and two": (lambda h: h.update(more={**h["start 6"], "op": 7, "job": 107}), {UNIQUE: ["u"]}),
    "out of order": (lambda h: (h["start 5"].update(t=7.35), h["end 5"].update(t=7.36)), {SEQUENCE: [5]}),
    "two at once": (lambda h: h["start 5"].update(t=7.5), {SEQUENCE: [5]}),
    "recovered late": (lambda h: (h["start 1 again"].update(t=9.1), h["end 1"].update(t=9.2)), {AGAIN: [1]}),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_found_with_its_id_and_nothing_else(name: str) -> None:
    plant, expected = PLANTED[name]
    events = history()
    plant(events)
    assert violated(events) == expected


def test_each_promise_is_broken_here() -> None:
    assert {promise for _, promises in PLANTED.values() for promise in promises} == PROMISES.keys()


def test_unique_adds_that_were_answered_after_the_first_job_began_may_make_another() -> None:
    events = history()
    events["ok 7"]["t"] = 9.05
    events["more"] = {**events["start 6"], "op": 7, "job": 107, "t": 9.2}
    assert violated(events) == {}


def test_jobs_of_a_sequence_overlap_without_blame_if_a_process_was_suspended() -> None:
    events = history()
    events["start 5"].update(t=7.55, process=30)
    events["freeze"] = {"what": "fault", "name": "freeze", "t": 7.5, "processes": [20]}
    assert violated(events) == {}


def test_a_promise_without_such_jobs_is_not_judged() -> None:
    events = {name: e for name, e in history().items() if e.get("op") not in (3, 11)}
    assert [v.word for v in verdicts(History(events.values())) if v.promise == ONCE] == ["not judged"]


def test_recovery_is_from_the_kill_to_the_next_begin_elsewhere() -> None:
    (kill,) = recoveries(History(history().values()))
    assert (kill.name, kill.times, kill.not_again) == ("kill", 1, [])
    assert kill.again == pytest.approx([3.5])
    assert kill.next_done == pytest.approx([3.6])


def test_a_suspended_job_that_was_given_to_no_other_ended_where_it_was() -> None:
    events = history()
    events["freeze"] = {"what": "fault", "name": "freeze", "t": 7.5, "processes": [20]}
    _, freeze = recoveries(History(events.values()))
    assert (freeze.stayed, freeze.again, freeze.not_again) == (1, [], [])


def test_the_documented_time_is_counted_from_the_last_fault() -> None:
    events = history()
    events["start 1 again"].update(t=9.1)
    events["end 1"].update(t=9.2)
    events["another"] = {"what": "fault", "name": "kill", "t": 5.0, "processes": [40]}
    assert violated(events) == {}
    events["another"]["t"] = 9.05
    assert violated(events) == {AGAIN: [1]}


def test_what_did_not_begin_again_is_counted_with_how_long_it_was_watched() -> None:
    events = history()
    del events["start 1 again"], events["end 1"]
    events["left 1"] = {**events["left 12"], "op": 1, "state": "locked"}
    assert violated(events) == {AGAIN: [1]}
    (kill,) = recoveries(History(events.values()))
    assert (kill.again, kill.not_again) == ([], pytest.approx([9.0]))
    assert figures(History(events.values()))["not done in the end"] == 2


def test_a_run_that_a_crash_took_back_was_not_running_when_its_process_died_after_the_job_was_done() -> None:
    events = history()
    events["claim taken back"] = {**events["start 3"], "t": 2.05, "op": 1, "process": 10, "attempt": 0}
    events["start 1 again"].update(t=2.3, process=10)
    events["end 1"].update(t=2.4, process=10)
    assert violated(events) == {}
    (kill,) = recoveries(History(events.values()))
    assert (kill.again, kill.not_again) == ([], [])


def test_figures_count_what_is_no_promise() -> None:
    found = figures(History(history().values()))
    assert {name: count for name, count in found.items() if count} == {
        "adds acknowledged": 9,
        "adds rolled back": 1,
        "adds abandoned with their producer": 1,
        "adds with an error, or no answer": 1,
        "of these, jobs that ran": 1,
        "runs begun": 9,
        "jobs begun twice": 1,
        "not done in the end": 1,
        "ended without success": 1,
    }


def test_a_file_is_checked_again_with_nothing_but_python(tmp_path: Path) -> None:
    """The standard library alone: python -S sees no package that was installed."""
    events = history()
    write(events.values(), tmp_path / "good.jsonl.gz")
    command = [sys.executable, "-S", "-m", "tests.reliability", "check", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    del events["effect 8"]
    (tmp_path / "bad.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events.values()))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "8 is done, without its effect" in done.stdout


def test_what_was_written_is_read_back_in_order_and_equal_events_make_equal_files(tmp_path: Path) -> None:
    events = [{**event, "t": event["t"] + 1.7e9} for event in history().values()]
    write(events, tmp_path / "a.jsonl.gz")
    write(events, tmp_path / "b.jsonl.gz")
    assert digest(tmp_path / "a.jsonl.gz") == digest(tmp_path / "b.jsonl.gz")
    assert list(lines(tmp_path / "a.jsonl.gz")) == events
    read = merged([tmp_path / "a.jsonl.gz"])
    assert [event["t"] for event in read] == sorted(event["t"] for event in history().values())
