"""`pyworker run` on a terminal: a quiet log, and with --once a bar; and none of it in a pipe."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import PYTHONPATH

DEADLINE = 60.0


class Terminal:
    """`pyworker run handlers`, its standard error a terminal."""

    def __init__(self, queue: Any, directory: Path, *options: str, **environment: str) -> None:
        self._outside, inside = pty.openpty()
        env = {
            "PATH": os.environ["PATH"],
            "DATABASE_URL": queue.dsn,
            "PYTHONPATH": PYTHONPATH,
            "TERM": "xterm",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pyworker", "run", "handlers", *options],
            cwd=directory, stdin=subprocess.DEVNULL, stderr=inside, env=env | environment,
            start_new_session=True,
        )  # fmt: skip
        os.close(inside)
        self.text = ""
        self._timer = threading.Timer(DEADLINE, self.process.kill)
        self._timer.start()

    def _read(self) -> bool:
        try:
            part = os.read(self._outside, 4096)
        except OSError:  # its other end is closed
            part = b""
        self.text += part.decode(errors="replace")
        return bool(part)

    def until(self, pattern: str) -> None:
        while not re.search(pattern, self.text):
            assert self._read(), f"never said {pattern!r}:\n{self.text}"

    def end(self) -> int:
        while self._read():
            pass
        return self.process.wait(DEADLINE)

    def close(self) -> None:
        self._timer.cancel()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._outside)


@pytest.fixture
def terminal(queue: Any, tmp_path: Path) -> Iterator[Any]:
    started: list[Terminal] = []

    def start(*options: str, **environment: str) -> Terminal:
        started.append(Terminal(queue, tmp_path, *options, **environment))
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_once_shows_how_far_it_is(queue: Any, terminal: Any) -> None:
    queue.close_gate(1, 2)
    for payload in ({"gate": 2}, {}, {"gate": 1}, {}):
        queue.add("act", payload)
    queue.add("nobody_knows_it")
    running = terminal("--once", "--concurrency", "1")
    running.until("0/4")
    queue.open_gate(2)
    running.until("2/4")
    queue.open_gate(1)
    assert running.end() == 0
    assert "4/4" in running.text
    assert "/5" not in running.text


def test_a_line_of_the_log_takes_the_place_of_the_bar(queue: Any, terminal: Any) -> None:
    queue.close_gate(1)
    queue.add("act", {"gate": 1, "raise": ["error", "spoken"]})
    running = terminal("--once", NO_COLOR="1")
    running.until("0/1")
    queue.open_gate(1)
    assert running.end() == 0
    said = (
        r"\r\x1b\[K\d\d:\d\d:\d\d warning: job 1 \(act\) attempt 1 of 25 failed: handlers.Canary: spoken\r\n"
    )
    assert re.search(said + r"Traceback \(most recent call last\):\r\n", running.text)


def test_without_jobs_there_is_no_bar_left(queue: Any, terminal: Any) -> None:
    running = terminal("--once")
    assert running.end() == 0
    assert not re.search(r"\d/\d", running.text)


def test_on_a_terminal_the_log_is_short(queue: Any, terminal: Any) -> None:
    running = terminal()
    running.until("started")
    assert re.search(
        r"\x1b\[2m\d\d:\d\d:\d\d\x1b\[0m pyworker \S+ started: 1 process of 10 handlers", running.text
    )
    assert "pyworker.parent" not in running.text
    running.process.send_signal(signal.SIGTERM)
    assert running.end() == 0
    assert "━" not in running.text


@pytest.mark.parametrize("options", [["--log-format", "json"], []])
def test_machines_get_what_they_always_got(queue: Any, terminal: Any, options: list[str]) -> None:
    queue.add("act", {})
    if options:
        running = terminal("--once", *options)
        assert running.end() == 0
        text = running.text
        assert text.startswith("{")
    else:
        worker = queue.start("--once")
        assert worker.wait() == 0
        text = worker.log
        assert re.match(
            r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO    pyworker\.parent\[\d+\] pyworker", text
        )
    assert "\x1b" not in text
    assert "━" not in text
