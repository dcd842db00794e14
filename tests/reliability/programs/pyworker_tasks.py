"""pyworker's handlers, for `pyworker run pyworker_tasks`."""

import asyncio

from lines import run_of, up, write

from pyworker import AsyncJob, task

up()


async def _run(payload, job):
    run = run_of(payload, job.id, job.run)
    write("start", **run)
    await asyncio.sleep(payload["ms"] / 1000)
    write("end", **run)


@task
async def plain(payload, job: AsyncJob):
    await _run(payload, job)


@task
async def unique(payload, job: AsyncJob):
    await _run(payload, job)


@task
async def sequence(payload, job: AsyncJob):
    await _run(payload, job)


@task(delivery="at_most_once")
async def once(payload, job: AsyncJob):
    await _run(payload, job)


@task
async def effect(payload, job: AsyncJob):
    async with job.transaction() as conn:
        await conn.execute("insert into public.effects values (%s, %s)", [payload["op"], job.run])
        await _run(payload, job)
