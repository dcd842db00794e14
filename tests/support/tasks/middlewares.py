"""Middlewares that the tests have workers run around the tasks of handlers.py. Which of them acts,
a job's meta says."""

import asyncio
import json
import os
from contextvars import ContextVar

import psycopg
from handlers import ANSWERS, answer

from pyworker import middleware, task

around = ContextVar("around", default="nothing")


def note(job, what):
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as conn:
        conn.execute(
            "insert into public.seen (job_id, run, told) values (%s, %s, %s)",
            [job.id, job.run, json.dumps(what)],
        )


def act(job, when):
    kind, argument = (job.meta or {}).get(when, (None, None))
    if kind:
        raise ANSWERS[kind](argument)


@middleware
def outer(job):
    note(job, f"outer begins {job.task_identifier}")
    set_to = around.set("outer")
    try:
        result = yield
        note(job, ["outer ends", result])
    except BaseException as error:
        note(job, ["outer ends", type(error).__name__])
        raise
    finally:
        around.reset(set_to)


@middleware
def inner(job):
    note(job, "inner begins")
    act(job, "before")
    if "never" in (job.meta or {}):
        return
    try:
        yield
    except BaseException:
        if "swallow" not in job.meta:
            raise
    note(job, "inner ends")
    act(job, "after")
    if "twice" in (job.meta or {}):
        yield


@task(result=True, backoff=["1 hour"])
def surrounded(payload, job):
    note(job, f"handler in {around.get()}")
    return answer(payload)


@task(result=True, backoff=["1 hour"])
async def surrounded_async(payload, job):
    await asyncio.to_thread(note, job, f"handler in {around.get()}")
    return answer(payload)


@task(timeout=0.5, backoff=["1 hour"])
async def surrounded_too_long(payload):
    await asyncio.sleep(3600)
