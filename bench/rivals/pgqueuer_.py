"""pgqueuer: asyncpg and uvloop, batches of 100, or of 10 for latency. Its documentation recommends larger
batches for throughput."""

import asyncio
import json
import os

import asyncpg
import uvloop
from pgqueuer.db import AsyncpgDriver
from pgqueuer.qm import QueueManager
from pgqueuer.queries import Queries
from repl import DSN, calls, chunks, latencies, noop, payload, serve, stamp

clients: list[Queries] = []
tasks = []


async def driver():
    return AsyncpgDriver(await asyncpg.connect(DSN))


async def setup():
    await Queries(await driver()).install()


async def connect(connections):
    for _ in range(connections):
        clients.append(Queries(await driver()))


def body(value):
    return json.dumps(value).encode()


async def add(n):
    await calls(n, len(clients), lambda i, lane: clients[lane].enqueue("noop", body(payload(i))))


async def bulk(n):
    for chunk in chunks(n):
        await clients[0].enqueue(["noop"] * len(chunk), [body(payload(i)) for i in chunk], [0] * len(chunk))


async def latency(n, gap_ms):
    async for moment in latencies(n, gap_ms):
        await clients[0].enqueue("stamp", body(moment))


async def work(_concurrency, quick=False):
    manager = QueueManager(Queries(await driver()))

    @manager.entrypoint("noop", concurrency_limit=int(os.environ.get("BENCH_LIMIT") or 0))
    async def _(job):
        json.loads(job.payload)
        noop()

    @manager.entrypoint("stamp")
    async def _(job):
        stamp(json.loads(job.payload))

    @manager.entrypoint("steady")
    async def _(job):
        stamp(json.loads(job.payload))
        await asyncio.sleep(0.005)

    tasks.append(asyncio.create_task(manager.run(batch_size=10 if quick else 100)))


asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
serve({verb.__name__: verb for verb in (setup, connect, add, bulk, latency, work)})
