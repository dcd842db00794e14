"""Handlers that answer in groups, and batches of which some elements fail."""

import asyncio
import dataclasses
import json
import os
from datetime import date, datetime
from decimal import Decimal
from uuid import UUID

import msgspec
import psycopg
import pydantic

from pyworker import (
    AsyncJob,
    Cancel,
    Discard,
    Failed,
    InvalidArgument,
    Job,
    NotStarted,
    Snooze,
    task,
)


def tell(job, what):
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as conn:
        conn.execute(
            "insert into public.seen (job_id, run, told) values (%s, %s, %s)",
            [job.id, job.run, json.dumps(what)],
        )


@dataclasses.dataclass
class Mail:
    to: str
    id: UUID
    at: datetime


class Order(pydantic.BaseModel):
    id: UUID
    amount: Decimal


class Point(msgspec.Struct):
    x: int
    on: date


def all_but_the_first(elements, job):
    """The first of the elements succeeds, the others fail."""
    tell(job, [ascii(one) for one in elements])
    if len(elements) > 1:
        raise Failed(elements[1:])


def failing(name, kind):
    def handler(payload: kind, job: Job):
        all_but_the_first([*payload], job)

    async def handler_async(payload: kind, job: AsyncJob):
        all_but_the_first([*payload], job)

    def handler_batch(jobs: list[Job[kind]]):
        answers = []
        for job in jobs:
            try:
                answers.append(all_but_the_first([*job.payload], job))
            except Failed as failed:
                answers.append(failed)
        return answers

    options = {"max_attempts": 5, "backoff": ["0 s"]}
    task(name=name, **options)(handler)
    task(name=f"{name}_async", **options)(handler_async)
    task(name=f"{name}_batch", batch=10, **options)(handler_batch)


U = "00000000-0000-0000-0000-00000000000"
# A type, and elements of it as JSON.
TYPES = {
    "untyped": (list, ["a", {"b": [1, None, 1.5]}, "ä€😀"]),
    "any": ("None", ["a", "nul \0 in it", "half \ud83d", {"key \0": "\udc00"}, "back\\u0000slash"]),
    "strings": (list[str], ["a", "nul \0", "half \ud83d", "whole \U0001f600"]),
    "uuids": (list[UUID], [f"{U}1", f"{U}2", f"{U}3"]),
    "tuples": (tuple[UUID, ...], [f"{U}1", f"{U}2", f"{U}3"]),
    "sets": (frozenset[date], ["2026-01-01", "2026-01-02", "2026-01-03"]),
    "datetimes": (list[datetime], ["2026-01-01T00:00:00Z", "2026-01-02T00:00:00+02:00"]),
    "decimals": (list[Decimal], ["1.10", "2.20", "3.30"]),
    "dataclasses": (
        list[Mail],
        [{"to": "a\0", "id": f"{U}{n}", "at": "2026-01-01T00:00:00Z"} for n in (1, 2)],
    ),
    "models": (list[Order], [{"id": f"{U}{n}", "amount": "1.10"} for n in (1, 2, 3)]),
    "structs": (list[Point], [{"x": n, "on": "2026-01-01"} for n in (1, 2, 3)]),
}
for name, (kind, _) in TYPES.items():
    failing(name, list if kind == "None" else kind)


@task(max_attempts=5, backoff=["0 s"])
def as_long_as_before(payload: list[str], job: Job):
    tell(job, len(payload))
    if len(payload) > 1:
        raise Failed(payload[1:])


class MyCancel(Cancel):
    def __init__(self):
        super().__init__("mine")


# What the members of a group are.
GROUPS = {
    "cancel": [Cancel("not wanted")],
    "two cancels": [Cancel("not wanted"), MyCancel()],
    "discard": [Discard("bad")],
    "snooze": [Snooze(60), Snooze(7200), Snooze(1)],
    "not started": [NotStarted("no network"), NotStarted("no disk")],
    "failed": [Failed([1]), Failed([2, 3])],
    "nested": [ExceptionGroup("inner", [Cancel("not wanted")])],
    "a failure too": [Cancel("not wanted"), ValueError("the failure")],
    "mixed": [Cancel("not wanted"), Snooze(60)],
}


async def raises(error):
    raise error


async def in_task_group(which):
    async with asyncio.TaskGroup() as group:
        for error in GROUPS[which]:
            group.create_task(raises(error))


@task(max_attempts=3, backoff=["1 hour"])
async def group_async(payload, job: AsyncJob):
    await in_task_group(payload[0])


@task(max_attempts=3, backoff=["1 hour"])
def group(payload, job: Job):
    raise ExceptionGroup("some have failed", GROUPS[payload[0]])


@task(max_attempts=3, backoff=["1 hour"], batch=5)
async def group_batch(jobs: list[AsyncJob]):
    await in_task_group(jobs[0].payload[0])


@task(max_attempts=3, backoff=["1 hour"], delivery="at_most_once")
async def group_once(payload, job: AsyncJob):
    await in_task_group(payload[0])


NUL, HALF = "a\0b", "a\ud83d"


def refusals(calls):
    told = []
    for call in calls:
        try:
            call()
        except InvalidArgument as error:
            told.append(str(error))
    return told


@task(max_attempts=1, result=True)
def texts(payload, job: Job):
    job.progress(1, f"{NUL} {HALF}")
    job.log(f"{NUL} {HALF}")
    kept = job.step("a", lambda: {NUL: HALF})
    calls = []
    for bad in (NUL, HALF, 5, None):
        calls += [
            lambda bad=bad: job.once(bad),
            lambda bad=bad: job.step(bad, int),
            lambda bad=bad: job.wait_for(bad),
            lambda bad=bad: job.step_transaction(bad).__enter__(),
        ]
    calls += [
        lambda: job.progress(0.5, 5),
        lambda: job.progress(float("nan")),
        lambda: job.progress(2),
        lambda: job.wait_for("s", timeout=float("inf")),
        lambda: job.add_job("nobody", meta={"a": NUL}),
        lambda: job.add_job("nobody", job_key=HALF),
    ]
    told = refusals(calls)
    assert len(told) == len(calls), told
    return [kept, told]


@task(max_attempts=1, result=True)
async def texts_async(payload, job: AsyncJob):
    await job.progress(1, f"{NUL} {HALF}")
    job.log(f"{NUL} {HALF}")
    kept = await job.step("a", lambda: {NUL: HALF})
    told = []
    for bad in (NUL, HALF, 5, None):
        for call in (job.once, lambda bad: job.step(bad, int), job.wait_for):
            try:
                await call(bad)
            except InvalidArgument as error:
                told.append(str(error))
        try:
            await job.step_transaction(bad).__aenter__()
        except InvalidArgument as error:
            told.append(str(error))
    assert len(told) == 16, told
    return [kept, told]
