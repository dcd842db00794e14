"""Handlers that break what runs them: their outcomes cannot be shown, they stop the event loop,
copy or end their process."""

import asyncio
import os
import sys
import threading
from datetime import timedelta

from handlers import tell

from pyworker import AsyncJob, Cancel, Discard, Failed, Job, Snooze, task


class CardExpired(Cancel):
    """An ordinary subclass that does not call super().__init__()."""

    def __init__(self, card):
        self.card = card


class Hopeless(Discard):
    def __init__(self, why):
        self.why = why


class Later(Snooze):
    def __init__(self):
        pass


class Sometime(Snooze):
    def __init__(self):
        self.delay = object()


class Unshowable:
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


class BadText(Exception):
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


class BadNotes(Exception):
    @property
    def __notes__(self):
        raise RuntimeError("no notes")


class BadClass(Exception):
    @property
    def __class__(self):
        raise RuntimeError("no class")


class NoException(BaseException):
    pass


def deep():
    value = []
    for _ in range(200_000):
        value = [value]
    return value


def raising(make):
    def act(job):
        raise make()

    return act


def recurse(job):
    return recurse(job) + 1


def close_streams(job):
    sys.stdout.close()
    sys.stderr.write("before the end\n")


def fork(end):
    def act(job):
        if os.fork() == 0:
            tell(job, "copy")
            end()
        os.wait()

    return act


def exit_copy():
    sys.exit(0)


def fail_copy():
    raise ValueError("in the copy")


def first_time(deed):
    """What ends the process happens once, so that the job can end well."""

    def act(job):
        if job.attempts == 1:
            deed()

    return act


def break_getpid():
    def broken():
        raise RuntimeError("no pid")

    os.getpid = broken


# What a job of this name does, sync or async …
MENU = {
    "Cancel without init": raising(lambda: CardExpired("4242")),
    "Discard without init": raising(lambda: Hopeless("no hope")),
    "Snooze without init": raising(Later),
    "Snooze by nonsense": raising(Sometime),
    "Snooze for ever": raising(lambda: Snooze(timedelta.max)),
    "Cancel that cannot be shown": raising(lambda: Cancel(Unshowable())),
    "huge Discard": raising(lambda: Discard("x" * 30_000_000)),
    "deep Failed": raising(lambda: Failed([deep()])),
    "Failed that is no JSON": raising(lambda: Failed([Unshowable()])),
    "bad notes": raising(lambda: BadNotes("notes")),
    "bad text": raising(BadText),
    "bad class": raising(BadClass),
    "huge text": raising(lambda: ValueError("\ud800é\0" * 3_000_000)),
    "SystemExit": raising(lambda: SystemExit("bad config")),
    "KeyboardInterrupt": raising(KeyboardInterrupt),
    "GeneratorExit": raising(GeneratorExit),
    "StopIteration": raising(lambda: StopIteration(5)),
    "BaseException": raising(NoException),
    "group": raising(lambda: BaseExceptionGroup("g", [KeyboardInterrupt(), ValueError("x")])),
    "recursion": recurse,
    "NUL result": lambda job: {"a\0b": ["\0\0", "\\u0000", "\\\0", "😀"]},
    "half pair result": lambda job: ["\ud83d", "\udc00\ud83d", "\\ud800", "😀"],
    "closed streams": close_streams,
    "copy exits": fork(exit_copy),
    "copy returns": fork(lambda: None),
    "copy fails": fork(fail_copy),
}  # fmt: skip


@task(result=True, backoff=["1 hour"])
def hostile(payload, job: Job):
    tell(job)
    return MENU[payload["how"]](job)


@task(result=True, backoff=["1 hour"])
async def hostile_async(payload, job: AsyncJob):
    await asyncio.to_thread(tell, job)
    act = MENU.get(payload["how"])
    return act(job) if act else await LOOP[payload["how"]](job)


# … or only an async one.
async def exit_in_subtask(job):
    async def inner():
        sys.exit("bad config")

    await asyncio.gather(inner())


async def interrupt_in_group(job):
    async def inner():
        raise KeyboardInterrupt

    async with asyncio.TaskGroup() as group:
        group.create_task(inner())


async def exit_in_callback(job):
    asyncio.get_running_loop().call_soon(sys.exit, "from a callback")
    await asyncio.sleep(0.01)


async def stop_loop(job):
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.01)


async def cancel_subtask(job):
    inner = asyncio.create_task(asyncio.sleep(10))
    inner.cancel()
    await inner


