"""Tasks that give something to the jobs after them."""

from pyworker import AsyncJob, Job, task


@task(result=True)
def give(payload):
    return payload


@task
def refuse(payload):
    raise ValueError


def told(inputs):
    first = inputs.ended[0].id
    try:
        unknown = inputs["nothing"]
    except KeyError as error:
        unknown = str(error)
    return {
        "by ref": [inputs["give"], inputs["give 2"], inputs["refuse"]],
        "by id": inputs[first],
        "keys": list(inputs),
        "states": [one.state for one in inputs.ended],
        "unknown": unknown,
    }


@task(result=True)
def gather(payload, job: Job):
    return told(job.inputs)


@task(result=True)
async def gather_async(payload, job: AsyncJob):
    return told(await job.inputs)


@task(result=True)
def count_inputs(payload, job: Job):
    return len(job.inputs)
