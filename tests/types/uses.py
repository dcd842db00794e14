"""Right and wrong uses of the client. pyright and mypy, both strict, must refuse each line marked
`# wrong`, and no other.

Nothing here is run. tests/types/test_types.py has both checkers read it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict, assert_type

import psycopg
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

import pyworker
from pyworker import AsyncJob, Job, JobRow, JobSpec, cron, task


@dataclass
class Mail:
    to: str


class Order(TypedDict):
    order: int


@task
def send(payload: Mail) -> int:
    return len(payload.to)


@task(max_attempts=3, unique_policy={"by_args": True}, sequence_policy={"key": "a"}, delivery="at_most_once")
async def send_async(payload: Mail, job: AsyncJob) -> int:
    row = await job.add_job(send, Mail("x"), priority=1)
    assert_type(row, JobRow)
    job.add_job("send")  # wrong
    await job.add_job("send", prio=1)  # wrong
    return 1


@task("another name", timeout=timedelta(seconds=5), retention=60)
def with_job(payload: Mail, *, job: Job) -> str:
    assert_type(job.add_job(send, Mail("x")), JobRow)
    job.log("begun")
    job.log("begun", level="warning")
    job.log("begun", "loud")  # wrong
    job.log(5)  # wrong
    job.add_job("send", prio=1)  # wrong
    return payload.to


@task
def nothing() -> None: ...


@task
def only_job(job: Job) -> None: ...


@task
def maybe(payload: Mail | None = None) -> None: ...


@task
def anything(payload: Any) -> None: ...


@task
def a_dict(payload: dict[str, Any]) -> None: ...


@task
def order(payload: Order) -> None: ...


@task
def batch(payload: list[Mail], job: Job) -> None: ...


class Callable:
    def __call__(self, payload: Mail) -> int:
        return 1


of_object = task("object")(Callable())
of_partial = task("partial")(functools.partial(int, base=2))


@cron("0 4 * * *", timezone="Europe/Berlin", backfill=timedelta(hours=6), payload={"a": 1}, unique_policy={})
@task
def nightly(payload: dict[str, int]) -> None: ...


@task(unique={"by_args": True})  # wrong
def old_name() -> None: ...


@task(max_attempts="3")  # wrong
def text_for_number() -> None: ...


@task(delivery="exactly_once")  # wrong
def no_such_delivery() -> None: ...


@cron("0 4 * * *", payloadd={})  # wrong
@task
def misspelled() -> None: ...


def handlers_stay_functions() -> None:
    assert_type(send(Mail("x")), int)
    send(payload=Mail("x"))
    assert_type(of_object(Mail("x")), int)
    send("x")  # wrong
    with_job(Mail("x"))  # wrong
    nothing(Mail("x"))  # wrong


def payloads(conn: psycopg.Connection) -> None:
    assert_type(send.add(conn, Mail("x")), JobRow)
    assert_type(send_async.add(conn, Mail("x")), JobRow)
    with_job.add(conn, Mail("x"))
    nothing.add(conn)
    only_job.add(conn)
    maybe.add(conn)
    maybe.add(conn, None)
    maybe.add(conn, Mail("x"))
    anything.add(conn, {"a": 1})
    a_dict.add(conn, {"a": 1})
    order.add(conn, {"order": 1})
    batch.add(conn, [Mail("x"), Mail("y")])
    nightly.add(conn, {"a": 1})
    of_object.add(conn, Mail("x"))
    send.add(conn, {"nonsense": 1})  # wrong
    send.delay(Mail("x"))  # wrong
    send.apply_async(Mail("x"), countdown=5)  # wrong
    send.add(conn, "x")  # wrong
    send.add(conn)  # wrong
    send_async.add(conn, {"to": "x"})  # wrong
    with_job.add(conn, 5)  # wrong
    nothing.add(conn, Mail("x"))  # wrong
    only_job.add(conn, Mail("x"))  # wrong
    order.add(conn, {"orderr": 1})  # wrong
    batch.add(conn, Mail("x"))  # wrong
    batch.add(conn, ["x"])  # wrong
    of_object.add(conn, 5)  # wrong


def options(conn: psycopg.Connection) -> None:
    send.add(conn, Mail("x"), run_at=datetime.now(UTC), priority=-1, flags=["a"], meta={"a": 1}, schema="x")
    send.add(conn, Mail("x"), run_at=timedelta(hours=1), flags={"a"}, job_key="k", job_key_mode="replace")
    send.add(conn, Mail("x"), unique_policy={"by_args": True}, sequence_policy={"key": "k"}, queue_name=None)
    send.add(conn, Mail("x"), delay=timedelta(hours=1))
    send.add(conn, Mail("x"), delay=90, queue_name="mail")
    send.add(conn, Mail("x"), runat="x")  # wrong
    send.add(conn, Mail("x"), run_at=5)  # wrong
    send.add(conn, Mail("x"), delay=datetime.now(UTC))  # wrong
    send.add(conn, Mail("x"), priority=1.7)  # wrong
    send.add(conn, Mail("x"), flags="urgent")  # wrong
    send.add(conn, Mail("x"), job_key=7)  # wrong
    send.add(conn, Mail("x"), job_key_mode="merge")  # wrong
    pyworker.add_job(conn, "send", {"to": "x"}, queue_name="mail")
    pyworker.add_job(conn, send, Mail("x"), delivery="at_most_once")
    pyworker.add_job(conn, "send", prio=1)  # wrong
    pyworker.add_job(conn, 5)  # wrong
    more: pyworker.AddOptions = {"priority": 1}
    pyworker.add_job(conn, "send", **more)


def connections(
    cursor: psycopg.Cursor[Any], session: Session, scoped: scoped_session[Session], connection: Connection
) -> None:
    assert_type(send.add(cursor, Mail("x")), JobRow)
    assert_type(send.add(session, Mail("x")), JobRow)
    assert_type(send.add(scoped, Mail("x")), JobRow)
    assert_type(send.add(connection, Mail("x")), JobRow)
    assert_type(pyworker.add_job(session, "send"), JobRow)
    send.add("postgresql://", Mail("x"))  # wrong
    send.add(None, Mail("x"))  # wrong
    pyworker.add_job(7, "send")  # wrong


def verbs(conn: psycopg.Connection) -> None:
    specs: list[JobSpec] = [
        {"identifier": "send", "payload": {"to": "x"}, "priority": 1},
        {"identifier": send},
    ]
    assert_type(pyworker.add_jobs(conn, specs), list[JobRow])
    assert_type(pyworker.get_job(conn, 1), JobRow | None)
    assert_type(pyworker.cancel_job(conn, 1, force=True), JobRow)
    assert_type(pyworker.retry_job(conn, 1), JobRow)
    assert_type(pyworker.delete_job(conn, 1), JobRow)
    assert_type(pyworker.remove_job(conn, "key"), JobRow | None)
    print(pyworker.get_job(conn, 1).state)  # wrong
    pyworker.get_job(conn, "1")  # wrong
    pyworker.remove_job(conn, 1)  # wrong
    pyworker.add_jobs(conn, [{"identifier": "send", "prio": 1}])  # wrong
    pyworker.add_jobs(conn, [{"payload": 1}])  # wrong
    pyworker.cancel_job(conn, 1, forced=True)  # wrong
    print(pyworker.retry_job(conn, 1).stat)  # wrong


async def awaited(
    conn: psycopg.AsyncConnection, cursor: psycopg.AsyncCursor[Any], session: AsyncSession,
    connection: AsyncConnection,
    scoped: async_scoped_session[AsyncSession],
) -> None:  # fmt: skip
    assert_type(await send.add(conn, Mail("x")), JobRow)
    assert_type(await send.add(cursor, Mail("x")), JobRow)
    assert_type(await send.add(session, Mail("x")), JobRow)
    assert_type(await send.add(connection, Mail("x")), JobRow)
    assert_type(await send.add(scoped, Mail("x")), JobRow)
    assert_type(await nothing.add(session), JobRow)
    assert_type(await pyworker.add_job(session, "send"), JobRow)
    assert_type(await pyworker.add_jobs(session, []), list[JobRow])
    assert_type(await pyworker.get_job(session, 1), JobRow | None)
    send.add(conn, Mail("x"))  # wrong
    send.add(session, Mail("x"))  # wrong
    nothing.add(session)  # wrong
    pyworker.add_job(connection, "send")  # wrong
    pyworker.add_jobs(scoped, [])  # wrong
    pyworker.cancel_job(session, 1)  # wrong
    print(pyworker.retry_job(session, 1).state)  # wrong
    await send.add(session, {"nonsense": 1})  # wrong
    await send.add(session, Mail("x"), runat="x")  # wrong


class Pooled:
    """asyncpg's connections as its stubs describe them."""

    def is_in_transaction(self) -> bool:
        return True

    async def fetch(self, query: str, *args: Any) -> Sequence[Any]:
        return [query, *args]


