"""Judges a history by itself: which promises held, and what it shows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

Event = dict[str, Any]
Found = Iterator[tuple[Any, str]]  # the op or key, and what is wrong with it


class History:
    def __init__(self, events: Iterable[Event]) -> None:
        self.events = sorted(events, key=lambda event: event["t"])
        self.about: Event = next((e for e in self.events if e["what"] == "about"), {})
        self.until = self.events[-1]["t"] if self.events else 0.0
        self.adds = {e["op"]: e for e in self.of("add") if e["phase"] == "invoke"}
        self.outcomes = {e["op"]: e for e in self.of("add") if e["phase"] != "invoke"}
        self.starts: dict[int, list[Event]] = defaultdict(list)
        self.ends: dict[int, list[Event]] = defaultdict(list)
        for event in self.of("start"):
            self.starts[event["op"]].append(event)
        for event in self.of("end"):
            self.ends[event["op"]].append(event)
        self.left = {e["op"]: e for e in self.of("left")}
        self.effects = Counter(e["op"] for e in self.of("effect"))
        self.faults = [e for e in self.of("fault") if e.get("phase") != "over"]
        self.deaths: dict[int, float] = {}
        for event in self.faults:
            if event["name"] in ("kill", "producer"):
                self.deaths |= dict.fromkeys(event["processes"], event["t"])
        for event in self.of("process"):
            if event["phase"] == "exit":
                self.deaths.setdefault(event["process"], event["t"])

    def of(self, what: str) -> list[Event]:
        return [event for event in self.events if event["what"] == what]

    def phase(self, op: int) -> str:
        return self.outcomes.get(op, {}).get("phase", "unknown")

    def acknowledged(self, *kinds: str) -> list[int]:
        return [op for op, add in self.adds.items() if add["kind"] in kinds and self.phase(op) == "ok"]

    def keys(self, kind: str) -> dict[Any, list[int]]:
        """The ops of each key, in the order of their calls."""
        found: dict[Any, list[int]] = defaultdict(list)
        for op, add in self.adds.items():
            if add["kind"] == kind:
                found[add["key"]].append(op)
        return found

    def end_of(self, start: Event) -> float:
        """When this run ended: as its handler recorded, or when its process began the job again or died."""
        same = "attempt", "process", "job"
        for end in self.ends[start["op"]]:
            if end["t"] >= start["t"] and all(end.get(name) == start.get(name) for name in same):
                return end["t"]
        again = [
            other["t"]
            for other in self.starts[start["op"]]
            if other["process"] == start["process"] and other["t"] > start["t"]
        ]
        if (died := self.deaths.get(start["process"])) is not None:
            again.append(died)
        return max(start["t"], min(again, default=start["t"]))

    def suspended(self, process: int, begin: float, end: float) -> bool:
        return any(
            fault["name"] == "freeze" and process in fault["processes"] and begin <= fault["t"] <= end
            for fault in self.faults
        )

    def running_at(self, fault: Event) -> list[Event]:
        """What ran in the processes that the fault hit, and had not been done before it struck."""
        hit = set(fault["processes"])
        return [
            start
            for starts in self.starts.values()
            for start in starts
            if start["process"] in hit
            and start["t"] <= fault["t"] <= self.end_of(start)
            and not any(end["t"] <= fault["t"] for end in self.ends[start["op"]])
        ]


def acknowledged_adds_are_not_lost(h: History) -> Found:
    """An acknowledged job has run to its end, or its queue still has it."""
    for op in h.acknowledged("plain", "sequence", "effect"):
        if not h.ends[op] and op not in h.left:
            yield op, "was acknowledged, has not run to its end, and is nowhere"
    for op in h.acknowledged("once"):
        if not h.starts[op] and op not in h.left:
            yield op, "was acknowledged, never began, and is nowhere"
    for key, ops in h.keys("unique").items():
        if any(h.phase(op) == "ok" for op in ops) and not any(h.starts[op] or op in h.left for op in ops):
            yield key, "was acknowledged, and no job with this key began"


def rolled_back_adds_do_not_run(h: History) -> Found:
    """Nor do those whose producer was killed before it asked for the commit."""
    for op in h.adds:
        if h.phase(op) in ("rolled back", "abandoned") and h.starts[op]:
            yield op, f"was {h.phase(op)}, and began"


def no_job_is_invented(h: History) -> Found:
    for op in h.starts:
        if h.starts[op] and op not in h.adds:
            yield op, "began, and no producer had added it"


def at_most_once(h: History) -> Found:
    """A job of kind once begins once at most."""
    for op, add in h.adds.items():
        if add["kind"] == "once" and len(h.starts[op]) > 1:
            yield op, f"began {len(h.starts[op])} times"


def effects_happen_once(h: History) -> Found:
    """What a handler writes in the transaction that completes its job is there once."""
    for op, add in h.adds.items():
        if add["kind"] == "effect":
            if h.effects[op] > 1:
                yield op, f"had its effect {h.effects[op]} times"
            if h.effects[op] and h.phase(op) in ("rolled back", "abandoned"):
                yield op, f"was {h.phase(op)}, and had its effect"
            if h.ends[op] and not h.effects[op] and op not in h.left:
                yield op, "is done, without its effect"


def unique_adds_make_one_job(h: History) -> Found:
    """Of adds with one key that were all answered before any of their jobs began."""
    for key, ops in h.keys("unique").items():
        begun = {start["job"]: start["t"] for op in ops for start in reversed(h.starts[op])}
        answered = max((h.outcomes[op]["t"] for op in ops if op in h.outcomes), default=h.until)
        if len(begun) > 1 and answered < min(begun.values()):
            yield key, f"made {len(begun)} jobs: {', '.join(map(str, begun))}"


def sequences_keep_their_order(h: History) -> Found:
    """One was acknowledged before the other was added: it begins first. And no two run at once, unless
    one was in a process that was suspended."""
    for key, ops in h.keys("sequence").items():
        begun = sorted((op for op in ops if h.starts[op]), key=lambda op: h.starts[op][0]["t"])
        for one, other in pairwise(begun):
            earlier = h.outcomes.get(other, {})
            if earlier.get("phase") == "ok" and earlier["t"] < h.adds[one]["t"]:
                yield one, f"began before {other} in {key}"
        spans = sorted((s["t"], h.end_of(s), s) for op in ops for s in h.starts[op])
        for (begin, end, one), (later, _, other) in pairwise(spans):
            if later < end and not h.suspended(one["process"], begin, end):
                yield other["op"], f"began while {one['op']} ran in {key}"


SLACK = 2.0  # seconds: a machine under load


def repeatable(h: History, fault: Event) -> list[Event]:
    """The runs that it hit of jobs that may run again."""
    return [start for start in h.running_at(fault) if h.adds.get(start["op"], {}).get("kind") != "once"]


def victims(h: History, fault: Event) -> Iterator[tuple[Event, float | None]]:
    """Runs that a kill or a suspension has hit, and after how many seconds the job began elsewhere. None if
    it did not. A suspended one that ended where it was is none."""
    for start in repeatable(h, fault):
        op, hit = start["op"], fault["processes"]
        later = [s["t"] for s in h.starts[op] if s["t"] > fault["t"] and s["process"] not in hit]
        if later:
            yield start, min(later) - fault["t"]
        elif fault["name"] == "kill" or op in h.left:
            yield start, None


def longest_rest(h: History, begin: float, end: float) -> float:
    """The longest time without another fault: each may hit the worker that has taken the job over."""
    between = [f["t"] for f in h.faults if begin < f["t"] < end and f["name"] != "producer"]
    return max(later - one for one, later in pairwise([begin, *between, end]))


def watched(h: History) -> Iterator[bool]:
    """For each victim: did it begin again, or was there time for it?"""
    within = h.about.get("within", float("inf")) + SLACK
    for fault in h.faults:
        if fault["name"] in ("kill", "freeze"):
            for _, after in victims(h, fault):
                yield after is not None or longest_rest(h, fault["t"], h.until) > within


def dead_workers_jobs_run_again(h: History) -> Found:
    """In the documented time, counted from the last fault."""
    within = h.about.get("within", float("inf")) + SLACK
    for fault in h.faults:
        if fault["name"] in ("kill", "freeze"):
            for start, after in victims(h, fault):
                until = h.until if after is None else fault["t"] + after
                if longest_rest(h, fault["t"], until) > within:
                    word = "did not begin again in" if after is None else "began again after"
                    yield start["op"], f"{word} {until - fault['t']:.1f} s"


PROMISES: dict[str, tuple[Callable[[History], Found], str]] = {
    "no acknowledged add is lost": (acknowledged_adds_are_not_lost, ""),
    "no rolled-back add runs": (rolled_back_adds_do_not_run, ""),
    "no job is invented": (no_job_is_invented, ""),
    "at most once": (at_most_once, "once"),
    "effects once": (effects_happen_once, "effect"),
    "unique adds make one job": (unique_adds_make_one_job, "unique"),
    "sequences in order, one at a time": (sequences_keep_their_order, "sequence"),
    "a dead worker's jobs run in the documented time": (dead_workers_jobs_run_again, "kill"),
}


@dataclass
class Verdict:
    promise: str
    judged: bool  # false: the history has no job of that kind, or is too short
    found: list[tuple[Any, str]] = field(default_factory=list)

    @property
    def word(self) -> str:
        return "violated" if self.found else "holds" if self.judged else "not judged"


def verdicts(h: History) -> list[Verdict]:
    kinds = {add["kind"] for add in h.adds.values()}
    if any(watched(h)):
        kinds.add("kill")
    return [
        Verdict(promise, not kind or kind in kinds, list(judge(h)))
        for promise, (judge, kind) in PROMISES.items()
    ]


@dataclass
class Recovery:
    """After faults of one name."""

    name: str
    times: int = 0
    next_done: list[float] = field(default_factory=list)  # until a job that began later was done
    again: list[float] = field(default_factory=list)  # until what had been running began elsewhere
    not_again: list[float] = field(default_factory=list)  # for how long it was watched, and did not begin
    stayed: int = 0  # jobs that ended where they were, after the pause


def recoveries(h: History) -> list[Recovery]:
    found: dict[str, Recovery] = {}
    done = sorted((start["t"], h.end_of(start)) for op in h.ends for start in h.starts[op] if h.ends[op])
    for fault in h.faults:
        it = found.setdefault(fault["name"], Recovery(fault["name"]))
        it.times += 1
        if after := [end for begin, end in done if begin > fault["t"]]:
            it.next_done.append(min(after) - fault["t"])
        if fault["name"] in ("kill", "freeze"):
            hit = list(victims(h, fault))
            it.stayed += len(repeatable(h, fault)) - len(hit)
            for _, after in hit:
                if after is None:
                    it.not_again.append(h.until - fault["t"])
                else:
                    it.again.append(after)
    return list(found.values())


def figures(h: History) -> dict[str, int]:
    """What is no promise, and worth to know."""
    phases = Counter(h.phase(op) for op in h.adds)
    wanted = h.acknowledged("plain", "sequence", "effect")
    waiting = [op for op in wanted if h.left.get(op, {}).get("live")]
    return {
        "adds acknowledged": phases["ok"],
        "adds rolled back": phases["rolled back"],
        "adds abandoned with their producer": phases["abandoned"],
        "adds with an error, or no answer": phases["unknown"],
        "of these, jobs that ran": sum(h.phase(op) == "unknown" and bool(h.starts[op]) for op in h.adds),
        "runs begun": sum(map(len, h.starts.values())),
        "jobs begun twice": sum(len(starts) > 1 for starts in h.starts.values()),
        "jobs done twice": sum(
            len(ends) > 1 and h.adds.get(op, {}).get("kind") != "effect" for op, ends in h.ends.items()
        ),
        "not done in the end": sum(not h.ends[op] for op in waiting),
        "of these, never begun, in a sequence": sum(
            not h.starts[op] and h.adds[op]["kind"] == "sequence" for op in waiting
        ),
        "done, and still to run in the end": sum(bool(h.ends[op]) for op in waiting),
        "ended without success": sum(op in h.left and not h.left[op]["live"] for op in h.adds),
        "processes that ended by themselves": sum(
            e["phase"] == "exit" and not e.get("told") for e in h.of("process")
        ),
    }
