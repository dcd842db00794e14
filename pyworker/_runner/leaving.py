"""The end of a worker process: as any program it joins threads and runs exit hooks, but not for long.

Spans and errors that are sent in batches leave with those hooks. Python's own end would come after them; it
is left out, since handlers' threads may still run C code.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import time
from typing import NoReturn

log = logging.getLogger("pyworker.worker")

HOOKS = 5.0  # seconds that threads and exit hooks have; the parent may end them sooner

_code = 1


def prepare() -> None:
    """Call it before the application is imported: what is registered first runs last."""
    atexit.register(_end)
    os.register_at_fork(after_in_child=lambda: atexit.unregister(_end))


def leave(code: int, hooks: bool) -> NoReturn:
    """End this process, with exit hooks or at once."""
    global _code
    _code = code
    _flush()
    if hooks:
        with contextlib.suppress(RuntimeError):  # no thread can be started
            threading.Thread(target=_cut, daemon=True, name="exit").start()
            sys.exit(code)
    os._exit(code)


def _cut() -> None:
    time.sleep(HOOKS)
    log.warning("threads or exit hooks of this process had not ended after %g s: it ends now", HOOKS)
    _flush()
    os._exit(_code)


def _end() -> None:
    logging.shutdown()
    _flush()
    os._exit(_code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # a handler may have closed it
            stream.flush()
