from pyworker import AsyncJob, task


@task(max_attempts=5)
async def charge(payload: dict[str, int], job: AsyncJob) -> None:
    async with job.transaction() as conn:  # these writes and the job's completion are one commit
        await conn.execute("update orders set charged = true where id = %s", [payload["order"]])
