"""Behind PgBouncer in transaction mode: producers and workers."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.json import Jsonb

import pyworker

pytestmark = pytest.mark.skipif(not shutil.which("pgbouncer"), reason="there is no pgbouncer here")


@contextmanager
def pooler(queue: Any, tmp_path: Path) -> Iterator[str]:
    """The DSN of the test's database by way of a pooler that has two connections for everybody."""
    where = conninfo_to_dict(queue.dsn)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "users.txt").write_text(f'"{where["user"]}" ""\n')
    (tmp_path / "pgbouncer.ini").write_text(
        f"[databases]\n{where['dbname']} = host={where['host']} port={where['port']} dbname={where['dbname']} user={where['user']}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        f"auth_file = {tmp_path}/users.txt\npool_mode = transaction\ndefault_pool_size = 2\nlogfile = {tmp_path}/log\n"
        f"pidfile = {tmp_path}/pid\n"
    )
    become: dict[str, Any] = {}
    if os.getuid() == 0:  # it will not run as root: as the server's user, then, who has to get here
        there = os.stat(str(where["host"])) if str(where["host"]).startswith("/") else None
        user = pwd.getpwuid(there.st_uid) if there and there.st_uid else pwd.getpwnam("nobody")
        become = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        for directory in (tmp_path, *tmp_path.parents):
            if directory.stat().st_mode & 0o077 == 0:
                directory.chmod(0o711)
        os.chown(tmp_path, user.pw_uid, user.pw_gid)
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


@pytest.fixture
def pooled(queue: Any, tmp_path: Path) -> Iterator[str]:
    with pooler(queue, tmp_path) as dsn:
        yield dsn


def test_producers_of_all_kinds_share_the_poolers_connections(queue: Any, pooled: str) -> None:
    connections = [psycopg.connect(pooled) for _ in range(6)]  # three for each that the pooler has
    for turn in range(12):  # psycopg would prepare its statement by the fifth
        for conn in connections:
            conn.prepare_threshold = None
            pyworker.add_job(conn, "note", {"turn": turn}, job_key=f"k{turn}", queue_name="q")
            conn.commit()
    for conn in connections:
        conn.execute(
            "select pyworker.add_job('note', unique_policy => %s)", [Jsonb({"on_conflict": "ignore"})]
        )
        conn.commit()
        conn.close()
    assert queue.value("select count(*) from pyworker.jobs") == 13


def test_a_worker_behind_a_pooler_says_so_and_works(queue: Any, pooled: str) -> None:
    worker = queue.start(
        "--concurrency", "4", "--poll-interval", "0.2", "--no-tracebacks", DATABASE_URL=pooled
    )
    worker.until_log("transaction pooler")
    jobs = [
        queue.add("in_turn", {"customer": n % 2}, sequence_policy=Jsonb({"by_args": ["customer"]}))
        for n in range(8)
    ]
    jobs += [queue.add("note", queue_name="q") for _ in range(3)]
    jobs += [
        queue.add("deliver"),
        queue.add("mail_once_async"),
        queue.add("write", {}),
        queue.add("write_async", {}),
    ]
    queue.until_state("completed", *jobs)
    cancelled_runs = queue.add("sleep_async")
    queue.until("select count(*) = 1 from public.seen where job_id = %s", cancelled_runs)
    queue.rows(
        "select pyworker.cancel_job(%s)", cancelled_runs
    )  # heard of when it asks, not by a notification
    queue.until_state("cancelled", cancelled_runs)
    assert queue.value("select count(*) from pyworker.workers where locked") == 0
    assert worker.stop() == 0
    assert "Traceback" not in worker.log


def test_a_dead_worker_behind_a_pooler_is_noticed_by_its_lease(queue: Any, pooled: str) -> None:
    """Its session lock would have outlived it."""
    queue.close_gate(1)
    doomed = queue.start(DATABASE_URL=pooled)
    job_id = queue.add("note", {"gate": 1})
    queue.until_waiting(1)
    with queue.ends_of(doomed.children()):
        doomed.signal(signal.SIGKILL)
    queue.rows(
        "update pyworker.workers set expires_at = pyworker.clock() - interval '1 second'"
    )  # so long ago was its last beat
    queue.start(DATABASE_URL=pooled)
    queue.until("select count(*) = 2 from public.seen where job_id = %s", job_id)
    queue.open_gate(1)
    queue.until_state("completed", job_id)
