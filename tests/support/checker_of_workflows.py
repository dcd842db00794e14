"""The checker's rules for dependencies, rates, steps, signals, bounds of a process, expiry and ticks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.checker import Event, History

GOOD = {"success": {"completed"}, "failure": {"cancelled", "discarded"}}
GOOD["end"] = GOOD["success"] | GOOD["failure"]


def _edges(h: History) -> Iterator[tuple[int, int, str]]:
    """child, parent, condition: what was acknowledged."""
    for add in h.adds:
        if add["outcome"] == "ok":
            yield from ((add["id"], parent, on) for parent, on in add.get("after", ()))
            if add.get("callback"):
                yield add["callback"], add["id"], "end"


def i14_no_child_starts_before_its_parents_have_ended(h: History) -> Iterator[str]:
    last: dict[int, float] = defaultdict(float)  # the last word of the run that ended the job
    for event in h.of("begin") + h.of("end"):
        final = h.finals.get(event["id"])
        if final and event["run"] == final["run"]:
            last[event["id"]] = max(last[event["id"]], event["t"])
    for child, parent, on in _edges(h):
        begins = h.begins.get(child, ())
        if not begins or parent not in h.finals:
            continue
        if (state := h.finals[parent]["state"]) not in GOOD[on]:
            yield f"job {child} began, and its parent {parent} ended {state}, not as {on}"
        # A handler whose job was cancelled by force, or whose claim was lost, may go on for a while.
        if state == "completed" and begins[0]["t"] < last[parent]:
            yield f"job {child} began before its parent {parent} had ended"


def i15_no_window_has_more_starts_than_the_rate(h: History) -> Iterator[str]:
    starts: dict[str, list[float]] = defaultdict(list)
    for event in h.of("start"):
        starts[event["queue"]].append(event["at"])
    for rate in h.of("rate"):
        times = sorted(starts[rate["queue"]])
        for first, after in zip(times, times[rate["limit"] :], strict=False):
            if after - first < rate["period"] - 1e-6:  # times are floats here
                yield f"{rate['queue']}: {rate['limit'] + 1} starts in {after - first:.6f} s at {first:.6f}"


def i16_a_step_has_one_result(h: History) -> Iterator[str]:
    for event in h.of("step"):
        steps = h.finals.get(event["id"], {}).get("steps") or {}
        if event["name"] not in steps:
            yield f"job {event['id']}: step {event['name']!r} was answered, and is not there in the end"
        elif steps[event["name"]] != event["result"]:
            yield f"job {event['id']}: run {event['run']} got another result of step {event['name']!r}"
    for job_id, final in h.finals.items():
        for name, times in Counter(final.get("booked") or ()).items():
            if times > 1:
                yield f"job {job_id}: the writes of step {name!r} are there {times} times"
        booked = {name for name in final.get("steps") or {} if name.startswith("booked")}
        if booked != set(final.get("booked") or ()):
            yield f"job {job_id}: steps {booked} were saved, and writes are there of {final.get('booked')}"


def i18_no_signal_is_lost_or_doubled(h: History) -> Iterator[str]:
    """The first signal of a name counts, whenever it was sent. Of two that were sent at the same time,
    either may have been the first."""
    sent: dict[tuple[int, str], list[Event]] = defaultdict(list)
    for event in h.of("signal"):
        if event["outcome"] != "error":
            sent[event["id"], event["name"]].append(event)
    answers: dict[tuple[int, str], set[Any]] = defaultdict(set)
    for event in h.of("wait"):
        answers[event["id"], event["name"]].add(event["result"])
    for (job_id, name), results in answers.items():
        if len(results) > 1:
            yield f"job {job_id}: {len(results)} answers to the wait for {name!r}"
        known = sent[job_id, name]
        sure = min((event["t"] for event in known if event["outcome"] == "ok"), default=float("inf"))
        first = {event["payload"] for event in known if event["began"] <= sure}
        if name == "maybe":  # its time may have run out
            first.add(None)
        if not results <= first:
            yield f"job {job_id}: the wait for {name!r} got {results}, sent was {first}"


def i19_no_process_holds_more_than_its_share(h: History) -> Iterator[str]:
    shares = {(event["parent"], event["queue"]): event["limit"] for event in h.of("share")}
    steps: dict[tuple[int, int, str], list[tuple[float, int]]] = defaultdict(list)
    for queue, spans in h.spans("queue").items():
        for begin, end, event in spans:
            if (event["parent"], queue) in shares:
                steps[event["pid"], event["parent"], queue] += [(begin, 1), (end, -1)]
    for (pid, parent, queue), both in steps.items():
        running = 0
        for t, step in sorted(both):
            running += step
            if running > shares[parent, queue]:
                yield f"process {pid} runs {running} jobs of {queue} at {t}"


def i20_what_expired_never_began(h: History) -> Iterator[str]:
    """But for a claim that a crash of the server took back."""
    for job_id, final in h.finals.items():
        if final.get("reason") == "expired" and not h.retries[job_id]:
            for begin in h.begins.get(job_id, ()):
                if not h.taken_back(begin, final):
                    yield f"job {job_id} expired, and began as run {begin['run']}"


def i22_no_tick_is_lost(h: History) -> Iterator[str]:
    """Of a schedule that is due each minute and makes up for what was missed."""
    dues: dict[str, list[float]] = defaultdict(list)
    for final in h.finals.values():
        if final.get("due") and final["task"] == "ticked":
            dues[final["schedule"]].append(datetime.fromisoformat(final["due"]).timestamp())
    for schedule, times in dues.items():
        for one, other in pairwise(sorted(times)):
            if other - one > 60:
                yield f"{schedule}: {other - one:.0f} s from one tick to the next"


WORKFLOWS = [
    i14_no_child_starts_before_its_parents_have_ended, i15_no_window_has_more_starts_than_the_rate,
    i16_a_step_has_one_result, i18_no_signal_is_lost_or_doubled, i19_no_process_holds_more_than_its_share,
    i20_what_expired_never_began, i22_no_tick_is_lost,
]  # fmt: skip
