"""Tasks that log, and then end in some way."""

import asyncio
import time

from pyworker import AsyncJob, Cancel, Job, Snooze, task


@task(backoff=["0 s"])
def logs(payload, job: Job):
    for line in payload["lines"] * payload.get("times", 1):
        job.log(*line)
    if payload.get("hangs"):
        while not job.cancelled:
            time.sleep(0.01)
        raise Cancel
    if payload.get("ignores"):
        time.sleep(60)
    if payload.get("snoozes"):
        raise Snooze(60)
    if payload.get("ends after"):
        time.sleep(payload["ends after"])
        job.log("the end")
    if payload.get("commits"):
        with job.transaction():
            job.log("in the transaction")
        job.log("after the transaction")
    if payload.get("rolls back"):
        with job.transaction() as conn:
            job.log("in the transaction")
            conn.execute("select no_such_column")
    if job.attempts < payload.get("attempts", 1):
        raise RuntimeError("again")


@task(backoff=["0 s"])
async def logs_async(payload, job: AsyncJob):
    for line in payload["lines"] * payload.get("times", 1):
        job.log(*line)
    if payload.get("hangs") or payload.get("ignores"):
        await asyncio.Event().wait()
    if payload.get("commits"):
        async with job.transaction():
            job.log("in the transaction")
        job.log("after the transaction")
    if payload.get("rolls back"):
        async with job.transaction() as conn:
            job.log("in the transaction")
            await conn.execute("select no_such_column")
    if job.attempts < payload.get("attempts", 1):
        raise RuntimeError("again")


@task(timeout=2)
def logs_too_long(payload, job: Job):
    job.log("begun")
    time.sleep(60)


@task(timeout=2)
async def logs_too_long_async(payload, job: AsyncJob):
    job.log("begun")
    await asyncio.Event().wait()
