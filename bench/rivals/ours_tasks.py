"""The handlers of the benchmark, for `pyworker run`."""

import asyncio
import os

from repl import leave, now
from repl import noop as count
from repl import stamp as leave_stamp

from pyworker import AsyncJob, Job, Snooze, task


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


last = 0.0  # when the latest member ran


@task
async def member(payload):
    global last
    last = now()


@task
async def callback(payload):
    leave(now() - last)


@task
async def moment(payload):
    leave(now())


@task
async def without_steps(payload):
    pass


@task
async def with_steps(payload, job: AsyncJob):
    for number in range(5):
        await job.step(f"step {number}", dict, receipt="R17")


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
