"""Handlers that catch the error of a statement, and do as if nothing had happened."""

import contextlib

import psycopg

from pyworker import AsyncJob, Job, task

BAD = "select * from no_such_table"
TELL = "insert into public.seen (job_id, run, told) values (%s, %s, '\"done\"')"


def statements(conn, job, inside):
    """One that fails in a transaction, in a savepoint around it, or in one that catches it inside itself."""
    if inside == "nothing":
        with contextlib.suppress(psycopg.Error):
            conn.execute(BAD)
    elif inside == "a savepoint":
        with contextlib.suppress(psycopg.Error), conn.transaction():
            conn.execute(BAD)
        conn.execute(TELL, [job.id, job.run])
    elif inside == "a savepoint that hides it":
        with conn.transaction(), contextlib.suppress(psycopg.Error):
            conn.execute(BAD)
    else:
        conn.execute(TELL, [job.id, job.run])
        with contextlib.suppress(psycopg.Error):
            conn.execute(BAD)


async def statements_async(conn, job, inside):
    if inside == "nothing":
        with contextlib.suppress(psycopg.Error):
            await conn.execute(BAD)
    elif inside == "a savepoint":
        with contextlib.suppress(psycopg.Error):
            async with conn.transaction():
                await conn.execute(BAD)
        await conn.execute(TELL, [job.id, job.run])
    elif inside == "a savepoint that hides it":
        async with conn.transaction():
            with contextlib.suppress(psycopg.Error):
                await conn.execute(BAD)
    else:
        await conn.execute(TELL, [job.id, job.run])
        with contextlib.suppress(psycopg.Error):
            await conn.execute(BAD)


@task
def in_its_transaction(inside, job: Job):
    with job.transaction() as conn:
        statements(conn, job, inside)


@task
async def in_its_transaction_async(inside, job: AsyncJob):
    async with job.transaction() as conn:
        await statements_async(conn, job, inside)


@task
def in_a_step(inside, job: Job):
    with job.step_transaction("a") as step:
        if not step.done:
            statements(step.connection, job, inside)
            step.result = 1


@task
async def in_a_step_async(inside, job: AsyncJob):
    async with job.step_transaction("a") as step:
        if not step.done:
            await statements_async(step.connection, job, inside)
            step.result = 1
