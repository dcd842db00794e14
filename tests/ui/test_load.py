"""`pyworker ui` and clients that send too much, or too slowly."""

from __future__ import annotations

import contextlib
import re
import select
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support import DEADLINE
from tests.support.site import Answer, Site, read_all

pytestmark = pytest.mark.slow


def memory(process: subprocess.Popen[str]) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024  # type: ignore[index]


KINDS = ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain"]


def test_a_huge_body_is_refused_before_it_is_kept(attacked: Any) -> None:
    """Also of another site's page, which may send one to a dashboard without a password."""
    site = attacked()
    assert site.ask("/").status == 200
    before = memory(site.process)
    for kind in KINDS:
        for framing in ("length", "chunked", "announced"):
            status = send_much(site, kind, framing)
            # 0: the rest that was sent has displaced the answer. 403: it was not read.
            assert status in (0, 413) or (kind == "text/plain" and status == 403), (kind, framing, status)
    assert memory(site.process) - before < 20_000_000


def send_much(site: Site, kind: str, framing: str) -> int:
    head = f"POST /act HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nConnection: close\r\n"
    size, part = 60_000_000, b"a=" + b"x" * 99_997 + b"&"
    if kind.startswith("multipart"):
        part = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n' + b"x" * 99_900 + b"\r\n"
    framed = (
        "Transfer-Encoding: chunked\r\n\r\n" if framing == "chunked" else f"Content-Length: {size}\r\n\r\n"
    )
    with site.connect() as conn:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it does not read to the end
            conn.sendall(f"{head}{framed}".encode())
            for _ in range(0 if framing == "announced" else size // len(part)):
                conn.sendall(b"%x\r\n%s\r\n" % (len(part), part) if framing == "chunked" else part)
        return Answer(read_all(conn)).status


# -- slow clients --------------------------------------------------------------------------------------


def test_slow_clients_are_dropped_and_keep_no_one_out(attacked: Any) -> None:
    """A header or a body that never ends; connections before, after and between requests."""
    site = attacked()
    whole = b"GET /static/icon.svg HTTP/1.1\r\nHost: localhost\r\n\r\n"
    beginnings = [
        b"", b"G", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ", whole, whole + b"GET / HT",
        b"POST /act HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        b"Content-Length: 1000\r\n\r\na=",
    ]  # fmt: skip
    slow = [(site.connect(), beginnings[n % len(beginnings)]) for n in range(180)]
    for conn, beginning in slow:
        conn.sendall(beginning)
    began = time.monotonic()
    assert site.ask("/jobs").status == 200
    assert time.monotonic() - began < 10
    # Each goes on, a byte a second, until the other end is closed.
    left = [conn for conn, _ in slow]
    while left:
        assert time.monotonic() - began < DEADLINE, f"{len(left)} are still served"
        for conn in list(left):
            conn.settimeout(0.0)
            try:
                if conn.recv(65536) == b"":
                    left.remove(conn)
            except BlockingIOError:
                with contextlib.suppress(OSError):
                    conn.send(b"a")
            except OSError:
                left.remove(conn)
        select.select(left, [], [], 1 if left else 0)  # a second, or until one is closed
    for conn, _ in slow:
        conn.close()
