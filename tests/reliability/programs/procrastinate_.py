"""procrastinate: one asynchronous worker of 10 jobs, with the task that its documentation gives for stalled
jobs: it retries those whose worker has had no heartbeat for 30 seconds, the default. There it runs each ten
minutes, here each minute."""

import asyncio
import json
import os
import sys

import procrastinate
import psycopg
from lines import answer, payload_of, run_of, up, write

DSN = os.environ["DATABASE_URL"]
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=DSN, min_size=1, max_size=15))


async def _run(context, op, key, ms):
    run = run_of({"op": op}, context.job.id, context.job.attempts)
    write("start", **run)
    await asyncio.sleep(ms / 1000)
    write("end", **run)


for kind in ("plain", "once", "unique", "sequence"):
    app.task(_run, name=kind, pass_context=True, retry=0 if kind == "once" else 25)


@app.periodic(cron="* * * * *")
@app.task(queueing_lock="retry_stalled_jobs", pass_context=True)
async def retry_stalled_jobs(context, timestamp):
    for job in await app.job_manager.get_stalled_jobs():
        if job.task_name != "once":
            await app.job_manager.retry_job(job)


def options_of(call):
    if call["kind"] == "unique":
        return {"queueing_lock": call["key"], "schedule_in": {"seconds": call["delay"]}}
    return {"lock": call["key"]} if call["kind"] == "sequence" else {}


async def setup():
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def work():
    async with app.open_async():
        up()
        await app.run_worker_async(concurrency=10)


async def add(conn, call):
    task = app.configure_task(call["kind"], connection=conn, **options_of(call))
    try:
        await task.defer_async(**payload_of(call))
    except procrastinate.exceptions.AlreadyEnqueued:
        await conn.rollback()


async def produce():
    conn = None
    async with app.open_async():
        answer(ready=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            call = json.loads(line)
            try:
                if conn is None or conn.closed:
                    conn = await psycopg.AsyncConnection.connect(DSN)
                await add(conn, call)
                if call["end"] == "hang":
                    answer(op=call["op"], phase="added")
                    await asyncio.Event().wait()
                await (conn.commit if call["end"] == "commit" else conn.rollback)()
                answer(op=call["op"], phase="ok" if call["end"] == "commit" else "rolled back")
            except Exception as error:
                if conn is not None:
                    await conn.close()
                answer(op=call["op"], phase="unknown", error=str(error))


asyncio.run({"setup": setup, "work": work, "produce": produce}[sys.argv[1]]())
