"""The handlers of the benchmark, for `pyworker run`."""

import asyncio
import os

from repl import noop as count
from repl import stamp as leave_stamp

from pyworker import Job, Snooze, task


@task
async def noop(payload):
    count()


@task
def noop_sync(payload):
    count()


@task
async def stamp(payload):
    leave_stamp(payload)


@task
async def steady(payload):
    leave_stamp(payload)
    await asyncio.sleep(0.005)


@task
async def talk(payload):
    reader, writer = await asyncio.open_connection("127.0.0.1", int(os.environ["BENCH_PORT"]))
    writer.write(b"ping\n")
    await reader.readline()
    writer.close()
    count()


@task(backoff=["1 ms"])
def fail(payload, job: Job):
    if job.attempts == 1:
        raise RuntimeError("on purpose")


snoozed: set[int] = set()


@task
async def snooze(payload, job: Job):
    if job.id not in snoozed:
        snoozed.add(job.id)
        raise Snooze(0)
