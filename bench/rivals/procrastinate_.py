"""procrastinate: the asynchronous connector, 24 jobs at once, LISTEN/NOTIFY as by default."""

import asyncio
from typing import Any

import procrastinate
from repl import DSN, calls, chunks, latencies, noop, payload, serve, stamp

app: Any = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=DSN, min_size=1, max_size=34))
loops = 1
tasks = []


@app.task(name="noop", queue="default")
async def noop_task(**_):
    noop()


@app.task(name="stamp", queue="default")
async def stamp_task(**arguments):
    stamp(arguments)


async def setup():
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def connect(connections):
    global loops
    loops = connections
    await app.open_async()


async def add(n):
    await calls(n, loops, lambda i, _: noop_task.defer_async(**payload(i)))


async def bulk(n):
    for chunk in chunks(n):
        await noop_task.batch_defer_async(*map(payload, chunk))


async def latency(n, gap_ms):
    async for moment in latencies(n, gap_ms):
        await stamp_task.defer_async(**moment)


async def work(concurrency, *_):
    await app.open_async()
    tasks.append(
        asyncio.create_task(app.run_worker_async(concurrency=concurrency, install_signal_handlers=False))
    )


serve({verb.__name__: verb for verb in (setup, connect, add, bulk, latency, work)})
