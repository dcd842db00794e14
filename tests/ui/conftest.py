"""The dashboard over the real database: a client that speaks ASGI to it, and a browser."""

from __future__ import annotations

import contextlib
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import uvicorn
from psycopg.types.json import Jsonb

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the client announces its successor
    from starlette.testclient import TestClient

from pyworker.ui import create_app
from tests.support.api import Api, statement
from tests.support.site import Site


class Queue(Api):
    """SQL functions by name: queue.add_job("t", job_key="k") gives the first row, or None."""

    def __getattr__(self, function: str) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            rows = self.rows(*statement(function, args, named))
            return rows[0] if rows else None

        return call

    def run(self, worker: int, identifier: str, error: str | None = None, **more: Any) -> Any:
        """Claims the next job of a task and, if it is to fail, fails it."""
        job = self.rows("select * from pyworker.claim_jobs(%s, 1, %s)", [worker, [identifier]])[0]
        if error is not None:
            failure = [{"id": job.id, "run": job.run, "error": error, **more}]
            self.rows("select pyworker.fail_jobs(%s)", [Jsonb(failure)])
        return job


@pytest.fixture
def queue(db: psycopg.Connection[Any]) -> Queue:
    return Queue(db)


@pytest.fixture
def client(dsn: str, db: Any) -> Iterator[Callable[..., TestClient]]:
    """client(read_only=True) … is a browser's way to a dashboard with these settings, without a browser."""
    with contextlib.ExitStack() as stack:

        def make(base_url: str = "http://testserver", **settings: Any) -> TestClient:
            app = settings.pop("app", None) or create_app(dsn, **settings)
            return stack.enter_context(TestClient(app, base_url=base_url, raise_server_exceptions=True))

        yield make


@pytest.fixture
def site(dsn: str, db: Any) -> Iterator[Callable[..., str]]:
    """site() serves a dashboard on a real socket; returns where."""
    started: list[tuple[uvicorn.Server, threading.Thread]] = []

    def serve(**settings: Any) -> str:
        sock = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(create_app(dsn, **settings), log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
        thread.start()
        started.append((server, thread))
        return f"http://127.0.0.1:{sock.getsockname()[1]}"

    yield serve
    for server, thread in started:
        server.should_exit = True
        thread.join()


@pytest.fixture
def page(browser: Any, site: Any) -> Iterator[Any]:
    """A page of a browser; what its console complains of fails the test, and it may speak to this
    machine only. It is closed before the site is: a page that still loads would complain of
    that."""
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    page = context.new_page()
    complaints: list[str] = []
    page.on(
        "console",
        lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None,
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on(
        "request",
        lambda request: complaints.append(request.url) if "//127.0.0.1:" not in request.url else None,
    )
    yield page
    context.close()
    assert complaints == []


@pytest.fixture
def attacked(dsn: str, db: Any, tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """attacked(*options) starts a dashboard. It must live on, without a traceback, and serve at the end."""
    sites: list[tuple[Site, dict[str, str], int]] = []

    def start(
        *options: str, ends_with: dict[str, str] | None = None, status: int = 200, **environment: str
    ) -> Site:
        sites.append((Site(dsn, tmp_path, *options, **environment), ends_with or {}, status))
        return sites[-1][0]

    yield start
    for site, headers, status in sites:
        assert site.ask("/jobs", **headers).status == status
        site.close()
        assert "Traceback" not in site.log()
        assert "secret" not in site.log()
