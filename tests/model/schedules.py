"""Schedules, whose ticks add jobs: what the model knows of them, and the machine's rules."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule
from psycopg.types.json import Jsonb

from tests.model.model import Model
from tests.model.state import HOUR, Job, Refused
from tests.model.strategies import kinds
from tests.model.together import Together

names = st.sampled_from(["n", "m"])
# A payload that is an object would get a member _cron, with the time of the tick.
scheduled = st.tuples(st.sampled_from(kinds).flatmap(lambda kind: kind), st.sampled_from([[1], [2]])).map(
    lambda made: {k: v for k, v in {**made[0], "payload": made[1]}.items() if k != "run_at"}
)
AHEAD = timedelta(minutes=30)  # the first tick is further away than an example takes
MINUTE = timedelta(minutes=1)


@dataclass
class Schedule:
    spec: dict[str, Any]
    backfill: timedelta
    next_at: datetime | None


def after(moment: datetime, minute: int) -> datetime:
    """The first tick after this moment: each hour has one, at this minute."""
    tick = moment.replace(minute=minute, second=0, microsecond=0)
    return tick if tick > moment else tick + HOUR


def ticked(schedule: Schedule, model: Model, minute: int) -> list[datetime]:
    """The ticks that are due. A late one is skipped, unless it is within `backfill`."""
    if schedule.next_at is None:
        return []
    oldest = model.now - max(schedule.backfill, MINUTE)
    at = schedule.next_at if schedule.next_at >= oldest else after(oldest, minute)
    due = []
    while at <= model.now:
        due.append(at)
        at += HOUR
    schedule.next_at = at
    return due


class Schedules(Together):
    """Each schedule ticks once an hour, all of them at one time."""

    def begin_schedules(self) -> None:
        self.schedules: dict[str, Schedule] = {}
        self.minute = (self.model.now + AHEAD).minute

    @rule(name=names, spec=scheduled, backfill=st.sampled_from([0, 3]))
    def add_schedule(self, name: str, spec: dict[str, Any], backfill: int) -> None:
        spec = self.timed(spec)
        old = self.schedules.get(name)
        named = {**self.arguments(spec), "payload": Jsonb(spec["payload"])}
        for policy in {"unique_policy", "sequence_policy"} & set(named):
            named[policy] = Jsonb(named[policy])
        self.model.now = self.api.at()
        self.api.add_schedule(name, f"{self.minute} * * * *", backfill=f"{backfill} hours", **named)
        next_at = old.next_at if old else after(self.model.now, self.minute)
        self.schedules[name] = Schedule(spec, backfill * HOUR, next_at)

    @rule(name=names, verb=st.sampled_from(["pause", "resume", "remove"]))
    def change_a_schedule(self, name: str, verb: str) -> None:
        def ours(model: Model) -> str:
            if name not in self.schedules:
                raise Refused("PW004")
            schedule = self.schedules[name]
            if verb == "remove":
                del self.schedules[name]
            elif verb == "pause":
                schedule.next_at = None
            elif schedule.next_at is None:
                schedule.next_at = after(model.now, self.minute)
            return name

        self.same(ours, lambda: getattr(self.api, f"{verb}_schedule")(name))

    @rule(by=st.sampled_from([1, 2, 4]))
    def schedules_tick(self, by: int) -> None:
        """Time passes, and a worker runs what is due."""
        self.clock.advance(hours=by)
        for worker in self.model.workers:
            self.same(lambda m, w=worker: m.heartbeat(w), lambda w=worker: self.api.heartbeat(w))
        placed = self.model.placed()
        self.same(self.tick, self.api.run_schedules)
        self.name_new_jobs()
        self.settle(placed=placed)

    def maintain(self) -> None:
        def ours(model: Model) -> tuple[int, int]:
            return self.tick(model), model.maintain()

        def theirs() -> tuple[int, int]:
            did = self.api.maintain()
            return did["scheduled"], did["rescued"]

        placed = self.model.placed()
        self.same(ours, theirs)
        self.name_new_jobs()
        self.settle(placed=placed)

    def tick(self, model: Model) -> int:
        due = []
        for _, name in sorted((s.next_at, name) for name, s in self.schedules.items() if s.next_at):
            schedule = self.schedules[name]
            due += [(schedule.spec, at) for at in ticked(schedule, model, self.minute)]
        for n, (spec, at) in enumerate(due):
            before = deepcopy(model.__dict__)
            try:
                model.add({**spec, "run_at": at}, 10**9 + n)
            except Refused:  # one tick's error does not stop the others
                model.__dict__ = before
        return len(due)

    @rule(name=names)
    def run_schedule(self, name: str) -> None:
        def ours(model: Model) -> list[tuple[Job, bool]]:
            if name not in self.schedules:
                raise Refused("PW004")
            return [model.add(self.schedules[name].spec, 10**9)]

        self.added(*self.both(ours, lambda: self.api.run_schedule(name)))

    def name_new_jobs(self) -> None:
        """The ids of the jobs that the ticks have added."""
        ours = sorted((job for job in self.model.jobs if job.id >= 10**9), key=lambda job: job.id)
        newest = max((job.id for job in self.model.jobs if job.id < 10**9), default=0)
        theirs = self.api.rows(
            "select id from (select id from pyworker.jobs union all select id from pyworker.history) j"
            " where id > %s order by id",
            [newest],
        )
        for job, (job_id,) in zip(ours, theirs, strict=True):
            job.id = job_id
