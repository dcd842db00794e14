"""Tasks that the tests have workers run. What they see of themselves they write into the table `seen`."""

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import time
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta

import psycopg

from pyworker import AsyncJob, Cancel, Discard, Failed, Job, NotStarted, Snooze, task


class Canary(Exception):
    pass


ANSWERS = {
    "snooze": lambda _: Snooze(timedelta(hours=1)),
    "cancel": lambda word: Cancel(word),
    "discard": lambda word: Discard(word),
    "failed": lambda elements: Failed(elements, "some"),
    "error": lambda word: Canary(word),
    "exit": lambda word: SystemExit(word),
}


def tell(job, what=None):
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as conn:
        conn.execute("set lock_timeout = 0")  # whatever the role has: others extend this table, too
        conn.execute(
            "insert into public.seen (job_id, run, task, attempts, pid, told) "
            "values (%s, %s, %s, %s, %s, %s)",
            [job.id, job.run, job.task_identifier, job.attempts, os.getpid(), json.dumps(what)],
        )
        if isinstance(job.payload, dict) and "gate" in job.payload:
            conn.execute("select pg_advisory_lock_shared(77, %s)", [job.payload["gate"]])


def answer(payload):
    """{"raise": ["cancel", "why"]}, {"return": ["snooze", null]}, {"value": anything}."""
    if "raise" in payload:
        kind, argument = payload["raise"]
        raise ANSWERS[kind](argument)
    if "return" in payload:
        kind, argument = payload["return"]
        return ANSWERS[kind](argument)
    return payload.get("value")


@task(result=True, backoff=["1 hour"])
def act(payload, job):
    tell(job, payload)
    return answer(payload)


@task(result=True, backoff=["1 hour"])
async def act_async(payload, job):
    await asyncio.to_thread(tell, job, payload)
    return answer(payload)


@task(result=True)
def large(payload):
    return "x" * payload["size"]


@task(result=True)
def times(payload, job):
    return [job.run_at.isoformat(), job.created_at.isoformat()]


@task(result=True)
async def times_async(payload, job):
    return times.function(payload, job)


@task(result=True)
async def which_loop(payload):
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]


@task(result=True)
async def run_program(payload):
    program = await asyncio.create_subprocess_exec(*payload, stdout=asyncio.subprocess.PIPE)
    printed, _ = await program.communicate()
    return [printed.decode(), program.returncode]


@task
def note(payload, job: Job):
    tell(job, payload)


@task
def silent(payload):
    return "not kept: result is not asked for"


@task
async def silent_async(payload):
    return silent.function(payload)


@task(name="batch", backoff=["1 hour"])
def a_batch(payload: list, job):
    tell(job, payload)
    bad = [element for element in payload if isinstance(element, int) and element % 2]
    if bad:
        raise Failed(bad)


@task(backoff=["1 hour"])
def write(payload, job):
    """Writes to a table of the application in the transaction that ends the job."""
    with job.transaction() as conn:
        conn.execute("insert into public.seen (job_id, run) values (%s, %s)", [job.id, job.run])
        if "then" in payload:
            job.add_job(*payload["then"])
        if "gate" in payload:
            tell_outside(payload["gate"])
        if "raise" in payload:
            answer(payload)


@task(backoff=["1 hour"])
async def write_async(payload, job: AsyncJob):
    async with job.transaction() as conn:
        await conn.execute("insert into public.seen (job_id, run) values (%s, %s)", [job.id, job.run])
        if "then" in payload:
            await job.add_job(*payload["then"])
        if "gate" in payload:
            await asyncio.to_thread(tell_outside, payload["gate"])
        if "raise" in payload:
            answer(payload)


def tell_outside(gate):
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as conn:
        conn.execute("select pg_advisory_lock_shared(77, %s)", [gate])


@task
def follow(payload, job):
    """Adds its successor until the count is down."""
    tell(job, payload)
    if payload["left"]:
        job.add_job("follow", {"left": payload["left"] - 1}, queue_name=job.queue_name)


@task
async def follow_async(payload, job):
    await asyncio.to_thread(tell, job, payload)
    if payload["left"]:
        await job.add_job("follow_async", {"left": payload["left"] - 1}, queue_name=job.queue_name)


@task
def die(payload, job):
    """Takes its whole process along, the first time."""
    tell(job, payload)
    if job.attempts == 1 or "always" in payload:
        os.kill(os.getpid(), signal.SIGKILL)


@task
def read_stdin(payload, job):
    tell(job, subprocess.run(["cat"], capture_output=True, text=True).stdout)


@task(max_attempts=3, priority=-5, queue_name="letters", backoff=["1 hour"], retention=timedelta(days=30))
def with_defaults(payload):
    pass


@dataclass
class Letter:
    to: str
    bad: bool


@task(backoff=["1 hour"])
def letters(payload: list[Letter]):
    raise Failed([letter for letter in payload if letter.bad])


@task(result=True, backoff=["1 hour"])
def nonsense(payload):
    return float("nan") if payload["value"] else {1, 2}


