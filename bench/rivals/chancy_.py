"""Chancy: the asynchronous executor, 1,000 jobs at once, eager polling."""

from chancy import Chancy, Queue, Worker, job
from repl import DSN, calls, chunks, latencies, noop, payload, serve, stamp

app = Chancy(DSN, min_connection_pool_size=1, max_connection_pool_size=34)
workers = []
loops = 1


@job()
async def noop_job(**_):
    noop()


@job()
async def stamp_job(**arguments):
    stamp(arguments)


async def setup():
    async with Chancy(DSN) as chancy:
        await chancy.migrate()
        await chancy.declare(
            Queue(
                "default",
                concurrency=1000,
                executor=Chancy.Executor.Async,
                polling_interval=1,
                eager_polling=True,
            )
        )


async def connect(connections):
    global loops
    loops = connections
    await app.pool.open()


async def add(n):
    await calls(n, loops, lambda i, _: app.push(noop_job.job.with_kwargs(**payload(i))))


async def bulk(n):
    for chunk in chunks(n):
        async for _ in app.push_many([noop_job.job.with_kwargs(**payload(i)) for i in chunk]):
            pass


async def latency(n, gap_ms):
    async for moment in latencies(n, gap_ms):
        await app.push(stamp_job.job.with_kwargs(**moment))


async def work(*_):
    await app.pool.open()
    workers.append(Worker(app, register_signal_handlers=False))
    await workers[0].start()


if __name__ == "__main__":
    import chancy_  # its functions are found by the name of their module

    serve({name: getattr(chancy_, name) for name in ("setup", "connect", "add", "bulk", "latency", "work")})
