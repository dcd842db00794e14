"""Starts the child process, and ends it.

The parent sends the start order as one line of JSON on stdin, so that no password shows in a process list;
later it sends "stop" or "abort".
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
from typing import NoReturn

import psycopg

from .. import _logging
from ..errors import NotFound, PyworkerError, SchemaVersionError, TaskError
from . import leaving, signals
from .child import Child
from .config import (
    EXIT_CANNOT_START,
    EXIT_DATABASE_NEWER,
    EXIT_DATABASE_OLDER,
    EXIT_REGISTER_AGAIN,
    RunConfig,
)
from .shared import Slots

log = logging.getLogger("pyworker.worker")


def main() -> NoReturn:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a frozen child dies, too
    signals.leave_to_parent()
    # Programs that handlers start inherit stdin. They get an empty one; the orders come over a
    # duplicate that is not inherited.
    orders = os.fdopen(os.dup(0))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    order = json.loads(orders.readline() or "null")
    if order is None:
        os._exit(0)
    sys.path[:] = order["path"]
    leaving.prepare()
    config = RunConfig(**order["config"])
    _logging.set_up(config.log_format, config.log_level)
    code = 1
    slots = Slots(order["slots"], config.concurrency)
    child = Child(config, order["worker_id"], orders, slots)
    signals.restore_in_copies()
    blameless = True  # running handlers; False if this process ends for an unknown reason
    try:
        code = child.run()
        blameless = not child.handlers.broken
    except TaskError as error:
        log.error("%s", error, exc_info=error.__cause__)
        code = EXIT_CANNOT_START
    except SchemaVersionError as error:
        log.error("%s. %s", error, error.hint or "")
        code = EXIT_DATABASE_NEWER if error.detail == "newer" else EXIT_DATABASE_OLDER
    except NotFound as error:
        log.warning("%s", error)
        code = EXIT_REGISTER_AGAIN
    except BaseException as error:
        blameless = isinstance(error, psycopg.Error | PyworkerError)
        log.critical("the worker process failed", exc_info=True)
    if blameless:
        child.handlers.leave()
    held = child.handlers
    # Handlers of jobs that others may be given before this process has ended leave no time for hooks.
    leaving.leave(code, hooks=held.broken or not (held.handed_back or held.running or held.lost))
