"""Jobs of several steps, whose results are drawn by lot: what any run gets shows which run has saved it.

A run writes what it got into `seen`, as {"name": result}, and a step's transaction writes its name there."""

import asyncio
import json
import os
import random
import threading
import time

import psycopg

from pyworker import AsyncJob, Job, task

INSERT = "insert into public.seen (job_id, run, told) values (%s, %s, %s)"
OWN = threading.local()  # a connection for each thread: a new one for each word would take most of the time


def tell(job, name, result):
    if not hasattr(OWN, "conn"):
        OWN.conn = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)
    OWN.conn.execute(INSERT, [job.id, job.run, json.dumps({name: result})])
    return {name: result}


def draw():
    time.sleep(random.uniform(0, 0.03))  # long enough to be killed in
    return random.getrandbits(50)


@task(result=True, backoff=[0.05])
def journey(payload, job: Job):
    got = tell(job, "drawn", job.step("drawn", draw))
    with job.step_transaction("booked") as step:
        if not step.done:
            step.connection.execute(INSERT, [job.id, job.run, '"booked"'])
            step.result = draw()
    got |= tell(job, "booked", step.result)
    got |= tell(job, "go", job.wait_for("go"))
    got |= tell(job, "drawn again", job.step("drawn again", draw))
    got |= tell(job, "maybe", job.wait_for("maybe", 0.2))
    with job.step_transaction("booked again") as step:
        if not step.done:
            step.connection.execute(INSERT, [job.id, job.run, '"booked again"'])
            step.result = draw()
    return got | tell(job, "booked again", step.result)


@task(result=True, backoff=[0.05])
async def journey_async(payload, job: AsyncJob):
    async def told(name, result):
        return await asyncio.to_thread(tell, job, name, result)

    got = await told("drawn", await job.step("drawn", asyncio.to_thread, draw))
    async with job.step_transaction("booked") as step:
        if not step.done:
            await step.connection.execute(INSERT, [job.id, job.run, '"booked"'])
            step.result = await asyncio.to_thread(draw)
    got |= await told("booked", step.result)
    got |= await told("go", await job.wait_for("go"))
    got |= await told("drawn again", await job.step("drawn again", asyncio.to_thread, draw))
    got |= await told("maybe", await job.wait_for("maybe", 0.2))
    async with job.step_transaction("booked again") as step:
        if not step.done:
            await step.connection.execute(INSERT, [job.id, job.run, '"booked again"'])
            step.result = await asyncio.to_thread(draw)
    return got | await told("booked again", step.result)


@task(result=True, backoff=[0.05])
def join(payload, job: Job):
    """What it knows of the jobs that it has waited for, by id."""
    found = {one.id: [one.state, one.result] for one in job.inputs.ended}
    tell(job, "joined", found)
    return found


@task(backoff=[0.05])
def refuse(payload):
    raise ValueError