async def cancel_itself(job):
    asyncio.current_task().cancel()
    await asyncio.sleep(10)


LOOP = {
    "SystemExit in a subtask": exit_in_subtask,
    "KeyboardInterrupt in a group": interrupt_in_group,
    "SystemExit in a callback": exit_in_callback,
    "stopped loop": stop_loop,
    "cancelled subtask": cancel_subtask,
    "cancels itself": cancel_itself,
}


@task(backoff=["1 hour"])
async def cancel_all(payload, job):
    """Cancels every task of the loop: those that have not begun, too."""
    for one in asyncio.all_tasks() - {asyncio.current_task()}:
        one.cancel()


@task(backoff=["1 hour"])
async def bystander(payload):
    pass


def broken_loop():
    loop = asyncio.get_running_loop()

    def broken():
        raise RuntimeError("this loop never turns again")

    loop.run_forever = broken
    loop.stop()


ENDS = {
    "exits with 0": lambda: os._exit(0),
    "exits with 78": lambda: os._exit(78),
    "breaks what the worker needs": break_getpid,
    "breaks the loop": broken_loop,
}


@task(backoff=[0.05])
def ends_process(payload, job):
    tell(job)
    if job.attempts == 1:
        ENDS[payload["how"]]()


@task(backoff=[0.05])
async def ends_process_async(payload, job):
    tell(job)
    if job.attempts == 1:
        ENDS[payload["how"]]()
        if "then" in payload:
            await asyncio.sleep(payload["then"])


@task(backoff=["1 hour"], result=True)
def in_transactions(payload, job: Job):
    """A second transaction of the same job: inside the first, after it, or after one that was rolled back."""
    refused = []

    def write(what, then=None):
        with job.transaction() as conn:
            conn.execute(
                "insert into public.seen (job_id, told) values (%s, to_json(%s::text))", [job.id, what]
            )
            if then:
                then()

    def nested():
        try:
            write("inner")
        except Exception as error:
            refused.append(f"{type(error).__name__}: {error}")
        if "raise" in payload:
            write("inner")

    match payload["how"]:
        case "inside":
            write("outer", nested)
        case "after":
            write("outer")
            nested()
        case "raises after":
            write("outer")
            raise ValueError("too late")
        case "after rollback":
            try:
                write("undone", lambda: 1 / 0)
            except ZeroDivisionError:
                write("outer")
    tell(job, refused)


@task(backoff=["1 hour"], result=True)
async def in_transactions_async(payload, job: AsyncJob):
    refused = []

    async def write(what, then=None):
        async with job.transaction() as conn:
            await conn.execute(
                "insert into public.seen (job_id, told) values (%s, to_json(%s::text))", [job.id, what]
            )
            if then:
                await then()

    async def nested():
        try:
            await write("inner")
        except Exception as error:
            refused.append(f"{type(error).__name__}: {error}")
        if "raise" in payload:
            await write("inner")

    async def fail():
        raise ZeroDivisionError

    match payload["how"]:
        case "inside":
            await write("outer", nested)
        case "after":
            await write("outer")
            await nested()
        case "raises after":
            await write("outer")
            raise ValueError("too late")
        case "after rollback":
            try:
                await write("undone", fail)
            except ZeroDivisionError:
                await write("outer")
    await asyncio.to_thread(tell, job, refused)


@task(backoff=["1 hour"])
def once_in_transaction(payload, job: Job):
    with job.transaction() as conn:
        conn.execute("insert into public.seen (job_id, told) values (%s, '\"written\"')", [job.id])
        tell(job, job.once("mail"))
        if payload.get("fail"):
            raise ValueError


@task(backoff=["1 hour"])
async def once_in_transaction_async(payload, job: AsyncJob):
    async with job.transaction() as conn:
        await conn.execute("insert into public.seen (job_id, told) values (%s, '\"written\"')", [job.id])
        await asyncio.to_thread(tell, job, await job.once("mail"))
        if payload.get("fail"):
            raise ValueError


held = threading.Event()


@task(backoff=["1 hour"], result=True)
def stubborn(payload, job: Job):
    """Goes on although its run was cancelled by force."""
    tell(job)
    return job.run


@task(backoff=["1 hour"])
def starts_threads(payload, job):
    """As many as there may be, which end with the job."""
    end, started = threading.Event(), 0
    try:
        while True:
            threading.Thread(target=end.wait, daemon=True).start()
            started += 1
    except RuntimeError:
        tell(job, started)
    finally:
        end.set()
