"""More tasks that write down what they see: steps and signals, members of batches, and handlers that mean
harm. See tests/torture."""

import asyncio
import os
import random
import threading
import time

import psycopg
from hostile import ENDS, LOOP, MENU
from recorded_tasks import record, recorded

from pyworker import AsyncJob, Job, task

BOOK = "insert into public.booked values (%s, %s, %s)"
OWN = threading.local()


def draw():
    time.sleep(random.uniform(0, 0.02))
    return random.getrandbits(50)


def got(job, kind, name, result):
    """Each run says what it got: the checker compares them with what was saved."""
    record(kind, id=job.id, run=job.run, name=name, result=result)
    return result


@task(result=True, backoff=[0.05])
def trip(payload, job: Job):
    with recorded(job):
        got(job, "step", "drawn", job.step("drawn", draw))
        with job.step_transaction("booked") as step:
            if not step.done:
                step.connection.execute(BOOK, [job.id, "booked", job.run])
                step.result = draw()
        got(job, "step", "booked", step.result)
        got(job, "wait", "go", job.wait_for("go"))
        got(job, "step", "drawn again", job.step("drawn again", draw))
        got(job, "wait", "maybe", job.wait_for("maybe", 0.3))
        with job.step_transaction("booked again") as step:
            if not step.done:
                step.connection.execute(BOOK, [job.id, "booked again", job.run])
                step.result = draw()
        return got(job, "step", "booked again", step.result)


@task(result=True, backoff=[0.05])
async def trip_async(payload, job: AsyncJob):
    with recorded(job):
        got(job, "step", "drawn", await job.step("drawn", asyncio.to_thread, draw))
        async with job.step_transaction("booked") as step:
            if not step.done:
                await step.connection.execute(BOOK, [job.id, "booked", job.run])
                step.result = await asyncio.to_thread(draw)
        got(job, "step", "booked", step.result)
        got(job, "wait", "go", await job.wait_for("go"))
        got(job, "step", "drawn again", await job.step("drawn again", asyncio.to_thread, draw))
        got(job, "wait", "maybe", await job.wait_for("maybe", 0.3))
        async with job.step_transaction("booked again") as step:
            if not step.done:
                await step.connection.execute(BOOK, [job.id, "booked again", job.run])
                step.result = await asyncio.to_thread(draw)
        return got(job, "step", "booked again", step.result)


def own_connection():
    if getattr(OWN, "conn", None) is None or OWN.conn.closed:
        OWN.conn = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)
    return OWN.conn


@task(backoff=[0.05])
def member(payload, job: Job):
    """One of a batch. Some of them extend it."""
    with recorded(job):
        if payload.get("extends"):
            extend(job)
        time.sleep(random.uniform(0, 0.02))


def extend(job):
    sql = """select d.job_id as callback, e.id
             from pyworker.dependencies d
             cross join lateral pyworker.extend_batch(d.job_id, '[{"identifier": "member"}]') e
             where d.depends_on = %s"""
    began, fields = time.time(), {"id": None, "key": None}
    try:
        row = own_connection().execute(sql, [job.id]).fetchone()
        callback, fields["id"] = row if row else (None, None)
        fields |= {"outcome": "ok" if row else "error", "callback": callback}
    except psycopg.Error as error:
        known = error.sqlstate and not OWN.conn.closed if hasattr(OWN, "conn") else True
        fields["outcome"] = "error" if known else "unknown"
        raise
    finally:
        record("add", began=began, **fields)


@task(backoff=[0.05])
def doomed(payload, job: Job):
    with recorded(job):
        raise ValueError("each time")


@task
def ticked(payload, job: Job):
    with recorded(job):
        pass


@task(result=True, backoff=[0.05])
def menu(payload, job: Job):
    with recorded(job):
        return MENU[payload["how"]](job)


@task(result=True, backoff=[0.05])
async def menu_async(payload, job: AsyncJob):
    with recorded(job):
        act = MENU.get(payload["how"])
        return act(job) if act else await LOOP[payload["how"]](job)


@task(backoff=[0.05])
def ender(payload, job: Job):
    """Ends its process, the first time."""
    with recorded(job):
        if job.attempts == 1:
            ENDS[payload["how"]]()


@task(backoff=[0.05])
async def ender_async(payload, job: AsyncJob):
    with recorded(job):
        if job.attempts == 1:
            ENDS[payload["how"]]()
