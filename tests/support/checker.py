"""Proves the queue's invariants from a recorded history alone, long after the fact:

    python -m tests.support.checker DIRECTORY        all *.jsonl in it

Every line is one event of one process, with its time `t` (and `began`, if it took some): what
producers asked for and what came of it (ok, error, unknown), when handlers began and ended, what
was killed, what an observer saw in one snapshot, and how each job was in the end. The numbers are
those of the design's invariants. Nothing here asks a database.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.support.checker_of_workflows import WORKFLOWS

Event = dict[str, Any]
LIVE = {"scheduled", "pending", "available", "running", "retryable"}
TTL = 25.0  # seconds after which nothing may be in the hands of a dead worker
FENCE = 15.0  # seconds for which a worker goes on with what it holds, though the database is silent


class History:
    def __init__(self, events: Iterable[Event]) -> None:
        self.events = sorted(events, key=lambda event: event["t"])
        self.samples = self.of("sample")
        self.finals: dict[int, Event] = {event["id"]: event for event in self.of("final")}
        self.begins: dict[int, list[Event]] = defaultdict(list)
        for event in self.of("begin"):
            self.begins[event["id"]].append(event)
        self.retries = Counter(event["id"] for event in self.of("retry") if event["outcome"] != "error")
        self.adds = self.of("add")
        self._crashes = [event["t"] for event in self.of("stop")]
        # Where the server's clock jumps, or a worker stands still for longer than its lease, it is declared
        # dead while its handlers run. They end when it hears of that, and its reports are refused.
        self._leases_hold = not (self.of("jump") or self.of("doze"))

    def crashed_after(self, t: float) -> bool:
        return any(crash > t for crash in self._crashes)

    def taken_back(self, before: Event, after: Event) -> bool:
        """True if a crash of the server may have lost the claim of the run that `before` shows. Only a
        job of a sequence or a queue is claimed durably. Who has claimed it may begin it after the crash."""
        return not (before["sequence"] or before["queue"]) and any(
            before["t"] - FENCE < t < after["t"] for t in self._crashes
        )

    def begins_of_last_task(self, job_id: int) -> list[Event]:
        """Before an add with its key made it what it is now, the job may have been of another task, and
        run more than once."""
        task = self.finals[job_id]["task"]
        return [begin for begin in self.begins[job_id] if begin["task"] == task]

    def of(self, what: str) -> list[Event]:
        return [event for event in self.events if event["what"] == what]

    def spans(self, of: str) -> dict[Any, list[tuple[float, float, Event]]]:
        """From when to when handlers ran, by the sequence or queue of their jobs. Of one whose end
        was not recorded it is known that it ran until its process was killed, or at least until
        that was last heard of. (Numbers of processes come again, hence the parent's.)"""
        ends = {(event["id"], event["run"], event["pid"]): event["t"] for event in self.of("end")}
        alive: dict[tuple[int, int], float] = {}
        for event in self.of("begin") + self.of("kill"):
            if "parent" in event:
                process = event["pid"], event["parent"]
                alive[process] = max(alive.get(process, 0), event["t"])
        found: dict[Any, list[tuple[float, float, Event]]] = defaultdict(list)
        for event in self.of("begin"):
            if event[of] is not None and not self._leases_hold:
                found[event[of]].append((event["t"], event["t"], event))
            elif event[of] is not None:
                end = ends.get(
                    (event["id"], event["run"], event["pid"]), alive[event["pid"], event["parent"]]
                )
                found[event[of]].append((event["t"], max(end, event["t"]), event))
        return found


def i1_nothing_stays_with_the_dead(h: History) -> Iterator[str]:
    """As long as another worker runs: from the first handler that it began to the last.

    A worker has the pid of a process that was killed; one that started later only has its number. When
    the clock jumps, a lease may be counted from then on.
    """
    jumps = [event["t"] for event in h.of("jump")]
    kills: dict[int, list[float]] = defaultdict(list)
    for event in h.of("kill"):
        kills[event["pid"]].append(event["t"])
    there: dict[int, tuple[float, float]] = {}
    for event in h.of("begin"):
        there[event["parent"]] = (there.get(event["parent"], (event["t"],))[0], event["t"])
    for sample in h.samples:
        jumped = max((t for t in jumps if t <= sample["t"]), default=0.0)
        for job in sample["jobs"]:
            died = min((t for t in kills[job["worker"]] if t >= job["since"]), default=sample["t"])
            died = max(died, jumped)
            if job["state"] == "running" and sample["t"] > died + TTL:
                seen, until = 0.0, died
                for begin, end in sorted(there.values()):
                    begin, end = max(begin, until), min(end, sample["t"])
                    seen, until = seen + max(end - begin, 0), max(end, until)
                if seen > TTL:
                    yield (
                        f"job {job['id']} runs with {job['worker']}, dead for {sample['t'] - died:.0f} s, "
                        f"{seen:.0f} with others there"
                    )


def _twice(h: History, of: str, states: set[str]) -> Iterator[str]:
    for sample in h.samples:
        counts = Counter(job[of] for job in sample["jobs"] if job[of] is not None and job["state"] in states)
        yield from (
            f"{value!r} {count} times at {sample['t']}" for value, count in counts.items() if count > 1
        )


def i2_one_job_per_key(h: History) -> Iterator[str]:
    return _twice(h, "key", LIVE | {"discarded"})


def i3_one_at_a_time_and_in_order(h: History) -> Iterator[str]:
    yield from _twice(h, "sequence", LIVE - {"pending"})
    asked = {add["id"]: add for add in h.adds if add["outcome"] == "ok"}
    for sequence, spans in h.spans("sequence").items():
        for (_, end, one), (begin, _, other) in pairwise(sorted(spans, key=lambda span: span[0])):
            if begin < end:
                yield f"{sequence}: job {other['id']} began while job {one['id']} ran"
        first: dict[int, float] = {}
        for begin, _, event in sorted(spans, key=lambda span: span[0]):
            first.setdefault(event["id"], begin)
        order = [job_id for job_id in first if not h.retries[job_id] and job_id in asked]
        # One that depends on others joins its sequence when they have ended.
        order = [job_id for job_id in order if not asked[job_id].get("after")]
        for one, other in pairwise(order):
            if one > other and asked[other]["t"] < asked[one]["began"]:
                yield f"{sequence}: job {one} began before job {other}"


def i4_nothing_is_lost_or_invented(h: History) -> Iterator[str]:
    removed = {event["id"] for event in h.of("remove") if event["outcome"] == "ok"}
    doubtful = {event["key"]: event["t"] for event in h.of("remove") if event["outcome"] == "unknown"}
    known: set[int] = set()
    for add in h.adds:
        if add["outcome"] == "ok":
            known.add(add["id"])
            gone = add["id"] in removed or doubtful.get(add["key"], 0) > add["began"]
            if add["id"] not in h.finals and not gone:
                yield f"job {add['id']} is nowhere"
    doubts = sum(add["outcome"] == "unknown" for add in h.adds)
    ticks = {job_id for job_id, final in h.finals.items() if final["task"] == "ticked"}
    if len(more := h.finals.keys() - known - ticks) > doubts:
        yield f"{len(more)} jobs that no session is known to have added, with {doubts} adds in doubt"


def i5_at_most_once(h: History) -> Iterator[str]:
    """Once per decision: between two starts a session retried it, or added it again by its key."""
    decisions: dict[Any, list[Event]] = defaultdict(list)
    for event in (*h.of("retry"), *h.adds):
        if event["outcome"] == "ok" or event["outcome"] == "unknown":
            decisions[event["id"]].append(event)
    for job_id, final in h.finals.items():
        if final["delivery"] == "at_most_once" and h.begins[job_id]:
            made = decisions[job_id] + decisions[None]
            for one, other in pairwise(h.begins_of_last_task(job_id)):
                if not any(
                    one["t"] <= decision["t"] and decision["began"] <= other["t"] for decision in made
                ):
                    yield f"job {job_id} began as run {one['run']} and again as run {other['run']}"


def i6_at_least_once(h: History) -> Iterator[str]:
    for job_id, final in h.finals.items():
        if final["state"] == "completed" and not h.begins[job_id]:
            yield f"job {job_id} is completed and never began"
        if final["state"] in LIVE:
            yield f"job {job_id} was still {final['state']} in the end"


def i7_run_only_grows(h: History) -> Iterator[str]:
    """But for what a crash of the server takes back."""
    for job_id, begins in h.begins.items():
        once = job_id in h.finals and h.finals[job_id]["delivery"] == "at_most_once"
        seen: dict[int, Event] = {}
        for begin in begins:
            # A worker that stood still between claim and begin begins late, if it has nothing to
            # ask: as long as its run is refused then.
            if any(run > begin["run"] for run in seen) and once and begin in h.begins_of_last_task(job_id):
                yield f"job {job_id} began as run {max(seen)}, and later as run {begin['run']}"
            before = seen.setdefault(begin["run"], begin)
            if before is not begin and not h.taken_back(before, begin):
                yield f"job {job_id} began twice as run {begin['run']}"
    last: dict[int, tuple[int, Event]] = {}
    for sample in h.samples:
        for job in sample["jobs"]:
            run, at = last.get(job["id"], (0, sample))
            if job["run"] < run and not h.taken_back({**job, "t": at["t"]}, sample):
                yield f"run of job {job['id']} fell to {job['run']}"
            last[job["id"]] = (job["run"], sample)


def i8_one_job_per_due(h: History) -> Iterator[str]:
    dues = Counter((final["schedule"], final["due"]) for final in h.finals.values() if final.get("schedule"))
    yield from (f"{count} jobs for {due}" for due, count in dues.items() if count > 1)


def i9_the_newest_run_has_the_last_word(h: History) -> Iterator[str]:
    for job_id, final in h.finals.items():
        if not h.begins[job_id]:
            continue
        newest = max(h.begins[job_id], key=lambda begin: begin["run"])
        once = final["delivery"] == "at_most_once"
        if newest["run"] > final["run"] and (once or not h.taken_back(newest, final)):
            yield f"job {job_id} ended as run {final['run']}, and run {newest['run']} had begun"
        if len(final["effects"]) > 1 + h.retries[job_id]:
            yield f"job {job_id} had its effect in the runs {final['effects']}"
        if (
            newest["task"].startswith("effect")
            and final["state"] == "completed"
            and final["run"] not in final["effects"]
        ):
            yield (
                f"job {job_id} ended as run {final['run']}, its effects are those of the runs "
                f"{final['effects']}"
            )


def i10_a_rolled_back_add_leaves_nothing(h: History) -> Iterator[str]:
    """After a crash of the server another add may be given its id."""
    added = {add["id"] for add in h.adds if add["outcome"] == "ok"}
    for add in h.adds:
        if add["outcome"] != "rolled back" or (add["id"] in added and h.crashed_after(add["began"])):
            continue
        if add["id"] in h.finals or h.begins.get(add["id"]):
            yield f"job {add['id']} is there"


def i11_views_tell_the_truth(h: History) -> Iterator[str]:
    for sample in h.samples:
        for view, shown, base in sample["views"]:
            if shown != base:
                yield f"{view} shows {shown}, there are {base}, at {sample['t']}"


def i12_unique_is_unique(h: History) -> Iterator[str]:
    return _twice(h, "unique", LIVE)


def i13_no_queue_overflows(h: History) -> Iterator[str]:
    limits: dict[str, int] = {event["queue"]: event["limit"] for event in h.of("limit")}
    for queue, spans in h.spans("queue").items():
        steps = sorted([(begin, 1) for begin, _, _ in spans] + [(end, -1) for _, end, _ in spans])
        running = 0
        for t, step in steps:
            running += step
            if running > limits.get(queue, 1):
                yield f"{running} handlers of {queue} at {t}"
    for sample in h.samples:
        counts = Counter(job["queue"] for job in sample["jobs"] if job["queue"] and job["state"] == "running")
        yield from (
            f"{count} jobs of {queue} run" for queue, count in counts.items() if count > limits.get(queue, 1)
        )


INVARIANTS: list[Callable[[History], Iterator[str]]] = [
    i1_nothing_stays_with_the_dead, i2_one_job_per_key, i3_one_at_a_time_and_in_order,
    i4_nothing_is_lost_or_invented, i5_at_most_once,
    i6_at_least_once, i7_run_only_grows, i8_one_job_per_due, i9_the_newest_run_has_the_last_word,
    i10_a_rolled_back_add_leaves_nothing,
    i11_views_tell_the_truth, i12_unique_is_unique, i13_no_queue_overflows,
]  # fmt: skip


def violations(events: Iterable[Event]) -> list[str]:
    history = History(events)
    return [
        f"{invariant.__name__.split('_')[0].upper()}: {found}"
        for invariant in [*INVARIANTS, *WORKFLOWS]
        for found in invariant(history)
    ]


def read(directory: Path) -> Iterator[Event]:
    for path in sorted(directory.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            yield json.loads(line)


def summary(events: list[Event]) -> str:
    counts = Counter(f"{event['what']} {event.get('outcome', '')}".strip() for event in events)
    kills = Counter(event["how"] for event in events if event["what"] == "kill")
    return f"{len(events)} events: {dict(sorted(counts.items()))}; {dict(kills)}"


OPERATIONS = {"add", "remove", "cancel", "retry", "signal", "begin", "end", "step", "wait"}


def figures(events: list[Event]) -> dict[str, int]:
    """What is added up over runs: calls of clients, begins, ends, steps and waits of handlers; each process
    of a worker or of the server that was ended by kill -9; crashes of the server; other faults."""
    how = Counter(event["how"] for event in events if event["what"] in ("kill", "stop"))
    stops = how.pop("immediate", 0) + how.pop("full disk", 0)
    return {
        "operations": sum(event["what"] in OPERATIONS for event in events),
        "jobs": sum(event["what"] == "final" for event in events),
        "kill -9": sum(how.values()),
        **{f"killed: {name}": many for name, many in sorted(how.items())},
        "server stopped": stops,
        "faults": sum(event["what"] == "fault" for event in events),
    }


if __name__ == "__main__":
    recorded = list(read(Path(sys.argv[1])))
    print(summary(recorded))
    found = violations(recorded)
    print("\n".join(found[:100]) or "no violations")
    raise SystemExit(bool(found))
