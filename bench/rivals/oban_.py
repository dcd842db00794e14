"""Oban for Python (needs Python 3.12): one queue with a limit of 100."""

from oban import Oban, worker
from oban.schema import install
from psycopg_pool import AsyncConnectionPool
from repl import DSN, calls, chunks, latencies, noop, payload, serve, stamp

running = []
client = None
loops = 1


async def pool(size):
    found = AsyncConnectionPool(DSN, min_size=1, max_size=size, open=False)
    await found.open()
    return found


@worker(queue="default")
class Noop:
    async def process(self, _job):
        noop()


@worker(queue="default")
class Stamp:
    async def process(self, job):
        stamp(job.args)


async def setup():
    await install(await pool(1))


async def connect(connections):
    global client, loops
    loops = connections
    client = Oban(pool=await pool(connections), name="client")


async def add(n):
    await calls(n, loops, lambda i, _: client.enqueue(Noop.new(payload(i))))


async def bulk(n):
    for chunk in chunks(n):
        await client.enqueue_many([Noop.new(payload(i)) for i in chunk])


async def latency(n, gap_ms):
    async for moment in latencies(n, gap_ms):
        await client.enqueue(Stamp.new(moment))


async def work(*_):
    running.append(Oban(pool=await pool(10), queues={"default": 100}))
    await running[0].start()


if __name__ == "__main__":
    import oban_

    serve({name: getattr(oban_, name) for name in ("setup", "connect", "add", "bulk", "latency", "work")})
