"""examples/pgbouncer: its file, with this machine's addresses, runs; producers go through it, a
worker beside it."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import pyworker
from tests.support.pooler import as_the_servers_user, free_port


@pytest.fixture
def pooled(example: Any, tmp_path: Path) -> Iterator[tuple[Any, str]]:
    program = shutil.which("pgbouncer") or pytest.skip("no pgbouncer here")
    pool = example("pgbouncer")
    where = conninfo_to_dict(pool.dsn)
    port = free_port()
    text = (pool.directory / "pgbouncer.ini").read_text("utf-8")
    for shown, here in {
        "host=127.0.0.1 port=5432 dbname=shop": (
            f"host={where['host']} port={where['port']} dbname={where['dbname']} user={where['user']}"
        ),
        "listen_port = 6432": f"listen_port = {port}\nunix_socket_dir =",
        "auth_type = scram-sha-256": "auth_type = any",  # this server asks for no password
        "/etc/pgbouncer/userlist.txt": f"{tmp_path}/users.txt",
    }.items():
        assert shown in text
        text = text.replace(shown, here)
    (tmp_path / "users.txt").write_text("")
    (tmp_path / "pgbouncer.ini").write_text(text)
    become = as_the_servers_user(tmp_path, str(where["host"]))
    process = subprocess.Popen(
        [program, str(tmp_path / "pgbouncer.ini")], stderr=subprocess.PIPE, text=True, **become
    )
    try:
        for line in process.stderr or []:
            if "process up" in line:
                break
        else:
            raise AssertionError("PgBouncer did not start")
        yield pool, make_conninfo(host="127.0.0.1", port=port, dbname="shop", user=where["user"])
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate()


def test_producers_go_through_it_and_a_worker_beside_it(pooled: tuple[Any, str], tmp_path: Path) -> None:
    pool, dsn = pooled
    pool.python("-m", "pyworker", "migrate")
    for turn in range(3):
        with psycopg.connect(dsn, prepare_threshold=None) as conn:
            pyworker.add_job(conn, "note", {"turn": turn})
            pyworker.add_job(conn, "note", {"turn": turn}, job_key="k")
    assert pool.rows("select count(*) from pyworker.jobs") == [(4,)]
    (tmp_path / "notes.py").write_text("from pyworker import task\n\n\n@task\ndef note(payload): ...\n")
    pool.directory = tmp_path
    pool.python("-m", "pyworker", "run", "notes", "--once")
    assert pool.rows("select count(*) from pyworker.history") == [(4,)]
