"""Tasks whose handlers write down when they begin and end, in files that outlive each process: see
test_torture.py."""

import asyncio
import json
import os
import random
import time
from contextlib import contextmanager

from pyworker import NotStarted, task


class Recorder:
    """One line per event, in one write: a process that is killed leaves whole lines behind."""

    def __init__(self, name):
        self._name, self._file = name, None

    def __call__(self, what, **fields):
        if self._file is None:
            path = os.path.join(os.environ["PYWORKER_HISTORY"], f"{self._name}.jsonl")
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        line = json.dumps({"what": what, "t": time.time(), **fields}) + "\n"
        os.write(self._file, line.encode())


record = Recorder(f"handlers-{os.getpid()}")


@contextmanager
def recorded(job):
    about = {"id": job.id, "run": job.run, "pid": os.getpid()}
    record(
        "begin",
        **about,
        parent=os.getppid(),
        task=job.task_identifier,
        sequence=job.sequence_key,
        queue=job.queue_name,
    )
    try:
        yield
        if random.random() < 0.1:
            raise ValueError("as it happens")
    finally:
        record("end", **about)


@task(backoff=[0.05])
def plain(payload, job):
    with recorded(job):
        time.sleep(random.uniform(0, 0.03))


@task(backoff=[0.05])
async def plain_async(payload, job):
    with recorded(job):
        await asyncio.sleep(random.uniform(0, 0.03))


@task(delivery="at_most_once", backoff=[0.05])
def only_once(payload, job):
    if random.random() < 0.1:
        raise NotStarted("as it happens")
    with recorded(job):
        time.sleep(random.uniform(0, 0.03))


@task(backoff=[0.05])
def effect(payload, job):
    with job.transaction() as conn, recorded(job):  # the job's own end comes with the commit
        conn.execute("insert into public.effects values (%s, %s)", [job.id, job.run])
        time.sleep(random.uniform(0, 0.03))


@task(backoff=[0.05])
async def effect_async(payload, job):
    async with job.transaction() as conn:
        with recorded(job):
            await conn.execute("insert into public.effects values (%s, %s)", [job.id, job.run])
            await asyncio.sleep(random.uniform(0, 0.03))
