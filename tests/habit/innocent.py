"""Jobs of other tasks, that run after a habit in the same worker and find all as it was before."""

from __future__ import annotations

from pyworker import AsyncJob, Job, task

# What a handler before may have left behind on the connection.
STATE = """
    select current_user = session_user, current_setting('statement_timeout'), current_setting('timezone'),
        current_setting('datestyle'), current_setting('search_path'),
        current_setting('transaction_isolation'), current_setting('transaction_read_only'),
        (select count(*) from pg_listening_channels()),
        (select count(*) from pg_prepared_statements where name = 'habit_statement'),
        (select count(*) from pg_locks where pid = pg_backend_pid() and locktype = 'advisory'),
        (select count(*) from pg_class
         where relname = 'habit_temporary' and relnamespace = pg_my_temp_schema())
"""


@task(result=True)
def next_job(payload, job: Job):
    first = job.once("next")
    with job.step_transaction("look") as step:
        conn = step.connection
        row = conn.execute(STATE).fetchone()
        step.result = [first, type(row).__name__, conn.autocommit, *row]
    return step.result


@task(result=True)
async def next_job_async(payload, job: AsyncJob):
    first = await job.once("next")
    async with job.step_transaction("look") as step:
        conn = step.connection
        row = await (await conn.execute(STATE)).fetchone()
        step.result = [first, type(row).__name__, conn.autocommit, *row]
    return step.result


@task(result=True)
def pong(payload):
    return payload


@task
def counted(payload):
    pass
