"""The parent of one of several databases: its side of the channel to the supervisor.

The supervisor sends the start order as one line of JSON, so that no password shows in a process
list, and then what it is asked over HTTP. End of file means that the supervisor is dead: then the
parent dies at once, and its children with it.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import NoReturn, TextIO

import psycopg

from .. import _logging
from ..errors import PyworkerError
from . import metrics, probes, signals
from .config import RunConfig
from .crontab import load_for_run
from .failures import exit_code_of, explained
from .parent import Parent
from .probes import PLAIN, Route

log = logging.getLogger("pyworker.parent")


def main() -> NoReturn:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a frozen parent dies, too
    signal.signal(signals.TOLD, _leave)
    signals.leave_to_parent()
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    orders = channel.makefile("r", encoding="utf-8")
    order = json.loads(orders.readline() or "null")
    if order is None:
        raise SystemExit(0)
    config = RunConfig(**order["config"])
    _logging.set_up(config.log_format, config.log_level)
    routes: dict[str, Route] = {
        "/live": lambda: (200, PLAIN, "live\n"),
        "/ready": lambda: (503, PLAIN, "it is starting\n"),
    }
    threading.Thread(target=_answer, args=[channel, orders, routes], daemon=True, name="supervisor").start()
    try:
        code = _serve(config, order["crontab"], routes)
    except (PyworkerError, psycopg.Error) as error:
        log.error("%s", explained(error, config.schema, dsn=config.dsn))
        code = exit_code_of(error)
    signal.signal(signals.TOLD, signal.SIG_IGN)
    raise SystemExit(code)


def _serve(config: RunConfig, crontab: str | None, routes: dict[str, Route]) -> int:
    if crontab:
        load_for_run(config.dsn, config.schema, crontab)
    parent = Parent(config)
    with metrics.collected(parent) as own:
        routes |= {**probes.of_worker(parent), **own}
        return parent.run()


def _answer(channel: socket.socket, orders: TextIO, routes: Mapping[str, Route]) -> None:
    """Answer questions until the supervisor is dead."""
    with suppress(OSError):
        for line in orders:
            asked = json.loads(line)
            try:
                answer = routes[asked["path"]]() if asked["path"] in routes else (503, PLAIN, "starting\n")
            except Exception as error:
                log.exception("cannot answer %s", asked["path"])
                answer = (500, PLAIN, f"{error}\n")
            channel.sendall(json.dumps({"number": asked["number"], "answer": answer}).encode() + b"\n")
    os.kill(os.getpid(), signal.SIGKILL)


def _leave(_number: int, _frame: object) -> NoReturn:
    """Told to stop before the parent has children."""
    raise SystemExit(0)
