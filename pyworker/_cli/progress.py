"""The progress bar of `pyworker run --once` on a terminal."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

import psycopg
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from .._db.connect import connect
from .._db.database import Database

SHARE = 20  # count for at most a twentieth of the time; with a million jobs less often


@contextmanager
def progress(dsn: str, schema: str) -> Generator[None]:
    """A progress bar on standard error, updated by a thread with its own connection."""
    console = Console(file=sys.stderr)
    columns = (TextColumn("jobs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, redirect_stdout=False, redirect_stderr=False, refresh_per_second=5
    ) as bar:
        stopped = threading.Event()
        thread = threading.Thread(
            target=_count, args=[bar, bar.add_task("", total=None), dsn, schema, stopped], daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join(1)


def _count(bar: Progress, task: TaskID, dsn: str, schema: str, stopped: threading.Event) -> None:
    total = done = 0
    pause = 0.1
    try:
        with connect(dsn) as conn:
            db = Database(conn, schema)
            while not stopped.wait(pause):
                began = time.monotonic()
                left = db.jobs_left(socket.gethostname(), os.getpid())
                pause = max(0.2, SHARE * (time.monotonic() - began))
                total = max(total, done + left)
                done = total - left
                if total:
                    bar.update(task, total=total, completed=done)
    except psycopg.Error:
        return  # the worker handles lost connections
    bar.update(task, total=total, completed=total, visible=total > 0)  # the remaining jobs cannot run now
