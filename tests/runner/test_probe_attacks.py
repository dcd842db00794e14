"""The ports of `pyworker run` and `pyworker metrics` under attack: they answer, and the worker works on."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support import DEADLINE
from tests.support.health import until_health
from tests.support.site import Answer, read_all

pytestmark = pytest.mark.slow


def ask(port: str, data: bytes, ends: bool = True) -> Answer:
    with socket.create_connection(("127.0.0.1", int(port)), DEADLINE) as conn:
        with contextlib.suppress(OSError):
            conn.sendall(data)
            if ends:
                conn.shutdown(socket.SHUT_WR)
        return Answer(read_all(conn))


RAW = [
    b"", b"\x00" * 1000, b"GET /live\r\n\r\n", b"GET /live HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01",
    b"\r\n" * 1000,
    b"GET //live HTTP/1.1\r\n\r\n", b"GET /../live HTTP/1.1\r\n\r\n", b"GET /%6cive HTTP/1.1\r\n\r\n",
    b"GET /live%00 HTTP/1.1\r\n\r\n", b"GET /live\x00 HTTP/1.1\r\n\r\n",
    b"GET " + b"/a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    b"GET http://x/live HTTP/1.1\r\n\r\n", b"POST /live HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
    b"OPTIONS * HTTP/1.1\r\n\r\n", b"DELETE /live HTTP/1.1\r\n\r\n", b"<script> /live HTTP/1.1\r\n\r\n",
    b"TRACE / HTTP/1.1\r\n\r\n",
    b"GET /<script>alert(1)</script> HTTP/1.1\r\n\r\n",
    b"GET /live HTTP/1.1\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
    b"GET /live HTTP/1.1\r\nX: " + b"a" * 1_000_000 + b"\r\n\r\n",
    b"GET /metrics?name[]=<b> HTTP/1.1\r\n\r\n",
    b"GET /live HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]  # fmt: skip


def threads_of(pid: int) -> int:
    return int(re.search(r"Threads:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1])  # type: ignore[index]


def test_no_request_breaks_the_probes_or_is_shown_again(queue: Any, health: Any, port: str) -> None:
    worker = queue.start("--health-port", port, "--metrics-port", port)
    until_health(queue, health, 0, "ready", "--port", port)
    for data in RAW:
        answer = ask(port, data)
        assert answer.status in (0, 200, 400, 404, 414, 431, 501, 505), (data[:60], answer.status)
        assert "<script>" not in answer.text
        if answer.status == 200:
            assert data.split()[1] in (b"/live", b"//live", b"/metrics?name[]=<b>"), data[:60]
    job = queue.add("act", {})
    queue.until_state("completed", job)
    assert worker.stop() == 0
    assert "Traceback" not in worker.log


def test_slow_clients_take_no_probe_and_no_thread_from_a_worker(queue: Any, health: Any, port: str) -> None:
    worker = queue.start("--health-port", port)
    until_health(queue, health, 0, "ready", "--port", port)
    before = threads_of(worker.pid)
    beginnings = [b"", b"G", b"GET /live HTTP/1.1\r\nX: ", b"GET /live HTTP/1.1\r\nX: a\r\n"]
    slow = [socket.create_connection(("127.0.0.1", int(port)), DEADLINE) for _ in range(300)]
    for n, conn in enumerate(slow):
        with contextlib.suppress(OSError):
            conn.sendall(beginnings[n % len(beginnings)])
    assert health("--port", port, "--live") == (0, "live\n")
    assert threads_of(worker.pid) - before < 60
    began = time.monotonic()
    while slow:  # each sends a byte a second, until the other end is closed
        assert time.monotonic() - began < DEADLINE, f"{len(slow)} are still served"
        for conn in list(slow):
            conn.settimeout(0.0)
            try:
                gone = conn.recv(65536) == b""
            except BlockingIOError:
                gone = False
                with contextlib.suppress(OSError):
                    conn.send(b"a")
            except OSError:
                gone = True
            if gone:
                slow.remove(conn)
                conn.close()
        select.select(slow, [], [], 1 if slow else 0)  # a second, or until one is closed
    assert health("--port", port, "--live") == (0, "live\n")
    assert worker.stop() == 0
    assert "Traceback" not in worker.log


def test_the_port_of_the_metrics_command_shows_no_password_of_a_database_that_is_away(port: str) -> None:
    dsn = "postgresql://ada:hunter2@127.0.0.1:1/shop"
    with subprocess.Popen(
        [sys.executable, "-m", "pyworker", "metrics", "--port", port],
        env={**os.environ, "DATABASE_URL": dsn}, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr
        process.stderr.readline()
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=20)
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        process.send_signal(signal.SIGTERM)
        told = process.stderr.read()
    assert answer.status == 503
    assert "hunter2" not in text + told
