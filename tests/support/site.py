"""`pyworker ui` as a process of its own, and requests over raw sockets."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

from tests.support import DEADLINE

SECURITY = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
}


class Answer:
    def __init__(self, raw: bytes) -> None:
        head, _, self.body = raw.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        # 0: the connection was closed without a word, or the answer is in HTTP/0.9.
        self.status = int(lines[0].split()[1]) if raw.startswith(b"HTTP/1") else 0
        self.headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines[1:])}

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")


class Site:
    """`pyworker ui` as a process; what it logs goes into a file."""

    def __init__(self, dsn: str, directory: Path, *options: str, **environment: str) -> None:
        self._log = directory / f"ui-{len(list(directory.iterdir()))}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pyworker", "ui", "--port", "0", *options],
                env={**os.environ, "DATABASE_URL": dsn, "PYWORKER_UI_AUTH": "", **environment},
                stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        assert self.process.stdout
        self.port = int(re.search(r":(\d+)/", self.process.stdout.readline())[1])  # type: ignore[index]

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), DEADLINE)

    def raw(self, data: bytes) -> Answer:
        with self.connect() as conn:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has answered before the end
                conn.sendall(data)
            return Answer(read_all(conn))

    def ask(self, path: str, method: str = "GET", body: str | None = None, **headers: str) -> Answer:
        given = {"host": f"127.0.0.1:{self.port}", "connection": "close"}
        if body is not None:
            given |= {"content-type": "application/x-www-form-urlencoded", "content-length": str(len(body))}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        return self.raw(f"{method} {path} HTTP/1.1\r\n{lines}\r\n{body or ''}".encode())

    def log(self) -> str:
        return self._log.read_text()

    def close(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(DEADLINE)
        assert self.process.stdout
        self.process.stdout.close()


def read_all(conn: socket.socket) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while part := conn.recv(65536):
            data += part
    return data
