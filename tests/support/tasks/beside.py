"""Handlers of which several asyncio tasks or threads use the job at once."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from pyworker import AsyncJob, Job, WrongState, task


@task(result=True)
def nobody(payload):
    return payload


async def refusal(awaitable):
    try:
        await awaitable
    except WrongState as error:
        return str(error)
    return "it was not refused"


def in_threads(*functions):
    """Run each in a thread of its own, and raise the first error."""
    with ThreadPoolExecutor(len(functions)) as pool:
        return [one.result(20) for one in [pool.submit(function) for function in functions]]


@task(max_attempts=2, backoff=["0 s"], result=True)
async def two_steps_async(payload, job: AsyncJob):
    both, added = asyncio.Barrier(2), asyncio.Event()

    async def first():
        async with job.step_transaction("a") as step:
            if not step.done:
                await both.wait()
                await job.add_job("nobody", "first")
                step.result = "a"
        added.set()

    async def second():
        async with job.step_transaction("b") as step:
            if not step.done:
                if job.attempts == 1:
                    await both.wait()
                await job.add_job("nobody", "second")
                await added.wait()
                if job.attempts == 1:
                    raise ValueError("the second step fails once")

    for error in await asyncio.gather(first(), second(), return_exceptions=True):
        if error:
            raise error


@task(max_attempts=2, backoff=["0 s"], result=True)
def two_steps(payload, job: Job):
    both, added = threading.Barrier(2), threading.Event()

    def first():
        with job.step_transaction("a") as step:
            if not step.done:
                both.wait(20)
                job.add_job("nobody", "first")
                step.result = "a"
        added.set()

    def second():
        with job.step_transaction("b") as step:
            if not step.done:
                if job.attempts == 1:
                    both.wait(20)
                job.add_job("nobody", "second")
                added.wait(20)
                if job.attempts == 1:
                    raise ValueError("the second step fails once")

    in_threads(first, second)


@task(max_attempts=1)
async def sibling_adds_async(block, job: AsyncJob):
    """One task adds a job while another one has a block open that is rolled back."""
    is_open, added = asyncio.Event(), asyncio.Event()

    async def sibling():
        await is_open.wait()
        await job.add_job("nobody", "sibling")
        added.set()

    beside = asyncio.create_task(sibling())
    try:
        async with job.transaction() if block == "transaction" else job.step_transaction("a"):
            is_open.set()
            await added.wait()
            await asyncio.gather(*[job.add_job("nobody", "within") for _ in range(2)])
            raise ValueError("rolled back")
    finally:
        await beside


@task(max_attempts=1)
def sibling_adds(block, job: Job):
    is_open, added = threading.Event(), threading.Event()

    def sibling():
        is_open.wait(20)
        job.add_job("nobody", "sibling")
        added.set()

    def opener():
        with job.transaction() if block == "transaction" else job.step_transaction("a"):
            is_open.set()
            added.wait(20)
            job.add_job("nobody", "within")
            raise ValueError("rolled back")

    in_threads(opener, sibling)


@task(max_attempts=1)
async def outlives_its_block(payload, job: AsyncJob):
    ended = asyncio.Event()

    async def late():
        await ended.wait()
        await job.add_job("nobody", "late")

    async with job.step_transaction("a"):
        child = asyncio.create_task(late())
        await job.add_job("nobody", "within")
    ended.set()
    async with job.step_transaction("b"):
        await child
    await job.step("c", int)
    async with job.transaction():
        await job.add_job("nobody", "last")


@task(max_attempts=1, result=True)
async def refused_async(payload, job: AsyncJob):
    is_open, told = asyncio.Event(), []

    async def completes():
        async with job.transaction():
            pass

    async def waits(event):
        await event.wait()

    async def opener():
        async with job.transaction() as conn:
            is_open.set()
            told.append(await refusal(job.step("inside", int)))
            told.append(await refusal(completes()))
            await conn.execute("select 1")
            while len(told) < 4:
                await asyncio.sleep(0.01)

    async def beside():
        told.append(await refusal(job.step("beside", int)))
        told.append(await refusal(completes()))

    done = asyncio.Event()
    underway = asyncio.create_task(job.step("slow", waits, done))
    await asyncio.sleep(0.01)
    first = await refusal(completes())
    done.set()
    await underway
    opens = asyncio.create_task(opener())
    await is_open.wait()
    await asyncio.gather(opens, beside())
    await (await asyncio.to_thread(lambda: job.add_job))("nobody", [first, *told])


@task(max_attempts=1, result=True)
async def many_steps_async(count, job: AsyncJob):
    async def one(n):
        async with job.step_transaction(f"{n}") as step:
            await step.connection.execute("select 1")
            await job.progress(1)
            assert await job.once(f"{n}")
            step.result = n
        return step.result

    return await asyncio.gather(*map(one, range(count)))


@task(max_attempts=1, result=True)
def many_steps(count, job: Job):
    def one(n):
        with job.step_transaction(f"{n}") as step:
            step.connection.execute("select 1")
            job.progress(1)
            assert job.once(f"{n}")
            step.result = n
        return step.result

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


@task(max_attempts=1, result=True)
def steps_in_threads(payload, job: Job):
    done = []
    thread = threading.Thread(target=lambda: done.append(job.step("a", str, 1)))
    thread.start()
    thread.join(20)
    return [*done, *in_threads(*[lambda n=n: job.step(f"b {n}", int, n) for n in range(3)])]


@task(max_attempts=1, result=True)
async def steps_in_threads_async(payload, job: AsyncJob):
    loop = asyncio.get_running_loop()

    def in_thread():
        return asyncio.run_coroutine_threadsafe(job.step("a", str, 1), loop).result(20)

    async def own_loop():
        return await refusal(job.step("b", int))

    await job.step("first", int)
    return [await asyncio.to_thread(in_thread), await asyncio.to_thread(lambda: asyncio.run(own_loop()))]
