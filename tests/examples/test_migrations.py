"""Migrations of other tools: examples/alembic by the real Alembic, online and as a script;
examples/plain_sql by psql."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pyworker._db import migrations

pytestmark = pytest.mark.slow


def psql(example: Any, *arguments: str) -> str:
    program = shutil.which("psql") or pytest.skip("no psql here")
    command = [program, "-X", "-q", "-v", "ON_ERROR_STOP=1", *arguments]
    done = subprocess.run(command, env=example.environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def alembic(example: Any, tmp_path: Path) -> Any:
    """The example, with the SQL printed as its README says, in a directory of its own."""
    pytest.importorskip("alembic")
    made = example("alembic")
    shutil.copytree(made.directory, tmp_path / "alembic")
    made.directory = tmp_path / "alembic"
    printed = made.python("-m", "pyworker", "migrate", "--sql", "--no-transaction")
    (made.directory / "versions" / "0001_pyworker.sql").write_text(printed, "utf-8")
    return made


def works(example: Any) -> None:
    assert example.rows("select relnamespace::regnamespace::text from pg_class where relname = 'orders'") == [
        ("public",)
    ]
    with psycopg.connect(example.dsn) as conn:
        conn.execute("insert into orders (email) values ('a@b.c')")
        assert conn.execute("select task_identifier from pyworker.jobs").fetchall() == [("charge",)]
    example.python("-m", "pyworker", "doctor")  # has no warning: its exit code says so


def test_alembic_installs_pyworker_in_its_own_transaction_and_takes_it_away(alembic: Any) -> None:
    alembic.python("-m", "alembic", "upgrade", "head")
    works(alembic)
    alembic.python("-m", "alembic", "downgrade", "base")
    assert alembic.rows("select from pg_namespace where nspname = 'pyworker'") == []


def test_a_revision_that_fails_takes_pyworker_back(alembic: Any) -> None:
    with (alembic.directory / "versions" / "0001_install_pyworker.py").open("a") as revision:
        revision.write(
            "\n\ninstall = upgrade\n\n\ndef upgrade():\n    install()\n    op.execute('select 1 / 0')\n"
        )
    assert "division by zero" in alembic.python("-m", "alembic", "upgrade", "0001", code=1)
    assert alembic.rows("select from pg_namespace where nspname = 'pyworker'") == []


def test_alembics_script_for_a_dba_does_the_same(alembic: Any, tmp_path: Path) -> None:
    script = tmp_path / "all.sql"
    script.write_text(alembic.python("-m", "alembic", "upgrade", "head", "--sql"), "utf-8")
    psql(alembic, "-f", str(script))
    works(alembic)


def test_plain_sql_files_in_their_order_do_the_same(example: Any, tmp_path: Path) -> None:
    plain = example("plain_sql")
    first = tmp_path / "V1__pyworker.sql"
    first.write_text(plain.python("-m", "pyworker", "migrate", "--sql", "--no-transaction"), "utf-8")
    for path in (first, plain.directory / "migrations" / "V2__orders.sql"):
        psql(plain, "--single-transaction", "-f", str(path))
    works(plain)


def test_from_a_version_on_only_the_rest_is_printed_and_the_code_is_renewed(
    example: Any, tmp_path: Path
) -> None:
    plain = example("plain_sql")
    plain.python("-m", "pyworker", "migrate")
    printed = plain.python(
        "-m", "pyworker", "migrate", "--sql", "--no-transaction", "--from", str(migrations.newest())
    )
    assert "create table live_jobs" not in printed
    assert "create or replace function" in printed
    rest = tmp_path / "V7__pyworker.sql"
    rest.write_text(printed, "utf-8")
    plain.rows("select from pyworker.configure()")
    with psycopg.connect(plain.dsn) as conn:
        conn.execute("drop function pyworker.conformance()")
    psql(plain, "--single-transaction", "-f", str(rest))
    assert plain.rows("select pyworker.conformance()->>'specversion'") == [("1.0",)]


@pytest.mark.parametrize("from_version", [0, None])
def test_a_script_without_a_transaction_leaves_the_callers_settings_alone(
    empty_dsn: str, from_version: int | None
) -> None:
    with psycopg.connect(empty_dsn) as conn:
        conn.execute("set search_path = public, pg_catalog")
        conn.execute("set lock_timeout = '7min'")
        conn.execute(migrations.script(from_version=from_version, transaction=False).encode())
        assert conn.execute(
            "select current_setting('search_path'), current_setting('lock_timeout')"
        ).fetchone() == (
            "public, pg_catalog",
            "7min",
        )
        conn.rollback()
        assert conn.execute("select from pg_namespace where nspname = 'pyworker'").fetchall() == []


def test_a_script_that_looks_for_itself_installs_once_and_goes_on_from_there(empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn) as conn:
        for _ in range(2):
            conn.execute(migrations.script(from_version=None, transaction=False).encode())
            conn.commit()
        assert migrations.pending(conn) == []
        conn.execute("select pyworker.add_job('t')")
        migrations.migrate(conn)  # its checksums are the same