async def by_asyncpg(conn: Pooled) -> None:
    assert_type(await send.add(conn, Mail("x")), JobRow)
    assert_type(await pyworker.get_job(conn, 1), JobRow | None)
    send.add(conn, Mail("x"))  # wrong


def waits_and_flows(conn: psycopg.Connection[Any], connection: psycopg.AsyncConnection[Any]) -> None:
    assert_type(pyworker.wait_for_job(conn, 1, timedelta(seconds=1)), JobRow)
    pyworker.wait_for_job(conn, "1")  # wrong
    pyworker.wait_for_job(conn, 1, "soon")  # wrong
    with pyworker.flow(conn) as flow:
        first = flow.add(send, Mail("x"))
        flow.add(nothing, after=first, on="end")
        flow.add(nothing, after=[first, first], delay=5)
        flow.add(nothing, after="first")  # wrong
        flow.add(nothing, on="always")  # wrong


def batches_and_signals(conn: psycopg.Connection[Any]) -> None:
    jobs: list[JobSpec] = [{"identifier": send, "payload": {"to": "x"}, "ref": "a"}]
    batch = pyworker.add_batch(conn, jobs, nothing, "success")
    assert_type(batch, pyworker.Batch)
    assert_type(batch.callback, JobRow)
    assert_type(pyworker.extend_batch(conn, batch.callback.id, jobs), list[JobRow])
    pyworker.add_batch(conn, jobs, "last", "always")  # wrong
    pyworker.add_batch(conn, jobs)  # wrong
    pyworker.extend_batch(conn, batch.callback, jobs)  # wrong
    pyworker.send_signal(conn, 1, "approved", {"by": "ann"})
    pyworker.send_signal(conn, "1", "approved")  # wrong
    with pyworker.flow(conn) as flow:
        made = flow.add(send, Mail("x"), on_unmet="cancel", ref="first")
        assert_type(made, pyworker.FlowJob)
        flow.add(nothing, after=[made, batch.callback, 17])
        flow.add(nothing, on_unmet="run")  # wrong
    assert_type(made.id, int)
    assert_type(made.job, JobRow)


