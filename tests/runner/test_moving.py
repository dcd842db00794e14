"""The functions of docs/coming-from.md that pass the jobs of another queue on, run by that queue's
own worker: what waits there becomes a job here, and its handler runs."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.docs.test_snippets import blocks_of
from tests.support import ROOT

BLOCKS = {block.marker: block.text for block in blocks_of(ROOT / "docs" / "coming-from.md")}
ADDRESSES = ["ada@example.org", "grace@example.org"]


@pytest.fixture
def passing_on(
    fresh: psycopg.Connection[Any], fresh_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], ModuleType]:
    """passing_on("from_rq") is the page's module, as the old worker imports it."""
    monkeypatch.setenv("DATABASE_URL", fresh_dsn)

    def load(name: str) -> ModuleType:
        module = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec(BLOCKS[f"{name}.py"], module.__dict__)
        return module

    return load


def passed_on(conn: psycopg.Connection[Any]) -> list[str]:
    rows = conn.execute(
        "select (pyworker.get_job(id)).payload ->> 'to', key from pyworker.jobs"
        " where task_identifier = 'send_email' order by 1"
    ).fetchall()
    assert all(key for _, key in rows)
    return [to for to, _ in rows]


def test_what_waits_in_rq_is_passed_on_and_only_once(fresh: Any, passing_on: Any) -> None:
    rq, fakeredis = pytest.importorskip("rq"), pytest.importorskip("fakeredis")
    module = passing_on("from_rq")
    redis = fakeredis.FakeStrictRedis()
    queue = rq.Queue(connection=redis)
    jobs = [queue.enqueue(module.send_email, to) for to in ADDRESSES]
    for _ in range(2):  # the second time as after a worker that died before it could say so
        rq.SimpleWorker([queue], connection=redis).work(burst=True)
        assert [job.get_status() for job in jobs] == ["finished", "finished"]
        assert passed_on(fresh) == ADDRESSES
        for job in jobs:
            job.requeue() if job.is_failed else queue.enqueue_job(job)


def test_what_waits_in_celery_is_passed_on(fresh: Any, passing_on: Any) -> None:
    celery = pytest.importorskip("celery")
    from celery.contrib.testing.worker import start_worker

    app = celery.Celery("old", broker="memory://", backend="cache+memory://", set_as_current=True)
    send_email = passing_on("from_celery").send_email
    messages = [send_email.apply_async((to,), countdown=delay) for delay, to in enumerate(ADDRESSES)]
    with start_worker(app, pool="solo", perform_ping_check=False, loglevel="error"):
        assert [message.get(timeout=60) for message in messages] == [None, None]
    assert passed_on(fresh) == ADDRESSES


def test_what_waits_in_procrastinate_is_passed_on_with_its_lock(fresh: Any, passing_on: Any) -> None:
    """It keeps its own tables in the same database."""
    pytest.importorskip("procrastinate")
    module = passing_on("from_procrastinate")

    async def run() -> None:
        async with module.app.open_async():
            await module.app.schema_manager.apply_schema_async()
            for to in ADDRESSES:
                await module.send_email.configure(lock="ada's").defer_async(to=to)
            await module.app.run_worker_async(wait=False, install_signal_handlers=False)

    asyncio.run(run())
    assert passed_on(fresh) == ADDRESSES
    assert fresh.execute("select distinct queue_name from pyworker.jobs").fetchall() == [("ada's",)]


def test_what_waits_in_dramatiq_is_passed_on_delayed_messages_too(fresh: Any, passing_on: Any) -> None:
    dramatiq = pytest.importorskip("dramatiq")
    from dramatiq.brokers.stub import StubBroker

    broker = StubBroker()
    dramatiq.set_broker(broker)
    send_email = passing_on("from_dramatiq").send_email
    message = send_email.send(ADDRESSES[0])
    broker.enqueue(message)  # delivered twice
    send_email.send_with_options(args=(ADDRESSES[1],), delay=200)
    worker = dramatiq.Worker(broker, worker_timeout=100)
    worker.start()
    try:
        broker.join("mail", timeout=20_000, fail_fast=True)
        worker.join()
    finally:
        worker.stop()
    assert passed_on(fresh) == ADDRESSES


@pytest.mark.filterwarnings("ignore:Call to deprecated close")  # by arq, of its own Redis client
def test_what_waits_in_arq_is_passed_on(fresh: Any, passing_on: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    arq, fakeredis = pytest.importorskip("arq"), pytest.importorskip("fakeredis")
    module = passing_on("from_arq")

    async def silent(*_: Any) -> None:
        """For its line on the server's version and memory, which this server does not tell."""

    monkeypatch.setattr("arq.worker.log_redis_info", silent)

    async def run() -> Any:
        redis = arq.ArqRedis(connection_pool=fakeredis.FakeAsyncRedis().connection_pool)
        for to in ADDRESSES:
            await redis.enqueue_job("send_email", to)
        settings = {"burst": True, "handle_signals": False, "poll_delay": 0.01}
        worker = arq.Worker(functions=module.WorkerSettings.functions, redis_pool=redis, **settings)
        await worker.async_run()
        await worker.close()
        return worker.jobs_complete

    assert asyncio.run(run()) == 2
    assert passed_on(fresh) == ADDRESSES


def test_what_waits_in_dbos_is_passed_on(fresh: Any, fresh_dsn: str, passing_on: Any) -> None:
    """It keeps its own tables, in a schema of the same database."""
    dbos = pytest.importorskip("dbos")
    parts = conninfo_to_dict(fresh_dsn)
    where = f"host={parts['host']}&port={parts['port']}&user={parts['user']}"
    url = f"postgresql+psycopg:///{parts['dbname']}?{where}"
    module = passing_on("from_dbos")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        instance = dbos.DBOS(config={"name": "old", "system_database_url": url, "run_admin_server": False})
        dbos.DBOS.launch()
        try:
            handles = [dbos.DBOS.start_workflow(module.send_email, to) for to in ADDRESSES]
            assert [handle.get_result() for handle in handles] == [None, None]
        finally:
            dbos.DBOS.destroy(destroy_registry=True)
    assert instance is not None
    assert passed_on(fresh) == ADDRESSES


def test_what_waits_in_hatchet_is_passed_on(
    fresh: Any, passing_on: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hatchet's own stand-in for a run: its engine is a server of its own."""
    pytest.importorskip("hatchet_sdk")
    claims = {"sub": "t", "server_url": "http://localhost", "grpc_broadcast_address": "localhost:7070"}
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    monkeypatch.setenv("HATCHET_CLIENT_TOKEN", f"eyJhbGciOiJub25lIn0.{body}.e30")
    module = passing_on("from_hatchet")
    for to in ADDRESSES:
        module.send_email.mock_run(module.Mail(to=to))
    assert passed_on(fresh) == ADDRESSES
