"""Other libraries in handlers: ORMs and drivers with engines of the module, as applications have them."""

from __future__ import annotations

import contextvars
import os
from typing import Any

import asyncpg
import django
import httpx
import psycopg
import sqlalchemy
import sqlalchemy.ext.asyncio
import sqlalchemy.orm
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import ConnectionPool

import pyworker
from pyworker import AsyncJob, Job
from tests.habit.table import habit, told

DSN = os.environ.get("DATABASE_URL", "")
PARTS = conninfo_to_dict(DSN)

if not settings.configured:
    settings.configure(
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                **{
                    ours: PARTS.get(theirs, "")
                    for ours, theirs in (
                        ("NAME", "dbname"),
                        ("USER", "user"),
                        ("HOST", "host"),
                        ("PORT", "port"),
                    )
                },
            }
        },
        INSTALLED_APPS=["pyworker.django"],
        USE_TZ=True,
    )
    django.setup()


def engine() -> Any:
    return sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(DSN))


ENGINE = engine() if DSN else None
POOL = ConnectionPool(DSN, open=False, min_size=0, max_size=2)


@habit(returns=1)
def an_engine_of_sqlalchemy(payload):
    with ENGINE.begin() as conn:
        return conn.exec_driver_sql("select 1").scalar()


@habit(returns="pong")
def a_session_that_adds_a_job(payload):
    with sqlalchemy.orm.Session(ENGINE) as session:
        job = pyworker.add_job(session, "pong", {"by": "a session"})
        session.commit()
        return job.task_identifier


@habit(fails="deliberate")
def a_session_that_rolls_back_its_job(payload):
    with sqlalchemy.orm.Session(ENGINE) as session, session.begin():
        pyworker.add_job(session, "pong", {"by": "nothing"})
        raise RuntimeError("deliberate")


# Of the job that runs in this thread. A commit or a rollback is its block's.
CONNECTION: contextvars.ContextVar[Any] = contextvars.ContextVar("CONNECTION")
OF_JOBS = sqlalchemy.create_engine(
    "postgresql+psycopg://", creator=CONNECTION.get, poolclass=sqlalchemy.pool.NullPool
)
for verb in ("do_commit", "do_rollback", "do_close"):
    setattr(OF_JOBS.dialect, verb, lambda conn: None)


@habit(returns=[1, "pong"])
@told
def a_session_in_the_jobs_transaction(payload, job: Job):
    with job.transaction() as conn:
        CONNECTION.set(conn)
        with sqlalchemy.orm.Session(OF_JOBS) as session, session.begin():
            with session.begin_nested():
                one = session.scalar(sqlalchemy.text("select 1"))
            return [one, pyworker.add_job(session, "pong", {"by": "its session"}).task_identifier]


@habit(returns=1)
async def an_async_engine(payload):
    async def connect() -> Any:
        return await asyncpg.connect(**_of_asyncpg())

    made = sqlalchemy.ext.asyncio.create_async_engine("postgresql+asyncpg://", async_creator=connect)
    async with made.begin() as conn:
        one = (await conn.exec_driver_sql("select 1")).scalar()
    await made.dispose()
    return one


def _of_asyncpg() -> dict[str, Any]:
    names = {"host": "host", "port": "port", "user": "user", "dbname": "database", "password": "password"}
    return {names[name]: value for name, value in PARTS.items() if name in names and value}


@habit(returns=[1, "pong"])
async def asyncpg_adds_a_job(payload):
    conn = await asyncpg.connect(**_of_asyncpg())
    try:
        async with conn.transaction():
            job = await pyworker.add_job(conn, "pong", {"by": "asyncpg"})
            return [await conn.fetchval("select 1"), job.task_identifier]
    finally:
        await conn.close()


@habit(returns=1)
def a_pool_of_the_module(payload):
    POOL.open()
    with POOL.connection() as conn:
        return conn.execute("select 1").fetchone()[0]


@habit(returns=1)
def a_cursor_of_django(payload):
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("select 1")
        return cursor.fetchone()[0]


@habit(returns="a_model_of_django")
def a_model_of_django(payload, job: Job):
    from pyworker.django.models import Job as Row

    return Row.objects.get(id=job.id).task_identifier


@habit(returns="an_async_query_of_django")
async def an_async_query_of_django(payload, job: AsyncJob):
    from pyworker.django.models import Job as Row

    return (await Row.objects.aget(id=job.id)).task_identifier


@habit(returns="rolled back")
def an_atomic_block_of_django(payload):
    from django.db import connection, transaction

    try:
        with transaction.atomic():
            pyworker.add_job(connection, "pong", {"by": "django"})
            raise ZeroDivisionError
    except ZeroDivisionError:
        return "rolled back"


@habit(fails="current transaction is aborted")
def an_atomic_block_that_failed(payload):
    from django.db import DatabaseError, connection, transaction

    with transaction.atomic(), connection.cursor() as cursor:
        try:
            cursor.execute("select 1 / 0")
        except DatabaseError:
            pass
        cursor.execute("select 1")


@habit(fails="ConnectError")
async def a_server_that_is_down(payload):
    async with httpx.AsyncClient() as client:
        await client.get("http://127.0.0.1:1/")


@habit(fails="ConnectError")
def a_server_that_is_down_for_a_sync_client(payload):
    httpx.get("http://127.0.0.1:1/")
