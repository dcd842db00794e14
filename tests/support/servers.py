"""Servers that a test stops as a power cut would, starts again, copies and promotes."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg

from pyworker._db.migrations import migrate
from pyworker._dev import postgres

# What was acknowledged survives the end of the server; only that of the machine would lose it.
DURABLE = {"synchronous_commit": "on", "log_min_messages": "panic"}


class Postgres:
    """Call everything from the main thread: Linux ends a server together with the thread that started it."""

    def __init__(self, stack: ExitStack, source: Postgres | None = None, **settings: str) -> None:
        account = postgres._account()
        parent = postgres._parents(account, in_memory=True)[0]
        self._home, self._lock = stack.enter_context(postgres._own_directory(parent, account))
        self._account, self._stack, self._settings = account, stack, DURABLE | settings
        self.server = postgres.Server(str(self._home / "data"), postgres.find_bindir())
        if source:
            self._copy(source)
        self.start()

    @property
    def url(self) -> str:
        return self.server.url()

    def start(self) -> None:
        running = postgres._running(self.server, self._lock, self._account, signal.SIGQUIT, self._settings)
        self._stack.enter_context(running)
        self._process = os.pidfd_open(self.pid)
        self._stack.callback(os.close, self._process)

    @property
    def pid(self) -> int:
        return int(Path(self.server.host, "postmaster.pid").read_text().split()[0])

    def stop_immediately(self) -> None:
        """Without telling its clients, and without a checkpoint: what follows is crash recovery."""
        os.kill(self.pid, signal.SIGQUIT)
        select.select([self._process], [], [])

    def stop_cleanly(self) -> None:
        """With a checkpoint: all its data are in the tables, and none in the log alone."""
        os.kill(self.pid, signal.SIGINT)
        select.select([self._process], [], [])

    def execute(self, sql: str) -> Any:
        with psycopg.connect(self.url, autocommit=True) as conn:
            cursor = conn.execute(sql)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else None

    def install(self) -> None:
        with psycopg.connect(self.url, autocommit=True) as conn:
            migrate(conn)
            conn.execute("select pyworker.configure(max_crashes => 1000, completed_retention => '1 day')")

    def _copy(self, source: Postgres) -> None:
        """A standby that follows its source."""
        data = Path(self.server.host)
        data.mkdir(mode=0o700)
        if self._account:
            os.chown(data, self._account.pw_uid, self._account.pw_gid)
        with postgres._runnable(self.server.bindir, self._account) as (bindir, _):
            command = [
                bindir / "pg_basebackup",
                "-h",
                source.server.host,
                "-U",
                "postgres",
                "-D",
                data,
                "-R",
                "-X",
                "stream",
            ]
            command += ["--checkpoint=fast", "--no-sync"]
            run = postgres._command(self._account, *map(str, command))  # type: ignore[arg-type]
            subprocess.run(run, cwd=self._home, stdin=subprocess.DEVNULL, check=True)
