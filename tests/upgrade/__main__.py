"""Writes the database of this version: see __init__.py. PYWORKER_PG_BIN names the programs of the oldest
supported PostgreSQL, as the newer ones cannot be older."""

from __future__ import annotations

import gzip
import subprocess
import tomllib
from pathlib import Path

import psycopg

from pyworker._db.migrations import migrate
from pyworker._dev.postgres import find_bindir, temporary_server
from tests.support import ROOT
from tests.upgrade.states import fill

NOT_SQL = ("\\", "--", "SET transaction_timeout")


def main() -> None:
    with temporary_server(in_memory=True) as server:
        with psycopg.connect(server.url("postgres"), autocommit=True) as conn:
            migrate(conn)
            fill(conn)
        program = find_bindir() / "pg_dump"
        command = [
            program,
            "--inserts",
            "--no-owner",
            "--no-acl",
            "--no-toast-compression",
            "-d",
            server.url("postgres"),
        ]
        dump = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    kept = "\n".join(line for line in dump.splitlines() if not line.startswith(NOT_SQL)) + "\n"
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    path = Path(__file__).parent / f"{version}.sql.gz"
    path.write_bytes(gzip.compress(kept.encode(), 9, mtime=0))
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
