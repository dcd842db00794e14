"""What is exported is EDN, and says what the history says: read by a reader of its own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.reliability.edn import export
from tests.reliability.history import found, lines
from tests.reliability.judge import Event, History
from tests.reliability.page import PAGE
from tests.reliability.planted import history

TOKEN = re.compile(r'[\s,]*([{}\[\]]|"(?:[^"\\]|\\.)*"|[^\s,{}\[\]]+)')


def read(text: str) -> Any:
    """EDN: maps, vectors, keywords (with their colon), strings, integers, nil."""
    tokens = TOKEN.findall(text)
    value = _value(tokens)
    assert not tokens
    return value


def _value(tokens: list[str]) -> Any:
    token = tokens.pop(0)
    if token in "{[":
        items: list[Any] = []
        while tokens[0] not in "}]":
            items.append(_value(tokens))
        assert tokens.pop(0) == {"{": "}", "[": "]"}[token]
        return dict(zip(items[::2], items[1::2], strict=True)) if token == "{" else items
    if token.startswith('"'):
        return token[1:-1]
    return None if token == "nil" else token if token.startswith(":") else int(token)


def exported(events: dict[Any, Event], tmp_path: Path) -> dict[str, list[dict[str, Any]]]:
    paths = export(History(events.values()), tmp_path)
    return {path.stem: [read(line) for line in path.read_text().splitlines()] for path in paths}


def check_processes(ops: list[dict[str, Any]]) -> None:
    assert [op[":index"] for op in ops] == list(range(len(ops)))
    assert [op[":time"] for op in ops] == sorted(op[":time"] for op in ops)
    last: dict[int, Any] = {}
    for op in ops:
        before = last.get(op[":process"], {":type": ":ok"})
        if op[":type"] == ":invoke":
            assert before[":type"] in (":ok", ":fail")
        else:
            assert (before[":type"], before[":f"]) == (":invoke", op[":f"])
        last[op[":process"]] = op


@pytest.mark.parametrize("name", ["queue", "list-append"])
def test_a_process_does_one_thing_after_another_and_nothing_after_an_info(name: str, tmp_path: Path) -> None:
    """As Jepsen wants its histories."""
    check_processes(exported(history(), tmp_path)[name])


def total_queue(ops: list[dict[str, Any]]) -> dict[str, set[int]]:
    """What jepsen.checker/total-queue computes."""
    of = {
        (kind, f): Counter(op[":value"] for op in ops if (op[":type"], op[":f"]) == (kind, f))
        for kind in (":invoke", ":ok")
        for f in (":enqueue", ":dequeue")
    }
    attempts, acknowledged, out = of[":invoke", ":enqueue"], of[":ok", ":enqueue"], of[":ok", ":dequeue"]
    return {
        "lost": set(acknowledged - out),
        "unexpected": {value for value in out if value not in attempts},
        "duplicated": {value for value, count in out.items() if count > 1},
    }


def test_a_queue_checker_finds_what_is_lost_and_what_is_unexpected(tmp_path: Path) -> None:
    events = history()
    assert total_queue(exported(events, tmp_path)["queue"]) == {
        "lost": {11, 12},  # lost visibly with its worker, and still to run
        "unexpected": set(),
        "duplicated": set(),
    }
    events["more"] = {**events["start 10"], "op": 99}
    events["end of more"] = {**events["end 10"], "op": 99}
    del events["start 1 again"], events["end 1"]
    assert total_queue(exported(events, tmp_path)["queue"]) == {
        "lost": {1, 11, 12},
        "unexpected": {99},
        "duplicated": set(),
    }


def test_lists_have_each_add_and_in_the_end_a_read_of_what_ran(tmp_path: Path) -> None:
    events = history()
    events["more"] = {**events["start 10"], "op": 2}  # rolled back
    events["more of 3"] = {**events["start 3"], "t": 5.0}
    ops = exported(events, tmp_path)["list-append"]
    values = {(op[":type"], *map(str, op[":value"][0])) for op in ops}
    assert {
        (":ok", ":append", "s", "4"), (":ok", ":append", "s", "5"), (":fail", ":append", "job 2", "2"),
        (":fail", ":append", "job 9", "9"), (":info", ":append", "job 10", "10"),
    } <= values  # fmt: skip
    reads = {op[":value"][0][1]: op[":value"][0][2] for op in ops
             if op[":type"] == ":ok" and op[":value"][0][0] == ":r"}  # fmt: skip
    assert reads == {
        "s": [4, 5], "job 1": [1], "job 2": [2], "job 3": [3, 3], "job 8": [8], "job 9": [], "job 10": [10],
        "job 11": [11],
    }  # fmt: skip


def anomalies(ops: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """What Elle finds for lists that are read once, after all appends."""
    appends: dict[tuple[str, int], list[tuple[str, int]]] = {}
    seen: set[tuple[str, str]] = set()
    for op in ops:
        (f, name, value), *_ = op[":value"]
        if f == ":append":
            appends.setdefault((name, value), []).append((op[":type"], op[":time"]))
        elif op[":type"] == ":ok":
            asked = {n: times for (of, n), times in appends.items() if of == name}
            if len(set(value)) < len(value):
                seen.add(("duplicate elements", name))
            if any(asked[n][-1][0] == ":fail" for n in value):
                seen.add(("aborted read", name))
            if any(times[-1][0] == ":ok" and n not in value for n, times in asked.items()):
                seen.add(("lost append", name))
            if any(asked[later][-1][1] < asked[one][0][1] for one, later in pairwise(value)):
                seen.add(("order against real time", name))
    return seen


@pytest.mark.parametrize(
    ("plant", "anomaly"),
    [
        (lambda h: h.update(more={**h["start 10"], "op": 2}), ("aborted read", "job 2")),
        (lambda h: h.update(more={**h["start 3"], "t": 5.0}), ("duplicate elements", "job 3")),
        (lambda h: h.update(more={**h["effect 8"], "attempt": 2}), ("duplicate elements", "job 8")),
        (lambda h: [h.pop("start 1"), h.pop("start 1 again")], ("lost append", "job 1")),
        (lambda h: h["start 5"].update(t=7.35), ("order against real time", "s")),
    ],
)
def test_a_checker_of_lists_finds_planted_violations(
    plant: Callable[[dict[str, Event]], Any], anomaly: tuple[str, str], tmp_path: Path
) -> None:
    events = history()
    assert anomalies(exported(events, tmp_path)["list-append"]) == set()
    plant(events)
    assert anomalies(exported(events, tmp_path)["list-append"]) == {anomaly}


@pytest.mark.parametrize("name", sorted(found(PAGE.parent / "reliability")))
def test_the_committed_histories_are_exported_and_say_the_same_there(name: str, tmp_path: Path) -> None:
    events = list(lines(found(PAGE.parent / "reliability")[name]))
    h = History(events)
    ops = exported(dict(enumerate(events)), tmp_path)
    for exported_ops in ops.values():
        check_processes(exported_ops)
    seen = total_queue(ops["queue"])
    assert seen["unexpected"] == set()
    assert all(op in h.left for op in seen["lost"])
    assert seen["duplicated"] <= {op for op, starts in h.starts.items() if len(starts) > 1}
    assert anomalies(ops["list-append"]) == set()
    kinds = Counter(op[":type"] for op in ops["list-append"])
    assert kinds[":fail"] == sum(h.phase(op) in ("rolled back", "abandoned") for op in h.adds)
