"""Threads, tasks of asyncio, processes and programs that handlers start."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import pyworker
from pyworker import AsyncJob, Job
from tests.habit.table import habit

TENANT = contextvars.ContextVar("tenant", default="none")


def double(number):
    return number * 2


@habit(returns=[0, 2, 4, 6])
def a_pool_of_threads(payload):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return list(pool.map(double, range(4)))


@habit(returns=[True, True, True])
def the_job_in_a_pool_of_threads(payload, job: Job):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return list(pool.map(lambda number: job.once(f"number {number}"), range(3)))


@habit(returns="done")
def a_thread_that_is_joined(payload):
    found = []
    thread = threading.Thread(target=lambda: found.append("done"))
    thread.start()
    thread.join()
    return found[0]


@habit()
def a_daemon_thread_left_behind(payload):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()


@habit(returns=[0, 2, 4, 6])
def multiprocessing_pool(payload):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(double, range(4))


@habit(returns=[0, 2, 4, 6])
def multiprocessing_pool_spawned(payload):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        return pool.map(double, range(4))


@habit(returns=[0, 2, 4])
def a_pool_of_processes(payload):
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        return list(pool.map(double, range(3)))


@habit(fails="give other processes job.payload and job.id")
def the_job_in_a_pool_of_processes(payload, job: Job):
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        pool.submit(repr, job).result()


@habit(fails="give other processes job.payload and job.id")
async def the_job_in_a_process(payload, job: AsyncJob):
    multiprocessing.get_context("spawn").Process(target=print, args=(job,)).start()


@habit(returns="BrokenProcessPool")
def a_pool_whose_process_exits(payload):
    context = multiprocessing.get_context("fork")
    try:
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
            pool.submit(os._exit, 1).result()
    except concurrent.futures.process.BrokenProcessPool as error:
        return type(error).__name__


@habit(returns=-signal.SIGTERM)
def a_process_that_is_terminated(payload):
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    process.start()
    process.terminate()
    process.join()
    return process.exitcode


@habit(returns=7)
def a_fork_by_hand(payload):
    child = os.fork()
    if not child:
        os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@habit(returns="a program\n")
def a_program(payload):
    return subprocess.run(["echo", "a program"], capture_output=True, text=True, check=True).stdout


@habit(returns="from stdin")
def a_program_with_input(payload):
    return subprocess.run(["cat"], input="from stdin", capture_output=True, text=True, check=True).stdout


@habit(returns=-signal.SIGTERM)
def a_program_that_is_terminated(payload):
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    program.terminate()
    return program.wait()


@habit(fails="CalledProcessError")
def a_program_that_fails(payload):
    subprocess.run(["false"], check=True)


@habit(fails="TimeoutExpired")
def a_program_that_takes_too_long(payload):
    subprocess.run(["sleep", "60"], timeout=0.05, check=True)


@habit(returns="by asyncio\n")
async def a_program_of_asyncio(payload):
    program = await asyncio.create_subprocess_exec("echo", "by asyncio", stdout=asyncio.subprocess.PIPE)
    return (await program.communicate())[0].decode()


@habit(returns=[0, 2, 4])
async def gather(payload):
    async def later(number):
        await asyncio.sleep(0)
        return double(number)

    return await asyncio.gather(*(later(number) for number in range(3)))


@habit(returns=["a", "b", "c"])
async def gathered_steps(payload, job: AsyncJob):
    async def work(name):
        return name

    return await asyncio.gather(*(job.step(name, work, name) for name in "abc"))


@habit(fails="the function of step 'a' is async")
def a_step_of_an_async_function(payload, job: Job):
    async def work():
        return 1

    job.step("a", work)


@habit(returns=2)
async def a_step_of_a_plain_function(payload, job: AsyncJob):
    return await job.step("a", lambda: 2)


@habit(returns=6)
async def gathered_step_transactions(payload, job: AsyncJob):
    """Each adds a job in its own transaction: none of them is lost."""

    async def one(number):
        async with job.step_transaction(f"step {number}") as step:
            if not step.done:
                await step.connection.execute("select pg_sleep(0.01)")
                await job.add_job("counted")
                step.result = number

    await asyncio.gather(*(one(number) for number in range(2)))
    return 6


@habit(returns=3)
async def gathered_adds(payload, job: AsyncJob):
    added = await asyncio.gather(*(job.add_job("pong", {"n": n}) for n in range(3)))
    return len({row.id for row in added})


@habit(returns=4)
async def a_task_group(payload):
    async with asyncio.TaskGroup() as group:
        made = [group.create_task(asyncio.to_thread(double, n)) for n in (1, 1)]
    return sum(task.result() for task in made)


@habit(fails="ExceptionGroup")
async def a_task_group_that_fails(payload):
    async def fail():
        raise ValueError("deliberate")

    async with asyncio.TaskGroup() as group:
        group.create_task(fail())


@habit(ends="cancelled")
async def a_task_group_that_cancels(payload):
    async def cancel():
        raise pyworker.Cancel("no longer wanted")

    async with asyncio.TaskGroup() as group:
        group.create_task(cancel())


@habit(ends="scheduled")
async def a_task_group_that_snoozes(payload):
    async def snooze():
        raise pyworker.Snooze(3600)

    async with asyncio.TaskGroup() as group:
        group.create_task(snooze())


@habit(fails="TimeoutError")
async def a_timeout_of_asyncio(payload):
    async with asyncio.timeout(0.01):
        await asyncio.sleep(60)


@habit(returns="caught")
async def a_timeout_of_asyncio_caught(payload):
    try:
        await asyncio.wait_for(asyncio.sleep(60), 0.01)
    except TimeoutError:
        return "caught"


@habit(returns="ran")
def asyncio_run_in_a_sync_handler(payload):
    async def main():
        await asyncio.sleep(0)
        return "ran"

    return asyncio.run(main())


@habit()
async def a_task_of_asyncio_left_behind(payload):
    LEFT.append(asyncio.create_task(asyncio.sleep(60)))


LEFT: list[asyncio.Task[None]] = []


@habit(returns=[True, True])
async def the_job_in_other_threads(payload, job: AsyncJob):
    def sync_once(number):
        return asyncio.run_coroutine_threadsafe(job.once(f"number {number}"), loop).result()

    loop = asyncio.get_running_loop()
    return await asyncio.gather(*(asyncio.to_thread(sync_once, number) for number in range(2)))


@habit(returns="none")
def a_context_variable_is_set(payload):
    before = TENANT.get()
    TENANT.set("acme")
    return before


@habit(returns="none")
async def a_context_variable_is_set_async(payload):
    before = TENANT.get()
    TENANT.set("acme")
    await asyncio.sleep(0)
    return before


@habit(fails="signal only works in main thread")
def a_signal_handler(payload):
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


@habit(returns="cached")
def a_cache(payload):
    return cached("cached")


@functools.lru_cache
def cached(value):
    return value
