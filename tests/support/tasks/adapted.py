"""An application that changes psycopg for all connections."""

import psycopg
from psycopg.adapt import Loader
from psycopg.types.json import set_json_loads

from pyworker import AsyncJob, Job, task


class Loud(Loader):
    def load(self, data):
        return "LOUD"


for name in ("text", "int8", "bool", "timestamptz", "float8", "name"):
    psycopg.adapters.register_loader(name, Loud)
set_json_loads(lambda data: "LOUD")


@task(result=True, max_attempts=1)
def adapted(payload, job: Job):
    with job.step_transaction("a") as step:
        (step.result,) = step.connection.execute("select 'x'::text").fetchone()
    job.progress(1)
    return [step.result, job.once("b")]


@task(result=True, max_attempts=1, delivery="at_most_once")
async def adapted_async(payload, job: AsyncJob):
    async with job.step_transaction("a") as step:
        (step.result,) = await (await step.connection.execute("select 'x'::text")).fetchone()
    await job.progress(1)
    return [step.result, await job.once("b")]
