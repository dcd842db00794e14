"""flow, add_batch, extend_batch, send_signal from Python; job.inputs in a real worker."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import pyworker
from tests.support.connections import ASYNC, SYNC
from tests.support.connections import conn as conn


def edges(db: Any) -> list[tuple[Any, ...]]:
    return db.execute(
        "select c.task_identifier, p.task_identifier, d.ref, d.condition from pyworker.dependencies d "
        "join pyworker.jobs c on c.id = d.job_id join pyworker.jobs p on p.id = d.depends_on order by 1, 2"
    ).fetchall()


@pytest.mark.parametrize("kind", SYNC)
def test_a_flow_adds_its_jobs_in_one_call_at_its_end(db: Any, dsn: str, kind: str) -> None:
    with SYNC[kind](dsn) as (conn, commit, _):
        with pyworker.flow(conn) as flow:
            a = flow.add("fetch", {"page": 1}, priority=2)
            b = flow.add("parse", after=a)
            c = flow.add("report", after=[a, b], on="end", run_at=timedelta(hours=1))
            with pytest.raises(pyworker.WrongState, match="'fetch' is added at the end of the flow's block"):
                a.id  # noqa: B018
        commit()
        assert [job.job.state for job in (a, b, c)] == ["available", "pending", "pending"]
        assert (a.job.priority, a.job.payload, c.id > b.id > a.id) == (2, {"page": 1}, True)
    assert edges(db) == [
        ("parse", "fetch", "fetch", "success"),
        ("report", "fetch", "fetch", "end"),
        ("report", "parse", "parse", "end"),
    ]


def test_a_flow_is_one_statement(db: Any, conn: Any) -> None:
    """On a connection without a transaction each statement is one."""
    with pyworker.flow(conn) as flow:
        a = flow.add("fetch")
        flow.add("report", after=[a, flow.add("parse", after=a)], on="end")
    counts = "select count(*), count(distinct xmin::text) from pyworker.live_jobs"
    assert db.execute(counts).fetchone() == (3, 1)


@pytest.mark.parametrize("kind", ASYNC)
def test_a_flow_on_an_asynchronous_connection(db: Any, dsn: str, kind: str) -> None:
    async def add() -> list[int]:
        async with ASYNC[kind](dsn) as (conn, commit, _):
            async with pyworker.flow(conn) as flow:
                a = flow.add("fetch")
                b = flow.add("parse", after=a)
            await commit()
            return [a.id, b.id]

    first, second = asyncio.run(add())
    rows = db.execute("select job_id, depends_on from pyworker.dependencies").fetchall()
    assert rows == [(second, first)]


def test_a_flow_whose_block_raises_adds_nothing(db: Any, conn: Any) -> None:
    class Stop(Exception):
        pass

    def stopped() -> None:
        with pyworker.flow(conn) as flow:
            added.append(flow.add("fetch"))
            raise Stop

    added: list[pyworker.FlowJob] = []
    with pytest.raises(Stop):
        stopped()
    with pytest.raises(pyworker.WrongState):
        added[0].id  # noqa: B018
    assert db.execute("select count(*) from pyworker.jobs").fetchone() == (0,)


def test_a_flow_may_wait_for_jobs_that_were_added_before(db: Any, conn: Any) -> None:
    row = pyworker.add_job(conn, "first")
    with pyworker.flow(conn) as before:
        old = before.add("second")
    with pyworker.flow(conn) as flow:
        flow.add("third", after=(row, old, row.id), on_unmet="cancel")
    assert edges(db) == [("third", "first", None, "success"), ("third", "second", None, "success")]
    pyworker.cancel_job(conn, row.id)
    db.execute("select pyworker.promote_jobs()")
    ended = db.execute("select state, reason from pyworker.history where task_identifier = 'third'")
    assert ended.fetchall() == [("cancelled", "dependency")]


def test_a_flow_without_jobs_adds_none(db: Any, conn: Any) -> None:
    with pyworker.flow(conn):
        pass
    assert db.execute("select count(*) from pyworker.jobs").fetchone() == (0,)


def test_jobs_of_one_task_have_different_names(db: Any, conn: Any) -> None:
    with pyworker.flow(conn) as flow:
        jobs = [flow.add("t"), flow.add("t"), flow.add("x", ref="t 3"), flow.add("t")]
    assert [job.ref for job in jobs] == ["t", "t 2", "t 3", "t 4"]


def test_what_a_flow_cannot_mean_is_refused(conn: Any) -> None:
    with pyworker.flow(conn) as flow:
        first = flow.add("t", ref="one")
        with pytest.raises(pyworker.InvalidArgument, match=r"ref must be one that no other job .* 'one'"):
            flow.add("t", ref="one")
        for after in ("one", {"id": 1}, [True], [None]):
            with pytest.raises(pyworker.InvalidArgument, match="after must be jobs or ids of jobs, got"):
                flow.add("t", after=after)  # type: ignore[arg-type]
        with (
            pyworker.flow(conn) as inner,
            pytest.raises(pyworker.WrongState, match="'one' is added at the end"),
        ):
            inner.add("t", after=first)
    with pytest.raises(pyworker.WrongState, match="block has ended"):
        flow.add("t")
    with pytest.raises(pyworker.InvalidArgument, match="on must be"), pyworker.flow(conn) as flow:
        flow.add("u", after=flow.add("t"), on="whenever")  # type: ignore[arg-type]
    with pytest.raises(pyworker.NotFound, match="there is no job 99999"), pyworker.flow(conn) as flow:
        flow.add("t", after=99999)


@pytest.mark.parametrize("kind", SYNC)
def test_a_batch_has_jobs_and_a_callback(db: Any, dsn: str, kind: str) -> None:
    with SYNC[kind](dsn) as (conn, commit, _):
        jobs: list[pyworker.JobSpec] = [{"identifier": "member"}, {"identifier": "member"}]
        batch = pyworker.add_batch(conn, jobs, {"identifier": "last", "run_at": timedelta(hours=1)})
        more = pyworker.extend_batch(conn, batch.callback.id, [{"identifier": "late"}])
        commit()
    assert [job.task_identifier for job in (*batch.jobs, batch.callback, *more)] == [
        "member", "member", "last", "late",
    ]  # fmt: skip
    assert [row[1] for row in edges(db)] == ["late", "member", "member"]


def test_a_batch_takes_its_callback_as_a_name_and_its_condition(db: Any, conn: Any) -> None:
    pyworker.add_batch(conn, [{"identifier": "member"}], "last", "success")
    assert edges(db)[0][3] == "success"
    with pytest.raises(pyworker.InvalidArgument, match='add_batch: "on" must be'):
        pyworker.add_batch(conn, [], "last", "sometimes")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ASYNC)
def test_batches_and_signals_on_an_asynchronous_connection(db: Any, dsn: str, kind: str) -> None:
    async def add() -> int:
        async with ASYNC[kind](dsn) as (conn, commit, _):
            batch = await pyworker.add_batch(conn, [{"identifier": "member"}], "last")
            await pyworker.extend_batch(conn, batch.callback.id, [])
            await pyworker.send_signal(conn, batch.callback.id, "go", {"a": 1})
            await commit()
            return batch.callback.id

    job_id = asyncio.run(add())
    rows = db.execute("select job_id, name, payload from pyworker.signals").fetchall()
    assert rows == [(job_id, "go", {"a": 1})]


@pytest.mark.parametrize("kind", SYNC)
def test_a_signal_is_part_of_the_callers_transaction(db: Any, dsn: str, kind: str) -> None:
    with SYNC[kind](dsn) as (conn, commit, rollback):
        job = pyworker.add_job(conn, "t")
        commit()
        pyworker.send_signal(conn, job.id, "go", [1, None])
        rollback()
        assert db.execute("select count(*) from pyworker.signals").fetchone() == (0,)
        pyworker.send_signal(conn, job.id, "go")
        commit()
    assert db.execute("select payload from pyworker.signals").fetchone() == (None,)


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ((99, "go"), pyworker.NotFound, "there is no job 99"),
        (("1", "go"), pyworker.InvalidArgument, "job_id must be an integer, got '1'"),
        ((1, ""), pyworker.InvalidArgument, "name must be 1 to 512 characters long, got ''"),
        ((1, None), pyworker.InvalidArgument, "name must be a string, got None"),
        ((1, "go", {"a": "\0"}), pyworker.InvalidArgument, "payload must not contain NUL"),
    ],
)
def test_a_signal_that_means_nothing_is_refused(
    conn: Any, arguments: tuple[Any, ...], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        pyworker.send_signal(conn, *arguments)


def test_what_comes_too_late_is_refused(db: Any, conn: Any) -> None:
    ended = pyworker.add_job(conn, "t")
    pyworker.cancel_job(conn, ended.id)
    with pytest.raises(pyworker.WrongState, match=f"send_signal: job {ended.id} is cancelled"):
        pyworker.send_signal(conn, ended.id, "go")
    callback = pyworker.add_batch(conn, [], "last").callback
    with pytest.raises(pyworker.WrongState, match=f"extend_batch: job {callback.id} waits for no other job"):
        pyworker.extend_batch(conn, callback.id, [{"identifier": "late"}])
    with pytest.raises(pyworker.NotFound, match="extend_batch: there is no job 99"):
        pyworker.extend_batch(conn, 99, [{"identifier": "late"}])
    rows = db.execute("select task_identifier from pyworker.jobs").fetchall()
    assert rows == [("last",)]


@pytest.mark.parametrize("kind", ["gather", "gather_async"])
def test_a_handler_reads_what_the_jobs_before_it_have_returned(queue: Any, db: Any, kind: str) -> None:
    queue.start(modules="flows")
    with pyworker.flow(db) as flow:
        jobs = [flow.add("give", n) for n in (1, 2)]
        bad = flow.add("refuse", max_attempts=1)
        last = flow.add(kind, after=[*jobs, bad], on="end")
    queue.until_state("completed", last.id)
    assert queue.job(last.id).result == {
        "by ref": [1, 2, None],
        "by id": 1,
        "keys": ["give", "give 2", "refuse"],
        "states": ["completed", "completed", "discarded"],
        "unknown": "\"'nothing': this job has waited for no such job"
        " (it has for: 'give', 'give 2', 'refuse')\"",
    }


def test_a_job_without_dependencies_has_no_inputs(queue: Any) -> None:
    queue.start(modules="flows")
    job = queue.add("count_inputs")
    queue.until_state("completed", job)
    assert queue.job(job).result == 0


def test_a_flow_refuses_a_connection_of_the_other_kind_before_it_adds_anything(db: Any, dsn: str) -> None:
    async def wrong_ways() -> None:
        with pytest.raises(TypeError, match="this Connection is synchronous: write `with flow"):
            async with pyworker.flow(db) as flow:  # type: ignore[attr-defined]
                flow.add("fetch")
        async with ASYNC["psycopg"](dsn) as (conn, _, _):
            with pytest.raises(TypeError, match="this AsyncConnection is asynchronous: write `async with"):
                with pyworker.flow(conn) as other:
                    other.add("fetch")

    asyncio.run(wrong_ways())
    assert db.execute("select count(*) from pyworker.jobs").fetchone()[0] == 0
