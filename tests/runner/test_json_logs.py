"""With --log-format json each line is one JSON object, also of what handlers log and what Python
says by itself."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

TASKS = """
import threading, warnings, sys
from pyworker import task

class Mute:
    def __str__(self):
        raise RuntimeError("no text")
    __repr__ = __str__

class Falls:
    def __del__(self):
        raise RuntimeError("fell")

@task
def log_badly(payload, job):
    loop = []
    loop.append(loop)
    deep = []
    for _ in range(100_000):
        deep = [deep]
    extras = {
        "nan": float("nan"), "infinite": [float("inf")], "tuple": {(1, 2): 3}, "mute": Mute(),
        "in_mute": {"a": Mute()},
        "loop": loop, "deep": deep, "bytes": b"x", "surrogate": "\\ud800", "huge": 10 ** 5000, "set": {1},
        "mute_key": {Mute(): 1},
    }
    for name, value in extras.items():
        job.logger.warning("extra %s", name, extra={name: value})
    names = ("time", "level", "logger", "pid", "exception", "task_is")
    job.logger.warning("overwrites", extra=dict.fromkeys(names, "mine"))
    job.logger.warning("%d of %s", "one")
    job.logger.warning(Mute())
    try:
        raise ValueError("told")
    except ValueError:
        job.logger.exception("with a traceback", extra={"exception": "mine"})

@task
def break_things(payload, job):
    def fail():
        raise LookupError("in a thread")
    thread = threading.Thread(target=fail, name="side")
    thread.start()
    thread.join()
    warnings.warn("old\\nways", DeprecationWarning, stacklevel=1)
    warnings.warn("watch out", stacklevel=1)
    falls = Falls()
    del falls
"""


def lines_of(worker: Any) -> list[dict[str, Any]]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    lines = [json.loads(line, parse_constant=refuse) for line in worker.log.splitlines()]
    assert all({"time", "level", "logger", "message", "pid"} <= set(line) for line in lines)
    return lines


@pytest.fixture
def odd(tmp_path: Path) -> str:
    (tmp_path / "odd.py").write_text(TASKS)
    return "odd"


def test_with_any_extra_the_line_is_json(queue: Any, odd: str) -> None:
    job_id = queue.add("log_badly")
    lines = lines_of(queue.run_once("--log-format", "json", modules=odd))
    assert queue.job(job_id).state == "completed"
    extras = {
        line["message"].removeprefix("extra "): line for line in lines if line["message"].startswith("extra ")
    }
    assert len(extras) == 12
    assert extras["nan"]["nan"] == "nan"
    assert extras["infinite"]["infinite"] == ["inf"]
    assert extras["tuple"]["tuple"] == {"(1, 2)": 3}
    assert "Mute that cannot be shown" in extras["mute"]["mute"]
    assert extras["surrogate"]["surrogate"] == "\ud800"
    assert extras["bytes"]["bytes"] == "b'x'"
    assert any(line["message"].startswith("%d of %s ('one',)") for line in lines)


def test_an_extra_takes_no_field_of_the_line_itself(queue: Any, odd: str) -> None:
    queue.add("log_badly")
    lines = lines_of(queue.run_once("--log-format", "json", modules=odd))
    (line,) = [line for line in lines if line["message"] == "overwrites"]
    assert (line["level"], line["logger"]) == ("warning", "pyworker.task.log_badly")
    assert line["task_is"] == "mine"
    assert {
        name: line[f"extra_{name}"] for name in ("time", "level", "logger", "pid", "exception")
    } == dict.fromkeys(("time", "level", "logger", "pid", "exception"), "mine")
    (line,) = [line for line in lines if line["message"] == "with a traceback"]
    assert "ValueError: told" in line["exception"]
    assert line["extra_exception"] == "mine"


def test_what_python_says_by_itself_is_a_line_too(queue: Any, odd: str) -> None:
    queue.add("break_things")
    lines = lines_of(queue.run_once("--log-format", "json", modules=odd, PYTHONWARNINGS="always"))
    (thread,) = [line for line in lines if "in thread side" in line["message"]]
    assert "LookupError: in a thread" in thread["exception"]
    assert any("old\nways" in line["message"] and line["logger"] == "py.warnings" for line in lines)
    assert any("RuntimeError: fell" in line.get("exception", "") for line in lines)


def test_the_reason_for_which_a_worker_cannot_start_is_a_line_too(queue: Any) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        worker = queue.start("--health-port", str(port), "--log-format", "json")
        assert worker.wait() == 1
    assert [
        line["level"]
        for line in lines_of(worker)
        if f"cannot listen on 127.0.0.1, port {port}" in line["message"]
    ] == ["error"]
