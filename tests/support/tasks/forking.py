"""Tasks that start processes: forked copies, multiprocessing, programs."""

import asyncio
import atexit
import concurrent.futures
import logging.handlers
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

from handlers import tell

import pyworker
from pyworker import AsyncJob, Job, task

module_wide = None


def context(payload):
    return multiprocessing.get_context(payload.get("method", "fork"))


def sleep_long(begun):
    begun.set()
    time.sleep(3600)


@task(max_attempts=1, result=True)
def terminated(payload):
    """Ended by each signal: at once, or (SIGINT) when it sleeps.

    A KeyboardInterrupt within what Python itself does in a new copy is lost, in any program.
    """
    codes = []
    for number in payload["numbers"]:
        begun = context(payload).Event()
        process = context(payload).Process(target=sleep_long, args=(begun,))
        process.start()
        if number == signal.SIGINT:
            begun.wait()
        os.kill(process.pid, number)
        process.join()
        codes.append(process.exitcode)
    return codes


@task(max_attempts=1, result=True)
async def terminated_async(payload):
    return terminated.function(payload)


@task(max_attempts=1, result=True)
def pool(payload):
    with context(payload).Pool(2) as made:
        try:
            made.apply_async(time.sleep, (3600,)).get(timeout=0.1)
        except multiprocessing.TimeoutError:
            return made.apply(pow, (7, 2))


def leave(code):
    os._exit(code)


@task(max_attempts=1, result=True)
def broken_executor(payload):
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context(payload)) as executor:
        busy = executor.submit(time.sleep, 3600)
        executor.submit(leave, 3)
        return type(busy.exception()).__name__


@task(max_attempts=1, result=True)
def preexec(payload):
    """What a program gets whose start runs Python code in a copy."""
    command = ["grep", "-E", "^Sig(Blk|Ign|Cgt)", "/proc/self/status"]
    return subprocess.run(command, preexec_fn=os.getpid, capture_output=True, text=True).stdout


@task(max_attempts=1, result=True)
def copy_of_a_thread(payload):
    """A copy that a thread of the handler's own makes, ended by a signal."""
    codes = []

    def fork():
        pid = os.fork()
        if pid == 0:
            time.sleep(3600)
            os._exit(1)
        os.kill(pid, signal.SIGTERM)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()
    return codes


PROGRAMS = {
    "program": ["sleep", "3600"],
    "shell": ["sh", "-c", "sleep 3600; true"],
    "ignores SIGTERM": ["sh", "-c", "trap '' TERM; sleep 3600; sleep 3600"],
    "own session": ["sleep", "3600"],
}


def start(job, payload):
    """Start what `payload` names, and tell its pids."""
    global module_wide
    pids = []
    how = payload["start"]
    if how in PROGRAMS:
        pids.append(subprocess.Popen(PROGRAMS[how], start_new_session=how == "own session").pid)
    elif how == "copy":
        pid = os.fork()
        if pid == 0:
            time.sleep(3600)
            os._exit(0)
        pids.append(pid)
    elif how == "executor":
        module_wide = concurrent.futures.ProcessPoolExecutor(2, mp_context=context(payload))
        pids += {module_wide.submit(os.getpid).result() for _ in range(2)}
    elif how == "process":
        process = context(payload).Process(target=time.sleep, args=(3600,))
        process.start()
        pids.append(process.pid)
    tell(job, pids)


@task(backoff=["1 hour"])
def starts(payload, job):
    start(job, payload)
    if payload.get("then") == "wait":
        time.sleep(3600)
    elif payload.get("then") == "die":
        os.kill(os.getpid(), signal.SIGKILL)


@task(backoff=["1 hour"], timeout=3)
def starts_for_long(payload, job):
    starts.function(payload, job)


@task(backoff=[0.05], timeout=3)
def cleans_up(payload, job):
    """A program that ends in its own way at SIGTERM."""
    code = f"trap 'sleep 0.2; echo cleaned > {payload['file']}; exit' TERM; echo up; sleep 3600 & wait"
    program = subprocess.Popen(["sh", "-c", code], stdout=subprocess.PIPE)
    program.stdout.readline()
    tell(job, [program.pid])
    program.wait()


@task
def on_exit(payload, job):
    """Registers what is to happen when the process ends."""

    def write(text):
        with open(payload["file"], "a") as file:
            file.write(text + "\n")

    class Written(logging.Handler):
        def emit(self, record):
            write(record.getMessage())

    kept = logging.handlers.MemoryHandler(1000, flushLevel=logging.CRITICAL + 1, target=Written())
    logging.getLogger("kept").addHandler(kept)
    logging.getLogger("kept").error("flushed")
    atexit.register(write, "hook")
    if how := payload.get("hangs"):
        if how == "hook":
            atexit.register(time.sleep, 3600)
        elif how == "thread":
            threading.Thread(target=time.sleep, args=(3600,), daemon=False).start()
        elif how == "logs":
            atexit.register(logging.getLogger("kept").error, "late")
    sys.stdout.write("not flushed yet")
    tell(job)


of_job: list = []


def use_job(what):
    """In a copy: what it is answered."""
    try:
        answer = of_job[-1](what)
        return str(asyncio.run(answer) if asyncio.iscoroutine(answer) else answer)
    except pyworker.WrongState as error:
        return str(error)


def in_a_copy(call, what):
    of_job.append(call)
    with multiprocessing.get_context("fork").Pool(1) as made:
        return made.apply_async(use_job, (what,)).get(timeout=20)


@task(max_attempts=1, result=True)
def job_in_a_copy(payload, job: Job):
    job.once("opens the pool")
    answers = [in_a_copy(job.once, "in the copy")]
    with job.step_transaction("step") as step:
        answers.append(in_a_copy(step.connection.execute, "select 1"))
        step.connection.execute("select 1")
    return [*answers, job.once("in the copy")]


@task(max_attempts=1, result=True)
async def job_in_a_copy_async(payload, job: AsyncJob):
    await job.once("opens the pool")
    answers = [in_a_copy(job.once, "in the copy")]
    async with job.step_transaction("step") as step:
        answers.append(in_a_copy(step.connection.execute, "select 1"))
        await step.connection.execute("select 1")
    return [*answers, await job.once("in the copy")]
