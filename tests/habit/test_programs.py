"""What people ordinarily write at the top of a module of tasks: its jobs run, and the worker still logs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.workers import Queue

# Each module has the task `work`, whose first job completes; the second one fails, and the log says so.
WORK = """
import os
from pyworker import task

def _work(payload):
    if payload.get("fail"):
        raise ValueError("a deliberate failure")
    return check()

work = task("work", result=True)(_work)
"""
MODULES = {
    "dictConfig_that_disables_other_loggers": """
import logging.config
logging.config.dictConfig({"version": 1, "disable_existing_loggers": True})
def check():
    return True
""",
    "dictConfig_with_a_handler_for_the_root": """
import logging, logging.config
logging.config.dictConfig({
    "version": 1, "formatters": {"plain": {"format": "APP %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "root": {"handlers": ["console"], "level": "INFO"},
})
def check():
    logging.getLogger("app").info("by its own formatter")
    return True
""",
    "basicConfig": """
import logging
logging.basicConfig(level=logging.DEBUG, format="APP %(message)s")
def check():
    logging.getLogger("app").debug("by its own format")
    return True
""",
    "basicConfig_by_force": """
import logging
logging.basicConfig(level=logging.WARNING, force=True)
def check():
    return True
""",
    "a_start_method": """
import multiprocessing
multiprocessing.set_start_method("spawn")
def check():
    return multiprocessing.get_start_method() == "spawn"
""",
    "a_signal_handler": """
import signal, sys
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
signal.signal(signal.SIGINT, signal.SIG_IGN)
def check():
    return True
""",
    "a_thread": """
import threading
started = threading.Event()
threading.Thread(target=started.set).start()
def check():
    return started.wait(5)
""",
    "a_thread_that_never_ends": """
import threading, time
threading.Thread(target=time.sleep, args=(3600,)).start()
def check():
    return True
""",
    "a_pool_of_connections": """
import os
from psycopg_pool import ConnectionPool
pool = ConnectionPool(os.environ["DATABASE_URL"], open=True, min_size=1)
def check():
    with pool.connection() as conn:
        return conn.execute("select true").fetchone()[0]
""",
    "an_engine_of_sqlalchemy": """
import os, psycopg, sqlalchemy
engine = sqlalchemy.create_engine(
    "postgresql+psycopg://", creator=lambda: psycopg.connect(os.environ["DATABASE_URL"]))
def check():
    with engine.connect() as conn:
        return conn.exec_driver_sql("select true").scalar()
""",
    "another_working_directory": """
import os
os.chdir("/")
def check():
    return os.getcwd() == "/"
""",
    "faulthandler_and_tracemalloc": """
import faulthandler, tracemalloc
faulthandler.enable()
tracemalloc.start()
def check():
    return tracemalloc.is_tracing()
""",
    "uvloop": """
import asyncio, uvloop
uvloop.install()
def check():
    return asyncio.run(asyncio.sleep(0, True))
""",
    "warnings_as_errors": """
import warnings
warnings.simplefilter("error")
def check():
    return True
""",
    "another_stdout": """
import io, sys
sys.stdout = io.StringIO()
print("to nowhere")
def check():
    print("to nowhere")
    return True
""",
    "a_locale_and_a_time_zone": """
import locale, os, time
locale.setlocale(locale.LC_ALL, "C")
os.environ["TZ"] = "Asia/Tokyo"
time.tzset()
def check():
    return time.tzname[0] == "JST"
""",
    "a_limit_of_recursion_and_a_socket_timeout": """
import socket, sys
sys.setrecursionlimit(3000)
socket.setdefaulttimeout(0.5)
def check():
    return sys.getrecursionlimit() == 3000
""",
    "asyncio_in_debug_mode": """
import os
os.environ["PYTHONASYNCIODEBUG"] = "1"
def check():
    return True
""",
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_may_begin_as_programs_do(name: str, queue: Queue, tmp_path: Any) -> None:
    (tmp_path / "program.py").write_text(MODULES[name] + WORK)
    worker = queue.start(modules="program").until_ready()
    done, failed = queue.add("work"), queue.add("work", {"fail": True})
    queue.until_state("completed", done)
    queue.until_state("retryable", failed)
    assert queue.job(done).result is True
    assert worker.stop() == 0
    assert "a deliberate failure" in worker.log
