"""Batch handlers that the tests have workers run. Each call leaves a row in `seen` for each of its jobs,
with the ids of all jobs of the call."""

import asyncio
import json
import os
import signal
import time
from dataclasses import dataclass

import psycopg
from handlers import ANSWERS

from pyworker import AsyncJob, Cancel, Job, NotStarted, middleware, task

SAYS = {**ANSWERS, "not_started": lambda word: NotStarted(word)}


def tell(jobs, what=None):
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as conn:
        for job in jobs:
            conn.execute(
                "insert into public.seen (job_id, run, task, attempts, pid, told) "
                "values (%s, %s, %s, %s, %s, %s)",
                [job.id, job.run, job.task_identifier, job.attempts, os.getpid(),
                 json.dumps(what or [one.id for one in jobs])],
            )  # fmt: skip
        for job in jobs:
            if isinstance(job.payload, dict) and "gate" in job.payload:
                conn.execute("select pg_advisory_lock_shared(77, %s)", [job.payload["gate"]])


def answer(jobs):
    """{"raise": ["snooze", null]} and {"answer": …} of one job are for the call; {"say": ["cancel", "why"]}
    and {"value": …} for the job."""
    payloads = [job.payload for job in jobs]
    for payload in payloads:
        if "raise" in payload:
            kind, argument = payload["raise"]
            raise SAYS[kind](argument)
        if "return" in payload:
            kind, argument = payload["return"]
            return SAYS[kind](argument)
        if "answer" in payload:
            return payload["answer"]
    if not any("say" in payload or "value" in payload for payload in payloads):
        return None
    return [SAYS[p["say"][0]](p["say"][1]) if "say" in p else p.get("value") for p in payloads]


@task(batch=4, result=True, backoff=["1 hour"])
def index(jobs: list[Job]):
    tell(jobs)
    return answer(jobs)


@task(batch=4, result=True, backoff=["1 hour"])
async def index_async(jobs: list[AsyncJob]):
    await asyncio.to_thread(tell, jobs)
    return answer(jobs)


@task(batch=4)
def unkept(jobs: list[Job]):
    return [job.id for job in jobs]


@task(batch=100)
async def wide(jobs: list[AsyncJob]):
    await asyncio.to_thread(tell, jobs, len(jobs))


@dataclass
class Order:
    number: int


@task(batch=10, result=True, backoff=["1 hour"])
def orders(jobs: list[Job[Order]]):
    return [job.payload.number + len(jobs) for job in jobs]


@task(batch=4, backoff=["1 hour"])
def watch(jobs: list[Job]):
    """Returns when a job is cancelled, or never."""
    tell(jobs)
    while not any(job.cancelled for job in jobs) or "stubborn" in jobs[0].payload:
        time.sleep(0.01)
    return [Cancel("left out") if job.cancelled else None for job in jobs]


@task(batch=4, backoff=["1 hour"])
async def watch_async(jobs: list[AsyncJob]):
    await asyncio.to_thread(tell, jobs)
    while not any(job.cancelled for job in jobs) or "stubborn" in jobs[0].payload:
        await asyncio.sleep(0.01)
    return [Cancel("left out") if job.cancelled else None for job in jobs]


@task(batch=4, timeout=0.5, backoff=["1 hour"])
def over_time(jobs: list[Job]):
    tell(jobs)
    time.sleep(3600)


@task(batch=4, timeout=0.5, backoff=["1 hour"])
async def over_time_async(jobs: list[AsyncJob]):
    await asyncio.to_thread(tell, jobs)
    await asyncio.sleep(3600)


def fatal(jobs):
    tell(jobs)
    if any("kill" in job.payload and job.attempts == 1 for job in jobs):
        os.kill(os.getpid(), signal.SIGKILL)
    return [
        SAYS[job.payload["say"][0]](job.payload["say"][1]) if "say" in job.payload else None for job in jobs
    ]


@task(batch=4, backoff=["1 ms"])
def deadly(jobs: list[Job]):
    return fatal(jobs)


@task(batch=4, backoff=["1 ms"])
async def deadly_async(jobs: list[AsyncJob]):
    return fatal(jobs)


@task(batch=4, delivery="at_most_once", backoff=["1 ms"])
def deadly_once(jobs: list[Job]):
    return fatal(jobs)


@task(batch=4, delivery="at_most_once", backoff=["1 ms"])
async def deadly_once_async(jobs: list[AsyncJob]):
    return fatal(jobs)


@task(batch=4, result=True, backoff=["1 hour"])
def uses(jobs: list[Job]):
    answers = []
    for job in jobs:
        job.log(f"line of {job.id}")
        made = job.step("number", lambda number=job.id: number * 2)
        refused = []
        for use in (lambda job=job: job.transaction().__enter__(), lambda job=job: job.wait_for("signal")):
            try:
                use()
            except Exception as error:
                refused.append(f"{type(error).__name__}: {error}")
        answers.append([made, refused])
    return answers


@task(batch=4, result=True, backoff=["1 hour"])
async def uses_async(jobs: list[AsyncJob]):
    answers = []
    for job in jobs:
        job.log(f"line of {job.id}")
        made = await job.step("number", lambda number=job.id: number * 2)
        refused = []
        try:
            async with job.transaction():
                pass
        except Exception as error:
            refused.append(f"{type(error).__name__}: {error}")
        try:
            await job.wait_for("signal")
        except Exception as error:
            refused.append(f"{type(error).__name__}: {error}")
        answers.append([made, refused])
    return answers


@task(batch=4, result=True, backoff=["1 hour"])
def surrounded_batch(jobs: list[Job]):
    return answer(jobs)


@task(batch=4, result=True, backoff=["1 hour"])
async def surrounded_batch_async(jobs: list[AsyncJob]):
    return answer(jobs)


@middleware
def around(job):
    if not job.task_identifier.startswith("surrounded"):
        yield
        return
    meta = job.meta or {}
    if "before" in meta:
        raise SAYS[meta["before"][0]](meta["before"][1])
    tell([job], "begins")
    try:
        result = yield
        tell([job], ["returned", result])
    except BaseException as error:
        tell([job], ["raised", type(error).__name__])
        raise
    if "after" in meta:
        raise SAYS[meta["after"][0]](meta["after"][1])
