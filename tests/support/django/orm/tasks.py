"""Handlers that use the ORM as people do. Each returns the process of the server that answered it."""

import asyncio
import os

from asgiref.sync import sync_to_async
from django.db import connection, connections, transaction

from orm.models import Thing
from pyworker import cron
from pyworker import task as pyworker_task

try:
    from django.tasks import task as django_task
except ImportError:
    from django_tasks import task as django_task

AGAIN = ["0.1 s"]


def pid_of(alias="default"):
    with connections[alias].cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        return cursor.fetchone()[0]


@pyworker_task(result=True, backoff=AGAIN)
def sync(payload):
    Thing.objects.create(name=str(payload))
    return pid_of()


@pyworker_task(result=True, backoff=AGAIN)
async def asynchronous(payload):
    await Thing.objects.acreate(name=str(payload))
    return await sync_to_async(pid_of)()


@pyworker_task(batch=10, backoff=AGAIN)
def batch(jobs):
    Thing.objects.bulk_create(Thing(name=str(job.payload)) for job in jobs)


@pyworker_task(batch=10, backoff=AGAIN)
async def asynchronous_batch(jobs):
    await Thing.objects.abulk_create(Thing(name=str(job.payload)) for job in jobs)


@django_task
def djangos(payload):
    Thing.objects.create(name=str(payload))
    return pid_of()


@django_task
async def djangos_asynchronous(payload):
    await Thing.objects.acreate(name=str(payload))
    return await sync_to_async(pid_of)()


@pyworker_task(result=True)
def other(payload):
    return pid_of("other")


@pyworker_task(result=True)
def leaves(payload):
    """A handler that ends within a transaction."""
    Thing.objects.create(name="before")
    if payload == "atomic":
        transaction.atomic().__enter__()
    elif payload == "two blocks":
        transaction.atomic().__enter__()
        transaction.atomic().__enter__()
    elif payload == "autocommit":
        transaction.set_autocommit(False)
    else:
        connection.cursor().execute("begin")
    Thing.objects.create(name="within")


@pyworker_task(result=True)
async def leaves_asynchronous(payload):
    await sync_to_async(leaves)(payload)


@pyworker_task
async def reads_slowly(payload):
    """Reads chunk by chunk while other handlers end."""
    names = []
    async for thing in Thing.objects.order_by("id").aiterator(chunk_size=1):
        names.append(thing.name)
        if len(names) == 1:
            await sync_to_async(wait_at_gate)()
    await Thing.objects.acreate(name=f"read {len(names)}")


def wait_at_gate():
    with connection.cursor() as cursor:
        cursor.execute("select pg_advisory_lock_shared(77, 1)")


@pyworker_task(timeout=0.5, max_attempts=1)
async def times_out(payload):
    """Its thread waits in the database for longer than it may run."""
    await sync_to_async(wait_at_gate)()


@pyworker_task(result=True)
async def gathers(payload):
    """Several calls at once have the handler's one connection."""
    return len(set(await asyncio.gather(*(sync_to_async(pid_of)() for _ in range(5)))))


@pyworker_task(result=True, max_attempts=7)
def where(payload):
    """What a handler sees of the place where it runs."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "select current_database(), current_user::text, current_setting('transaction_isolation')"
        )
        return [*cursor.fetchone(), os.environ.get("DATABASE_URL")]


@pyworker_task
def where_of_job(payload, job):
    told = "current_user::text || ', ' || current_setting('transaction_isolation')"
    with job.transaction() as conn:
        conn.execute(f"insert into thing (name) select {told}")


if "ORM_CRON" in os.environ:
    cron("0 0 1 1 *", name="old")(sync)
