"""Tasks that keep a whole process busy, and those that wait beside them."""

import os
import time

import psycopg
from handlers import note, silent, silent_async, tell  # noqa: F401 - their tasks

from pyworker import Job, task


@task
async def keep_the_loop(payload, job):
    """Blocks the event loop for all handlers of the process, until the gate is open."""
    tell(job, payload)


@task
async def note_async(payload, job):
    tell(job, payload)


@task(batch=10)
def note_batch(jobs: list[Job]):
    for job in jobs:
        tell(job)


@task
def take_along(payload, job: Job):
    """Ends its process, the first time."""
    tell(job)
    with psycopg.connect(os.environ["DATABASE_URL"]) as conn:
        (times,) = conn.execute("select count(*) from public.seen where job_id = %s", [job.id]).fetchone()
    while times == 1:
        with psycopg.connect(os.environ["DATABASE_URL"]) as conn:
            if conn.execute("select count(*) from public.seen").fetchone()[0] >= payload["witnesses"]:
                os._exit(9)
        time.sleep(0.01)
