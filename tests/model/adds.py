"""What the model says to producers."""

from __future__ import annotations

import json
from typing import Any

from tests.model.coordination import Coordination
from tests.model.state import HOUR, Job, Refused
from tests.support.states import ENDED, LIVE


class Adds(Coordination):
    def request(self, spec: dict[str, Any]) -> dict[str, Any]:
        """The arguments, with the task's and the system's defaults."""
        task = self.tasks.get(spec["task"], {})
        r = {
            "priority": 0,
            "max_attempts": 25,
            "delivery": "at_least_once",
            "queue": None,
            "unique": None,
            "sequence": None,
        }
        r |= {"key": None, "mode": "replace", "payload": {}, "flags": None, "run_at": None}
        r |= {"ref": None, "depends_on": [], "on_unmet": "hold", "expires_at": None, "max_wait": None}
        r |= {k: v for k, v in task.items() if k in r} | {k: v for k, v in spec.items() if v is not None}
        r["queue"] = None if r["queue"] == "default" else r["queue"]
        return r

    def sequence_of(self, r: dict[str, Any]) -> tuple[str | None, tuple[bool, bool]]:
        policy = r["sequence"]
        if policy is None:
            return None, (False, False)
        flags = policy.get("continue_on_cancelled", False), policy.get("continue_on_discarded", False)
        return policy.get("key") or json.dumps({"kind": r["task"]}, separators=(",", ":")), flags

    def new(self, r: dict[str, Any], new_id: int) -> Job:
        job = Job(
            new_id, r["task"], r["payload"], r["queue"], self.now, r["priority"], r["max_attempts"],
            r["key"], r["delivery"], r["flags"], self.now,
        )  # fmt: skip
        job.since = self.now
        self.run_later(job, r, r["run_at"])
        job.sequence, job.goes_on = self.sequence_of(r)
        job.held = "unmet" if r["depends_on"] else None
        job.place = "waiting" if job.sequence and not job.held else None
        self.wait(job)
        self.jobs.append(job)
        return job

    def run_later(self, job: Job, r: dict[str, Any], run_at: Any) -> None:
        """It runs at this time, or now; but adds put it off no longer than any of them allows."""
        if job.run != job.since_run or job.state == "discarded":
            job.since, job.since_run, job.latest = self.now, job.run, None
        if r["max_wait"] is not None:
            latest = job.since + r["max_wait"]
            job.latest = min(job.latest, latest) if job.latest else latest
        job.run_at, job.fresh = run_at or self.now, run_at is None
        if job.latest and job.latest < job.run_at:
            job.run_at, job.fresh = job.latest, True
        job.start_by = r["expires_at"]

    def add(self, spec: dict[str, Any], new_id: int) -> tuple[Job, bool]:
        """The job that comes of it, and whether it was there and is left as it was."""
        return self.add_many([spec], [new_id])[0]

    def add_alone(self, r: dict[str, Any], new_id: int) -> tuple[Job, bool]:
        """The same, but for its edges to other jobs."""
        if r["unique"] is not None:
            if r["key"]:
                raise Refused("PW001")
            return self.add_unique(r, new_id)
        old = self.named(r["key"]) if r["key"] else None
        if old and r["mode"] == "unsafe_dedupe":
            return old, True
        if old and old.state == "running":
            old.key, old.attempts, old.superseded = None, old.max_attempts, "superseded"
        elif old:
            self.replace(old, r)
            return old, False
        return self.new(r, new_id), False

    def replace(self, old: Job, r: dict[str, Any]) -> None:
        left = [(old.sequence, old.place)]
        failed = old.attempts > 0 or old.state == "discarded"
        keeps_time = r["mode"] == "preserve_run_at" and not failed
        fresh = old.fresh
        self.run_later(old, r, old.run_at if keeps_time else r["run_at"])
        old.fresh = old.fresh or (keeps_time and fresh)
        if old.state == "discarded":
            self.unhalt(old)
        merge = isinstance(old.payload, list) and isinstance(r["payload"], list)
        old.payload = old.payload + r["payload"] if merge else r["payload"]
        sequence, old.goes_on = self.sequence_of(r)
        if sequence != old.sequence or old.place is None or r["depends_on"]:
            old.sequence = sequence
            old.place = "waiting" if sequence and not r["depends_on"] else None
        else:
            left = []
        old.held = "unmet" if r["depends_on"] else None
        old.edges, old.steps, old.waits, old.used = [], {}, {}, set()
        old.task, old.queue, old.priority, old.max_attempts = (
            r["task"], r["queue"], r["priority"], r["max_attempts"]
        )  # fmt: skip
        old.delivery, old.flags, old.attempts, old.error, old.reason = (
            r["delivery"], r["flags"], 0, None, None
        )  # fmt: skip
        old.started, old.revision = False, old.revision + 1
        self.wait(old)
        self.make_way(left)

    def add_unique(self, r: dict[str, Any], new_id: int) -> tuple[Job, bool]:
        policy = r["unique"]
        river = "by_args" in policy
        key = river, r["task"], json.dumps(r["payload"], sort_keys=True)
        states = policy.get("by_state" if river else "states")
        if states is None:
            states = [*LIVE, "completed"] if river else LIVE
        conflict = policy.get("on_conflict", "ignore" if river else "reject")
        found = [
            job for job in sorted(self.jobs, key=lambda j: j.id)
            if job.unique == key and job.state in states
            and ("period" not in policy or job.created + 2.5 * HOUR > self.now)
        ]  # fmt: skip
        if found and conflict == "reject":
            raise Refused("PW003")
        if found and conflict == "ignore":
            return ([job for job in found if job.state not in ENDED] or found)[-1], True
        for job in found:
            if job.state not in ENDED:
                if job.state == "scheduled" and conflict == "replace_except_schedule":
                    r["run_at"] = job.run_at
                self.close([job], "cancelled", "replaced")
        job = self.new(r, new_id)
        job.unique, job.recheck = key, states if river else None
        return job, False

    def add_many(self, specs: list[dict[str, Any]], new_ids: list[int]) -> list[tuple[Job, bool]]:
        requests = [self.request(spec) for spec in specs]
        for r in requests:
            if (r["key"] and r["unique"]) or (r["max_wait"] is not None and not r["key"]):
                raise Refused("PW001")
            if r["expires_at"] and r["expires_at"] <= self.now:
                raise Refused("PW001")
        added = []
        for r, new_id in zip(requests, new_ids, strict=True):
            job, there = self.add_alone(r, new_id)
            added.append((job, there, job.revision))
        self.link(requests, added)
        return [(job, there) for job, there, _ in added]

    def remove(self, key: str) -> int | None:
        job = self.named(key)
        if not job:
            return None
        if job.state == "running":
            job.key, job.attempts, job.superseded = None, job.max_attempts, "removed"
        else:
            self.forget(job)
        return job.id
