"""Tasks that tell how far they have come."""

from pyworker import AsyncJob, Job, task


@task
def tells(payload, job: Job):
    for progress in payload["tell"]:
        job.progress(progress, f"at {progress}")


@task
async def tells_async(payload, job: AsyncJob):
    for progress in payload["tell"]:
        await job.progress(progress, f"at {progress}")