def nth_run(job):
    """Whether this is the job's first run, its second …"""
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as conn:
        conn.execute("insert into public.runs values (%s)", [job.id])
        return conn.execute("select count(*) from public.runs where job_id = %s", [job.id]).fetchone()[0]


@task(backoff=[0.05])
def again(payload, job):
    """Until it has run so often."""
    if nth_run(job) < payload["runs"]:
        if "snooze" in payload:
            raise Snooze(payload["snooze"])
        raise Canary


@task
def hold_the_interpreter(payload, job):
    """No other thread of this process gets a turn any more."""
    tell(job)
    ctypes.PyDLL(None).pause()


@task
def leave_an_orphan(payload, job):
    read, write = os.pipe()
    subprocess.run(["sh", "-c", f"cat <&{read} &"], pass_fds=[read])
    os.close(read)
    os.close(write)  # and with that cat ends, long after its parent
    tell(job, {"parent": os.getppid()})


@task
def log_a_line(payload, job):
    job.logger.info("two\nlines")


@task(backoff=["1 hour"])
def not_awaited(payload):
    return asyncio.sleep(0)


def say(job, what):
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as conn:
        conn.execute("set lock_timeout = 0")  # whatever the role has: others extend this table, too
        conn.execute(
            "insert into public.seen (job_id, run, task, told) values (%s, %s, %s, %s)",
            [job.id, job.run, job.sequence_key, json.dumps(what)],
        )


@task(sequence_policy={"by_args": ["customer"]}, backoff=[0.05])
def in_turn(payload, job):
    """Says when it begins and ends; `fate` names what happens in its first runs."""
    say(job, "begin")
    if "fate" in payload and (run := nth_run(job)) <= len(payload["fate"]):
        match payload["fate"][run - 1]:
            case "e":
                say(job, "end")
                raise Canary
            case "s":
                say(job, "end")
                raise Snooze(0.05)
            case "k":
                os.kill(os.getpid(), signal.SIGKILL)
    say(job, "end")


@task(sequence_policy={"by_args": ["customer"]})
async def in_turn_async(payload, job):
    await asyncio.to_thread(say, job, "begin")
    await asyncio.to_thread(say, job, "end")


@task(delivery="at_most_once", max_attempts=5, backoff=[0.05])
def deliver(payload, job):
    """What must not be done twice."""
    if "not_started" in payload and payload["not_started"] == nth_run(job):
        raise NotStarted("the mail server is away")
    tell(job, payload)
    if payload.get("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    if payload.get("fail"):
        raise Canary


@task(delivery="at_most_once", max_attempts=5, backoff=[0.05])
async def deliver_async(payload, job):
    await asyncio.to_thread(deliver.function, payload, job)


@task(timeout=0.5, backoff=["1 hour"])
def too_long(payload, job):
    tell(job, payload)
    ctypes.PyDLL(None).pause()  # for ever, in C, and holding the interpreter


@task(timeout=0.5, backoff=["1 hour"])
async def too_long_async(payload, job):
    await asyncio.to_thread(tell, job, payload)
    await asyncio.sleep(3600)


@task(backoff=["1 hour"])
def look_around(payload, job):
    tell(job, "begun")
    while not job.cancelled:
        time.sleep(0.01)
    tell(job, "saw it")
    if payload.get("finish_anyway"):
        return
    raise Cancel("stopped")


@task
def look_away(payload, job):
    tell(job, "begun")
    while True:
        time.sleep(0.1)


@task(backoff=["1 hour"])
async def sleep_async(payload, job):
    try:  # before others can see that it has begun, and cancel it
        await asyncio.to_thread(tell, job, "begun")
        await asyncio.sleep(3600)
    finally:
        await asyncio.to_thread(tell, job, "cleaned up")


@task(backoff=[0.05])
def mail_once(payload, job):
    """At least once up to job.once, at most once after it."""
    first = job.once("mail")
    tell(job, first)
    if job.attempts == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@task(backoff=[0.05])
async def mail_once_async(payload, job):
    first = await job.once("mail")
    await asyncio.to_thread(tell, job, first)
    if job.attempts < 3:
        raise Canary


hoard: list[bytes] = []


@task(backoff=["1 hour"])
def hold_memory(payload, job):
    hoard.append(os.urandom(payload["mb"] << 20))
    tell(job, payload)


tenant_of_job = ContextVar("tenant_of_job", default="nobody's")
tenant_of_job.set("set on import")


@task(result=True)
def tenant(payload):
    before = tenant_of_job.get()
    tenant_of_job.set(payload)
    return before


@task(result=True)
async def tenant_async(payload):
    before = tenant_of_job.get()
    await asyncio.sleep(0)
    tenant_of_job.set(payload)
    return before


@task
def log_this(payload, job):
    job.logger.info("%s", payload)


SETTINGS = """
    insert into public.seen (job_id, told)
    values (%s, to_json(array[current_setting('app.tenant', true), current_setting('work_mem')]))"""


@task
def tell_settings(payload, job):
    """Those of the connection that its job gives it."""
    with job.transaction() as conn:
        conn.execute(SETTINGS, [job.id])


@task
async def tell_settings_async(payload, job: AsyncJob):
    async with job.transaction() as conn:
        await conn.execute(SETTINGS, [job.id])
