"""`pyworker doctor`: what it prints, its exit codes, and what only a client can measure."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pyworker._cli import doctor as command


@pytest.fixture
def doctor(db: Any, dsn: str, cli: Any) -> Any:
    def run(*arguments: str, code: int, dsn: str = dsn) -> str:
        done = cli("doctor", *arguments, DATABASE_URL=dsn)
        assert (done.returncode, done.stderr) == (code, ""), done
        return done.stdout

    return run


def test_a_healthy_queue_takes_one_line(doctor: Any) -> None:
    assert doctor(code=0).startswith("ok owners, invariants, functions, indexes, grants, ")
    lines = doctor("--verbose", code=0).splitlines()
    assert len(lines) == 23
    assert lines[0] == "ok owners: everything belongs to one role"
    rows = json.loads(doctor("--json", code=0))
    assert [row["check_name"] for row in rows][-2:] == ["clock", "pooler"]
    assert all(
        row.keys() == {"check_name", "severity", "finding", "fix"} and row["severity"] == "ok" for row in rows
    )


def test_the_worst_comes_first_and_gives_the_exit_code(doctor: Any, db: Any) -> None:
    db.execute("select pyworker.pause_queue('q'); select pyworker.add_job('t', queue_name => 'q')")
    lines = doctor(code=0).splitlines()
    assert lines[0] == "info queues: jobs wait in paused queues: q"
    assert lines[1] == "   → pyworker queues resume q"
    assert len(lines) == 3
    db.execute("select pyworker.add_job('t', run_at => now() - interval '1 hour')")
    assert [line.split()[:2] for line in doctor(code=1).splitlines() if not line.startswith(" ")] == [
        ["warning", "workers:"], ["info", "queues:"], ["ok", "owners,"],
    ]  # fmt: skip
    db.execute("update pyworker.live_jobs set ready_at = null where id = 2")
    out = doctor(code=2)
    assert out.startswith(
        "error invariants: state: the columns of jobs contradict each other: job 2\n"
        "   → select pyworker._repair_jobs("
    )
    rows = json.loads(doctor("--json", code=2))
    assert sorted({row["severity"] for row in rows}) == ["error", "info", "ok"]
    (fix,) = [row["fix"] for row in rows if row["severity"] == "error"]
    db.execute(fix)
    doctor(code=1)


def test_without_permission_it_could_not_be_asked(cli: Any, fresh: Any, fresh_dsn: str) -> None:
    done = cli("doctor", DATABASE_URL=fresh_dsn + " options='-c role=pyworker_worker'")
    assert (done.returncode, done.stdout) == (3, "")
    assert "needs the role pyworker_reader" in done.stderr


@pytest.mark.parametrize(("off", "code", "word"), [(0.5, 0, "ok"), (-5, 0, "info"), (3600, 1, "warning")])
def test_the_clock_of_this_machine(
    doctor: Any, monkeypatch: pytest.MonkeyPatch, off: float, code: int, word: str
) -> None:
    read: list[float] = []

    class Clock:
        @staticmethod
        def time() -> float:
            read.append(time.time() + off)
            return read[-1]

    monkeypatch.setattr(command, "time", Clock)
    (row,) = [row for row in json.loads(doctor("--json", code=code)) if row["check_name"] == "clock"]
    assert row["severity"] == word
    if word != "ok":
        said = float(row["finding"].split(" s ")[0].split()[-1])
        before, after = read  # the database's clock was read in between
        assert abs(said - abs(off)) <= (after - before) / 2 + 0.05  # it is said in tenths of a second
        assert ("ahead of" if off > 0 else "behind") in row["finding"]


def test_a_transaction_pooler(doctor: Any, db: Any) -> None:
    program = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin")
    if not program:
        pytest.skip("pgbouncer is not here")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    info = db.info
    home = Path(tempfile.mkdtemp())  # not below tmp_path, which only root can read
    (home / "users").write_text(f'"{info.user}" "{info.password}"\n', "utf-8")
    (home / "ini").write_text(
        f"[databases]\n{info.dbname} = host={info.host} port={info.port} user={info.user}\n[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\n"
        f"listen_port = {port}\nunix_socket_dir =\nauth_type = any\nauth_file = {home / 'users'}\n"
        f"pool_mode = transaction\n",
        "utf-8",
    )
    home.chmod(0o755)
    # It refuses to be root; the server's directory lets its owner in.
    account = ["-u", Path(info.host).owner()] if os.geteuid() == 0 and info.host.startswith("/") else []
    process = subprocess.Popen(
        [program, "-q", *account, str(home / "ini")], stderr=subprocess.PIPE, text=True
    )
    try:
        through = make_conninfo(host="127.0.0.1", port=port, user=info.user, dbname=info.dbname)
        deadline = time.monotonic() + 20
        while True:
            try:
                psycopg.connect(through).close()
                break
            except psycopg.OperationalError:
                assert time.monotonic() < deadline
                assert process.poll() is None, process.communicate()
                time.sleep(0.05)
        assert doctor(code=0, dsn=through).startswith(
            "info pooler: a transaction pooler (PgBouncer) is in between"
        )
    finally:
        process.terminate()
        process.communicate()
        shutil.rmtree(home)
