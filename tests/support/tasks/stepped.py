"""Tasks that do what their payload lists, in steps: {"do": [["step", "pay"], ["wait", "go"], …]}.
Each effect is a row of `seen`."""

import asyncio
import json
import os
import signal

import psycopg

from pyworker import AsyncJob, Job, Suspended, task

INSERT = "insert into public.seen (job_id, run, told) values (%s, %s, %s)"
ANSWERS = []  # what steps and waits returned in this run


class Boom(Exception):
    pass


def effect(job, name, value=None):
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as conn:
        conn.execute(INSERT, [job.id, job.run, json.dumps(name)])
    return {"of": name} if value is None else "x" * 2**21 if value == "huge" else value


async def effect_async(job, name, value=None):
    return await asyncio.to_thread(effect, job, name, value)


def strike(job, how):
    """Once in the job's life."""
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as conn:
        conn.execute("insert into public.runs values (%s)", [job.id])
        (times,) = conn.execute("select count(*) from public.runs where job_id = %s", [job.id]).fetchone()
    if times == 1 and how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if times == 1:
        raise Boom


def effect_and_strike(job, name, how):
    effect(job, name)
    strike(job, how)
    return {"of": name}


async def effect_and_strike_async(job, name, how):
    return await asyncio.to_thread(effect_and_strike, job, name, how)


@task(result=True, backoff=[0.05])
def stepped(payload, job: Job):
    answers = []
    for verb, *words in payload["do"]:
        match verb:
            case "step":
                answers.append(job.step(words[0], effect, job, *words))
            case "step, struck after its effect":
                answers.append(job.step(words[0], effect_and_strike, job, *words))
            case "transaction" | "transaction, struck before its commit" | "transaction with an add":
                with job.step_transaction(words[0]) as step:
                    if not step.done:
                        step.connection.execute(INSERT, [job.id, job.run, json.dumps(words[0])])
                        step.result = {"of": words[0]}
                        if verb == "transaction with an add":
                            job.add_job("stepped", {"do": []})
                        if len(words) > 1:
                            strike(job, words[1])
                answers.append(step.result)
            case "wait":
                answers.append(job.wait_for(*words))
            case "wait, but for exceptions":
                try:
                    answers.append(job.wait_for(*words))
                except Exception:
                    effect(job, "caught")
            case "strike":
                strike(job, *words)
            case "within a transaction":
                with job.transaction():
                    job.step(words[0], effect, job, *words)
            case "two in a transaction":
                with job.step_transaction(words[0]):
                    job.wait_for(words[1])
            case "after the transaction":
                with job.transaction():
                    pass
                job.step(words[0], effect, job, *words)
            case "no JSON":
                job.step(words[0], set, [effect(job, words[0])["of"]])
            case "done":
                with job.step_transaction(words[0]) as step:
                    if step.done:
                        step.connection.execute("select 1")
            case "caught":
                for _ in range(2):
                    try:
                        answers.append(job.step(words[0], effect_and_strike, job, words[0], "fail"))
                    except Boom:
                        answers.append("failed")
    return answers


@task(result=True, backoff=[0.05])
async def stepped_async(payload, job: AsyncJob):
    answers = []
    for verb, *words in payload["do"]:
        match verb:
            case "step":
                answers.append(await job.step(words[0], effect_async, job, *words))
            case "step, struck after its effect":
                answers.append(await job.step(words[0], effect_and_strike_async, job, *words))
            case "transaction" | "transaction, struck before its commit" | "transaction with an add":
                async with job.step_transaction(words[0]) as step:
                    if not step.done:
                        await step.connection.execute(INSERT, [job.id, job.run, json.dumps(words[0])])
                        step.result = {"of": words[0]}
                        if verb == "transaction with an add":
                            await job.add_job("stepped", {"do": []})
                        if len(words) > 1:
                            await asyncio.to_thread(strike, job, words[1])
                answers.append(step.result)
            case "wait":
                answers.append(await job.wait_for(*words))
            case "wait, but for exceptions":
                try:
                    answers.append(await job.wait_for(*words))
                except Exception:
                    effect(job, "caught")
            case "wait in a subtask":
                async with asyncio.TaskGroup() as group:
                    one = group.create_task(job.wait_for(*words))
                answers.append(one.result())
            case "strike":
                await asyncio.to_thread(strike, job, *words)
            case "within a transaction":
                async with job.transaction():
                    await job.step(words[0], effect_async, job, *words)
            case "two in a transaction":
                async with job.step_transaction(words[0]):
                    await job.wait_for(words[1])
            case "after the transaction":
                async with job.transaction():
                    pass
                await job.step(words[0], effect_async, job, *words)
            case "no JSON":
                await job.step(words[0], set, [effect(job, words[0])["of"]])
            case "done":
                async with job.step_transaction(words[0]) as step:
                    if step.done:
                        await step.connection.execute("select 1")
            case "caught":
                for _ in range(2):
                    try:
                        answers.append(
                            await job.step(words[0], effect_and_strike_async, job, words[0], "fail")
                        )
                    except Boom:
                        answers.append("failed")
    return answers


@task(delivery="at_most_once")
def once_only(payload, job: Job):
    job.step("charge", effect, job, "charge")
    if payload:
        job.wait_for("go")


@task(result=True)
def catches_all(payload, job: Job):
    """Swallows even the end of its run: what it returns comes too late."""
    try:
        return job.wait_for("go")
    except Suspended as suspended:
        return f"swallowed {suspended}"


@task
def five_steps(payload, job: Job):
    for number in range(5):
        job.step(f"step {number}", dict, number=number)


@task
async def five_steps_async(payload, job: AsyncJob):
    for number in range(5):
        await job.step(f"step {number}", dict, number=number)
