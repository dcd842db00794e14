"""One of several databases, from the supervisor's side: the process of its parent, and the channel to it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from queue import SimpleQueue
from typing import Any, NamedTuple

from .._logging import DATABASE
from . import signals
from .children import python
from .config import RunConfig

UNANSWERED = 100  # questions; a process that leaves so many unanswered is asked no more


class Answer(NamedTuple):
    status: int
    kind: str  # content type
    text: str


class Servant:
    def __init__(self, name: str, config: RunConfig, crontab: str | None) -> None:
        self.name = name
        self.process: subprocess.Popen[bytes] | None = None
        self.channel: socket.socket | None = None
        self.due: float | None = 0.0  # when to start it; None: it runs, or starts no more
        self.began = 0.0
        self.delay = 0.0  # seconds until it was last started again
        self.failed = 0  # the exit code, if it has last ended with an error
        self._config, self._crontab = config, crontab
        self._inbox = b""
        self._asked: dict[int, tuple[float, SimpleQueue[Answer | None]]] = {}  # since when, and who waits
        self._number = 0
        self._lock = threading.Lock()  # HTTP requests ask in threads

    def start(self) -> None:
        self.began = time.monotonic()
        here, there = socket.socketpair()
        with there, signals.held_back():
            try:
                self.process = subprocess.Popen(  # noqa: S603
                    python("pyworker._runner.served", str(there.fileno())),
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, DATABASE: self.name},
                    pass_fds=[there.fileno()],
                )
            except OSError:
                here.close()
                raise
        self.due, self._inbox = None, b""
        with self._lock:  # nothing is asked before the order
            self.channel = here
            self._send({"config": asdict(self._config), "crontab": self._crontab})

    def read(self) -> None:
        """Read what the process has sent. Called when there is something, or the end."""
        assert self.channel is not None  # noqa: S101
        data = b""
        with suppress(OSError):
            data = self.channel.recv(1 << 16)
        if not data:
            self._close()
            return
        *lines, self._inbox = (self._inbox + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            with self._lock:
                asked = self._asked.pop(message["number"], None)
            if asked:
                asked[1].put(Answer(*message["answer"]))

    def ended(self, code: int) -> None:
        """Called when the process has ended and was reaped."""
        while self.channel:
            self.read()
        assert self.process is not None  # noqa: S101
        self.process.returncode = code
        self.process = None
        self.failed = max(code, 0)

    def ask(self, path: str) -> SimpleQueue[Answer | None]:
        """Ask the process for this path. None comes if it does not run, or ends instead."""
        answer: SimpleQueue[Answer | None] = SimpleQueue()
        with self._lock:
            if self.channel is None or len(self._asked) >= UNANSWERED:
                answer.put(None)
            else:
                self._number += 1
                self._asked[self._number] = (time.monotonic(), answer)
                self._send({"number": self._number, "path": path})
        return answer

    def silent(self) -> bool:
        """True if it has left a question unanswered for so long that it is stuck."""
        with self._lock:
            oldest = next((since for since, _ in self._asked.values()), None)
        return oldest is not None and time.monotonic() - oldest > self._config.stuck_after

    def _send(self, message: dict[str, Any]) -> None:
        with suppress(OSError):  # it has just ended
            assert self.channel is not None  # noqa: S101
            self.channel.sendall(json.dumps(message).encode() + b"\n")

    def _close(self) -> None:
        with self._lock:
            assert self.channel is not None  # noqa: S101
            self.channel.close()
            self.channel = None
            asked, self._asked = self._asked, {}
        for _, answer in asked.values():
            answer.put(None)
