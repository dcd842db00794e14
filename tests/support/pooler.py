"""PgBouncer in transaction mode before a test's database."""

from __future__ import annotations

import os
import pwd
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo


def free_port() -> int:
    with socket.create_server(("", 0)) as free:
        return free.getsockname()[1]


def as_the_servers_user(directory: Path, host: str) -> dict[str, Any]:
    """For Popen: PgBouncer does not run as root, so it runs as the server's user, who can read
    this directory."""
    if os.getuid() != 0:
        return {}
    there = os.stat(host) if host.startswith("/") else None
    user = pwd.getpwuid(there.st_uid) if there and there.st_uid else pwd.getpwnam("nobody")
    for above in (directory, *directory.parents):
        if above.stat().st_mode & 0o077 == 0:
            above.chmod(0o711)
    os.chown(directory, user.pw_uid, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


class Pooler:
    """PgBouncer before the test's database, with so many connections for all."""

    def __init__(self, queue: Any, directory: Path, size: int = 2) -> None:
        self._queue, self._directory = queue, directory
        where, port = conninfo_to_dict(queue.dsn), free_port()
        (directory / "users.txt").write_text(f'"{where["user"]}" ""\n')
        (directory / "pgbouncer.ini").write_text(
            f"[databases]\n{where['dbname']} = host={where['host']} port={where['port']} "
            f"dbname={where['dbname']} user={where['user']}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = any\nauth_file = {directory}/users.txt\npool_mode = transaction\n"
            f"default_pool_size = {size}\nserver_login_retry = 1\nlogfile = {directory}/log\n"
            f"pidfile = {directory}/pid\n"
        )
        self._become = as_the_servers_user(directory, str(where["host"]))
        self.dsn = make_conninfo(
            host="127.0.0.1", port=str(port), dbname=str(where["dbname"]), user=str(where["user"])
        )
        self.start()

    def start(self) -> None:
        (self._directory / "pid").unlink(missing_ok=True)
        command = ["pgbouncer", "-q", str(self._directory / "pgbouncer.ini")]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL, **self._become)

    def until_it_answers(self) -> None:
        def answers() -> bool:
            assert self.process.poll() is None, (self._directory / "log").read_text()
            try:
                psycopg.connect(self.dsn, connect_timeout=2).close()
            except psycopg.OperationalError:
                return False
            return True

        self._queue.until_so("the pooler answers", answers)

    def end(self, sign: int = signal.SIGINT) -> None:
        self.process.send_signal(sign)
        self.process.wait()


@contextmanager
def pooler(queue: Any, tmp_path: Path) -> Iterator[str]:
    """The DSN of the test's database by way of a pooler that has two connections for all."""
    made = Pooler(queue, tmp_path)
    try:
        made.until_it_answers()
        yield made.dsn
    finally:
        made.end()
