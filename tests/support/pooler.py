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


@contextmanager
def pooler(queue: Any, tmp_path: Path, size: int = 2) -> Iterator[str]:
    """The DSN of the test's database by way of a pooler that has so many connections for all."""
    where = conninfo_to_dict(queue.dsn)
    port = free_port()
    (tmp_path / "users.txt").write_text(f'"{where["user"]}" ""\n')
    (tmp_path / "pgbouncer.ini").write_text(
        f"[databases]\n{where['dbname']} = host={where['host']} port={where['port']} "
        f"dbname={where['dbname']} user={where['user']}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        f"auth_file = {tmp_path}/users.txt\npool_mode = transaction\ndefault_pool_size = {size}\n"
        f"server_login_retry = 1\n"
        f"logfile = {tmp_path}/log\n"
        f"pidfile = {tmp_path}/pid\n"
    )
    become = as_the_servers_user(tmp_path, str(where["host"]))
    process = subprocess.Popen(
        ["pgbouncer", "-q", str(tmp_path / "pgbouncer.ini")], stderr=subprocess.DEVNULL, **become
    )
    dsn = make_conninfo(
        host="127.0.0.1", port=str(port), dbname=str(where["dbname"]), user=str(where["user"])
    )

    def answers() -> bool:
        assert process.poll() is None, (tmp_path / "log").read_text()
        try:
            psycopg.connect(dsn, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    try:
        queue.until_so("the pooler answers", answers)
        yield dsn
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()