async def batches_and_signals_async(conn: psycopg.AsyncConnection[Any]) -> None:
    batch = await pyworker.add_batch(conn, [{"identifier": "member"}], "last")
    assert_type(batch, pyworker.Batch)
    assert_type(await pyworker.extend_batch(conn, 1, []), list[JobRow])
    await pyworker.send_signal(conn, 1, "approved")
    pyworker.send_signal(conn, 1, "approved")  # wrong
    pyworker.add_batch(conn, [], "last")  # wrong
    assert_type(await pyworker.wait_for_job(conn, 1, 5), JobRow)
    async with pyworker.flow(conn) as flow:
        assert_type(flow.add(send, Mail("x")), pyworker.FlowJob)
    with pyworker.flow(conn):  # wrong
        pass


@task
def in_steps(payload: Mail, job: Job[Mail]) -> None:
    assert_type(job.step("pay", len, payload.to), Any)
    job.step(1, len, payload.to)  # wrong
    job.step("pay")  # wrong
    job.step("pay", payload.to)  # wrong
    with job.step_transaction("book") as step:
        assert_type(step.done, bool)
        assert_type(step.connection, psycopg.Connection[Any])
        step.done = True  # wrong
    assert_type(job.wait_for("approved", timedelta(days=3)), Any)
    assert_type(job.wait_for("approved", timeout=0.5), Any)
    job.wait_for("approved", "soon")  # wrong
    job.progress(0.4, "page 4 of 10")
    job.progress("half")  # wrong
    assert_type(job.inputs, pyworker.Inputs)
    assert_type(job.inputs.ended[0].state, str | None)


@task
async def in_steps_async(payload: Mail, job: AsyncJob[Mail]) -> None:
    assert_type(await job.step("pay", len, payload.to), Any)
    job.step("pay", len, payload.to)  # wrong
    async with job.step_transaction("book") as step:
        assert_type(step.connection, psycopg.AsyncConnection[Any])
    with job.step_transaction("book"):  # wrong
        pass
    assert_type(await job.wait_for("approved", timedelta(days=3)), Any)
    job.wait_for("approved")  # wrong
    await job.progress(0.4)
    assert_type((await job.inputs)["fetch"], Any)
    job.inputs["fetch"]  # wrong


@task(batch=100)
def of_mails(jobs: list[Job[Mail]]) -> list[int]:
    assert_type(jobs[0].payload, Mail)
    assert_type(jobs[0].cancelled, bool)
    return [job.payload.fax for job in jobs]  # wrong


@task(batch=100, result=True, timeout=5)
async def of_mails_async(jobs: list[AsyncJob[Mail]]) -> None:
    await jobs[0].step("x", len, jobs[0].payload.to)
    jobs[0].transaction().__enter__()  # wrong


@task(batch=1)
async def of_anything(jobs: list[AsyncJob]) -> None:
    assert_type(jobs[0].payload, Any)


@task(batch="100")  # wrong
def of_text(jobs: list[Job]) -> None: ...


async def batches(conn: psycopg.Connection[Any], connection: psycopg.AsyncConnection[Any]) -> None:
    assert_type(of_mails.add(conn, Mail("x")), JobRow)
    assert_type(await of_mails_async.add(connection, Mail("x"), priority=1), JobRow)
    of_anything.add(conn, {"any": "thing"})
    of_mails.add(conn, "x")  # wrong
    of_mails.add(conn, [Mail("x")])  # wrong
    await of_mails_async.add(connection, 5)  # wrong
    of_mails_async.add(connection, Mail("x"))  # wrong
