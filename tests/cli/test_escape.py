"""Names, keys and errors of others steer no terminal: control characters are written out. JSON keeps them."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import DEADLINE, PYTHONPATH

EVIL = "\x1b]0;owned\x07\x9b2J\r\x7f\u202e"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")
LOOKS = [
    "jobs",
    "jobs 1",
    "jobs 3",
    "explain 1",
    "queues",
    "sequences",
    "schedules",
    "doctor --verbose",
    "health --worker evil",
]


@pytest.fixture
def evil(queue: Any) -> Any:
    """Everything that others may name, and the text of an error."""
    queue.add(f"t{EVIL}", job_key=EVIL, queue_name=f"q{EVIL}", flags=[EVIL])
    queue.rows("select pyworker.pause_queue(%s)", f"q{EVIL}")
    queue.rows("select pyworker.add_schedule(%s, '0 4 * * *', %s)", f"s{EVIL}", f"t{EVIL}")
    queue.add("s", sequence_policy=json.dumps({"key": EVIL}))
    failed = queue.add("f", {"a": EVIL}, max_attempts=1, meta=json.dumps({"m": EVIL}))
    worker = queue.value("select pyworker.register_worker(%s)", json.dumps({"name": f"evil{EVIL}"}))
    queue.rows("select * from pyworker.claim_jobs(%s, 1, array['f'])", worker)
    failure = {"id": failed, "run": queue.job(failed).run, "error": f"one{EVIL}\ntwo{EVIL}"}
    assert queue.value("select pyworker.fail_jobs(%s)", json.dumps([failure])) == [failed]
    return queue


@pytest.mark.parametrize("words", LOOKS)
def test_no_command_prints_a_control_character_of_others(
    evil: Any, cli: Callable[..., Any], words: str
) -> None:
    done = cli(*words.split(), DATABASE_URL=evil.dsn)
    assert not CONTROL.search(done.stdout + done.stderr)
    if words.split()[0] not in ("doctor", "health", "sequences"):
        assert "\\x1b" in done.stdout


@pytest.mark.parametrize("words", ["jobs 1", "jobs", "queues", "schedules"])
def test_json_says_the_same_characters_and_prints_none_of_them(
    evil: Any, cli: Callable[..., Any], words: str
) -> None:
    done = cli(*words.split(), "--json", DATABASE_URL=evil.dsn)
    assert not CONTROL.search(done.stdout)
    assert any(EVIL in text for text in texts_of(json.loads(done.stdout)))


def texts_of(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for part in value.values() for text in texts_of(part)]
    if isinstance(value, list):
        return [text for part in value for text in texts_of(part)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize(
    "words", ["retry", "cancel", "queues pause", "queues resume", "schedules pause", "schedules remove"]
)
def test_what_was_done_is_said_without_them(evil: Any, cli: Callable[..., Any], words: str) -> None:
    target = "1" if len(words.split()) == 1 else f"{words[0]}{EVIL}"
    done = cli(*words.split(), target, DATABASE_URL=evil.dsn)
    assert not CONTROL.search(done.stdout + done.stderr), done


@pytest.mark.parametrize("log_format", ["text", "short"])
def test_a_log_for_people_writes_them_out_and_keeps_its_lines(queue: Any, log_format: str) -> None:
    queue.add("log_this", f"one{EVIL}\ntwo")
    worker = queue.run_once("--log-format", log_format)
    assert not CONTROL.search(worker.log)
    assert "one\\x1b]0;owned\\x07\\x9b2J\\r\\x7f\\u202e\ntwo" in worker.log


def test_a_log_for_machines_keeps_them_as_json_does(queue: Any) -> None:
    queue.add("log_this", f"one{EVIL}\ntwo")
    worker = queue.run_once("--log-format", "json")
    assert not CONTROL.search(worker.log)
    assert f"one{EVIL}\ntwo" in [json.loads(line)["message"] for line in worker.log.splitlines()]


def test_top_sends_none_of_them_to_a_real_terminal(evil: Any) -> None:
    """On each of its pages, and on the page of a job; what it sends of its own begins otherwise."""
    worker = evil.value("select max(id) from pyworker.live_workers")
    evil.rows("select pyworker.update_worker(%s, %s)", worker, json.dumps({"host": EVIL, "version": EVIL}))
    outside, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 250, 0, 0))
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": PYTHONPATH,
        "TERM": "xterm",
        "DATABASE_URL": evil.dsn,
    }
    with subprocess.Popen(
        [sys.executable, "-m", "pyworker", "top"], stdin=inside, stdout=inside, stderr=inside,
        env=environment,
        start_new_session=True,
    ) as process:  # fmt: skip
        os.close(inside)
        sent = b""
        try:
            # Jobs, one of them, back, queues, sequences, schedules, workers.
            for key in (b"", b"\r", b"\x1b", b"2", b"3", b"4", b"6"):
                os.write(outside, key)
                part = b""
                while (key != b"\x1b" and b"owned" not in part) or not part:
                    assert select.select([outside], [], [], DEADLINE)[0], f"no page after {key!r}"
                    part += os.read(outside, 65536)
                sent += part
        finally:
            process.kill()
            os.close(outside)
    assert sent.count(b"\\x1b]0;owned\\x07") >= 6
    for raw in (b"\x1b]0;owned", b"owned\x07", "\x9b".encode(), "\u202e".encode(), b"owned\r"):
        assert raw not in sent, raw
