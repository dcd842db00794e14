"""Installing and upgrading: by psql, by the command, by script; alone, together, interrupted."""

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

import pyworker
from pyworker import SchemaVersionError
from pyworker._db import migrations
from tests.support import ROOT

SQL = ROOT / "sql"
WEIRD = 'My "queue", so: ünïcode'


@pytest.fixture
def dsn(fresh, fresh_dsn):
    """A database of this test alone, with nothing in it."""
    fresh.execute("drop schema pyworker cascade")
    return fresh_dsn


@pytest.fixture(scope="session")
def programs(pg_server):
    directory = (
        pg_server.bindir if (pg_server.bindir / "psql").exists() else Path(shutil.which("psql") or "").parent
    )
    if not (directory / "pg_dump").exists():
        pytest.skip("psql and pg_dump are not here")
    return directory


@pytest.fixture
def psql(programs, dsn):
    def run(*arguments, text=None):
        command = [programs / "psql", "-X", "-q", "-d", dsn, *arguments]
        return subprocess.run(command, input=text, capture_output=True, text=True)

    return run


@pytest.fixture
def dump(programs, dsn):
    """The whole schema as text, but for what must differ: when a migration was applied, and psql's
    missing checksum."""

    def run(schema="pyworker"):
        done = subprocess.run(
            [
                programs / "pg_dump",
                "-d",
                dsn,
                "--schema",
                '"' + schema.replace('"', '""') + '"',
                "--inserts",
                "--no-publications",
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        text = re.sub(r"(?m)^\\(un)?restrict .*\n", "", done.stdout)
        return re.sub(r"(INTO .*migrations VALUES \(\d+, '\w+', false), .*\);", r"\1);", text)

    return run


def cli(*arguments, dsn, check=True):
    command = [sys.executable, "-m", "pyworker", *arguments]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "PYWORKER"))} | {
        "DATABASE_URL": dsn
    }
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert not check or done.returncode == 0, done.stderr
    return done


def migrate(dsn, *arguments, schema="pyworker"):
    return cli("migrate", "--schema", schema, *arguments, dsn=dsn)


def uninstall(psql, schema="pyworker"):
    done = psql("-v", f"schema={schema}", "-v", "really=yes", "-f", SQL / "uninstall.sql")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("schema", ["pyworker", WEIRD])
@pytest.mark.parametrize(
    ("variables", "options"),
    [((), ()), (("-v", "clock=movable", "-v", "roles=yes"), ("--movable-clock", "--roles"))],
    ids=["plain", "for tests"],
)
def test_psql_and_the_command_install_the_same(psql, dump, dsn, schema, variables, options):
    done = psql("-v", f"schema={schema}", *variables, "-f", SQL / "install.sql")
    assert done.returncode == 0, done.stderr
    by_psql = dump(schema)
    uninstall(psql, schema)
    migrate(dsn, *options, schema=schema)
    assert dump(schema) == by_psql


def test_the_printed_script_installs_the_same(psql, dump, dsn):
    script = migrate("host=nowhere.invalid", "--sql").stdout
    done = psql("-v", "ON_ERROR_STOP=1", text=script)
    assert done.returncode == 0, done.stderr
    by_script = dump()
    assert "applied" not in migrate(dsn).stdout
    uninstall(psql)
    migrate(dsn)
    assert dump() == by_script


@pytest.mark.parametrize("options", [(), ("--no-transaction",)])
def test_the_printed_script_upgrades_whichever_version_is_there(psql, dump, dsn, options):
    script = migrate("host=nowhere.invalid", "--sql", *options).stdout
    whole = script if not options else f"begin;\n{script}\ncommit;\n"
    migrate(dsn)
    installed = dump()
    for _ in range(2):
        done = psql("-v", "ON_ERROR_STOP=1", text=whole)
        assert (done.returncode, done.stderr) == (0, "")
        assert dump() == installed


def test_the_printed_script_heeds_the_options(psql, dump, dsn):
    assert (
        psql(
            "-v", "ON_ERROR_STOP=1", text=migrate(dsn, "--sql", "--roles", "--movable-clock").stdout
        ).returncode
        == 0
    )
    by_script = dump()
    uninstall(psql)
    migrate(dsn, "--roles", "--movable-clock")
    assert dump() == by_script


def test_a_script_from_the_newest_version_holds_no_migration():
    assert "create table live_jobs" not in migrations.script("pyworker", migrations.newest())


def test_installing_again_changes_nothing(psql, dump, dsn):
    migrate(dsn)
    first = dump()
    assert migrate(dsn).stdout == f"schema pyworker is at version {migrations.newest()}\n"
    assert psql("-f", SQL / "install.sql").returncode == 0
    assert dump() == first


def test_eight_at_once_install_it_once(dsn, dump):
    def install(_):
        with psycopg.connect(dsn, autocommit=True) as conn:
            return len(migrations.migrate(conn))

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(install, range(8))) == [0] * 7 + [len(migrations.migrations())]
    assert dump().count("CREATE TABLE pyworker.live_jobs ") == 1


def test_a_default_isolation_level_does_not_matter(fresh, dsn, psql):
    """What another installation did must be seen after the wait for it."""
    name = fresh.info.dbname
    fresh.execute(f'alter database "{name}" set default_transaction_isolation = serializable')
    with ThreadPoolExecutor(4) as pool:
        installs = [pool.submit(psql, "-f", SQL / "install.sql") for _ in range(3)]
        installs.append(pool.submit(cli, "migrate", dsn=dsn))
        assert [(done.result().returncode, done.result().stderr) for done in installs] == [(0, "")] * 4


def test_an_interrupted_installation_leaves_nothing_behind(fresh, dsn):
    """Killed while it waits for a lock in its middle."""
    with psycopg.connect(dsn, autocommit=True) as other, psycopg.connect(dsn, autocommit=True) as victim:
        other.execute("begin; select pg_advisory_xact_lock(hashtextextended('pyworker.migrate', 0))")
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(migrations.migrate, victim)
            while not fresh.execute(
                "select cardinality(pg_blocking_pids(%s)) > 0", [victim.info.backend_pid]
            ).fetchone()[0]:
                assert not future.done()
            fresh.execute("select pg_terminate_backend(%s, 10000)", [victim.info.backend_pid])
            assert isinstance(future.exception(), psycopg.OperationalError)
        other.execute("rollback")
    assert fresh.execute("select to_regnamespace('pyworker')").fetchone() == (None,)
    assert "applied 0001_init" in migrate(dsn).stdout


@pytest.mark.slow
def test_an_upgrade_behind_a_long_read_gives_up_and_changes_nothing(fresh, dsn, dump):
    migrate(dsn)
    before = dump()
    fresh.execute("drop view pyworker.queue_stats")  # the upgrade has something to do
    with psycopg.connect(dsn) as reader:
        reader.execute("select * from pyworker.jobs")
        done = cli("migrate", dsn=dsn, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("pyworker: canceling statement due to lock timeout")
    assert "try again" in done.stderr
    assert fresh.execute("select to_regclass('pyworker.queue_stats')").fetchone() == (None,)
    migrate(dsn)
    assert dump() == before


def test_two_schemas_in_one_database_do_not_meet(fresh, dsn):
    for schema in ("one", "two"):
        migrate(dsn, schema=schema)
    with psycopg.connect(dsn, autocommit=True) as listener:
        listener.execute("listen two; select one.register_worker(); select * from one.claim_jobs(1)")
        listener.execute("listen two")
        fresh.execute("select one.add_job('t')")
        fresh.execute("notify two, 'end'")
        assert next(listener.notifies(timeout=20)).payload == "end"
    assert fresh.execute(
        "select (select count(*) from one.jobs), (select count(*) from two.jobs)"
    ).fetchone() == (1, 0)


def test_a_schema_has_room_behind_its_name_for_those_that_are_made_of_it(fresh, psql, dsn):
    """Channels, roles and the schema of queries: the longest is NAME_discarded."""
    longest, too_long = "ü" * 26 + "x", "ü" * 27
    migrations.migrate(fresh, longest, roles=True)
    for name in ("_ended", "_discarded", "_producer", "_queries"):
        assert len((longest + name).encode()) <= 63
    with pytest.raises(pyworker.InvalidArgument, match="53 bytes"):
        migrations.migrate(fresh, too_long)
    fresh.execute(f'create schema "{too_long}"')
    with pytest.raises(pyworker.InvalidArgument, match="53 bytes"):
        migrations.migrate(fresh, too_long)
    done = psql("-v", f"schema={too_long}", "-f", SQL / "install.sql")
    assert "53 bytes" in done.stderr


def test_a_dry_run_tells_and_changes_nothing(fresh, dsn):
    assert "would apply 0001_init\n" in migrate(dsn, "--dry-run").stdout
    assert fresh.execute("select to_regnamespace('pyworker')").fetchone() == (None,)
    migrate(dsn)
    assert migrate(dsn, "--dry-run").stdout.startswith("0 migrations to apply")


def test_the_command_fills_in_the_checksum_that_psql_does_not_know(fresh, psql, dsn):
    assert psql("-f", SQL / "install.sql").returncode == 0
    checksums = "select checksum from pyworker.migrations order by version"
    assert fresh.execute(checksums).fetchall() == [(None,)] * migrations.newest()
    migrate(dsn)
    assert fresh.execute(checksums).fetchall() == [
        (migration.checksum,) for migration in migrations.migrations()
    ]


def test_a_migration_that_was_edited_after_it_was_applied_is_refused(fresh, dsn):
    migrate(dsn)
    fresh.execute("update pyworker.migrations set checksum = 'other'")
    with pytest.raises(SchemaVersionError, match=r"0001_init\.sql is not the file that was applied"):
        migrations.migrate(fresh)


def test_psql_does_not_downgrade_a_database_either(fresh, psql, dsn):
    migrate(dsn)
    fresh.execute("insert into pyworker.migrations (version, name, breaking) values (9999, 'later', false)")
    fresh.execute("drop view pyworker.queue_stats")  # which old code would bring back
    for done in (
        psql("-f", SQL / "install.sql"),
        psql("-v", "ON_ERROR_STOP=1", text=migrations.script("pyworker", 1)),
    ):
        assert done.returncode == 3
        assert "the database has schema version 9999" in done.stderr
    assert fresh.execute("select to_regclass('pyworker.queue_stats')").fetchone() == (None,)


def test_a_newer_database_is_never_downgraded(fresh, dsn):
    migrate(dsn)
    fresh.execute("insert into pyworker.migrations (version, name, breaking) values (9999, 'later', false)")
    done = cli("migrate", dsn=dsn, check=False)
    assert done.returncode == 57
    assert "9999" in done.stderr
    assert "never downgraded" in done.stderr


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (
            "insert into pyworker.migrations (version, name, breaking) values (9999, 'later', true)",
            57,
            "Upgrade pyworker",
        ),
        ("update pyworker.migrations set version = version - 1", 56, "pyworker migrate"),
        ("drop schema pyworker cascade", 56, "pyworker migrate"),
    ],
    ids=["newer and breaking", "older", "not there"],
)
def test_a_worker_that_does_not_fit_the_database_says_so_and_exits(fresh, dsn, change, code, message):
    migrate(dsn)
    fresh.execute(change)
    done = cli("run", "json", dsn=dsn, check=False)
    assert (done.returncode, message in done.stderr, "Traceback" in done.stderr) == (code, True, False)


def test_a_newer_database_that_breaks_nothing_is_worked_for(fresh, dsn):
    migrate(dsn)
    fresh.execute("insert into pyworker.migrations (version, name, breaking) values (9999, 'later', false)")
    fresh.execute("select pyworker.check_version(%s)", [migrations.newest()])


def test_a_plain_role_that_may_create_a_schema_can_install_and_upgrade(fresh, dsn):
    name = fresh.info.dbname
    role = f"installer_of_{name}"
    fresh.execute(f'create role "{role}" login')
    try:
        fresh.execute(f'grant create on database "{name}" to "{role}"')
        theirs = psycopg.conninfo.make_conninfo(**{**conninfo_to_dict(dsn), "user": role})
        migrate(theirs)
        fresh.execute(f'revoke create on database "{name}" from "{role}"')
        migrate(theirs)
        with psycopg.connect(theirs, autocommit=True) as conn:
            assert conn.execute("select state from pyworker.add_job('t')").fetchone() == ("available",)
            conn.execute("select pyworker.maintain()")
    finally:
        fresh.execute("drop schema if exists pyworker cascade")
        fresh.execute(f'drop owned by "{role}"; drop role "{role}"')


def test_uninstalling_asks_for_the_word(fresh, psql, dsn):
    migrate(dsn)
    assert "nothing dropped" in psql("-f", SQL / "uninstall.sql").stdout
    assert fresh.execute("select to_regnamespace('pyworker') is not null").fetchone() == (True,)
    uninstall(psql)
    assert fresh.execute("select to_regnamespace('pyworker')").fetchone() == (None,)


def test_the_clock_of_an_ordinary_installation_cannot_be_moved(fresh, dsn):
    migrate(dsn)
    with pytest.raises(psycopg.errors.UndefinedFunction):
        fresh.execute("select pyworker.advance_clock('1 hour')")
    fresh.execute(
        "set pyworker.clock_offset = '1 hour'; update pyworker.settings set clock_offset = '1 hour'"
    )
    assert fresh.execute("select pyworker.clock() - clock_timestamp() < interval '1 second'").fetchone() == (
        True,
    )


def test_a_restored_dump_is_healthy_and_works_on(fresh, programs, fresh_dsn):
    """Old jobs and schedules, queries included, are there, and doctor() finds nothing."""
    fresh.execute("""
        select pyworker.add_job('t'), pyworker.add_job('t', queue_name := 'q'),
               pyworker.add_job('t', job_key := 'k'),
               pyworker.add_job('t', unique_policy := '{"by_args": true}'), pyworker.add_job('t',
                   sequence_policy := '{"by_args": true}');
        select pyworker.add_schedule('asks', '* * * * *', 'u', query := 'select 1 as priority');
        select pyworker.set_queue('q', 2)""")
    other = f"restored_{fresh.info.dbname}"
    fresh.execute(f'create database "{other}"')
    restored = psycopg.conninfo.make_conninfo(**{**conninfo_to_dict(fresh_dsn), "dbname": other})
    try:
        dumped = subprocess.run(
            [programs / "pg_dump", "-d", fresh_dsn], capture_output=True, text=True, check=True
        )
        command = [programs / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", restored]
        subprocess.run(command, input=dumped.stdout, capture_output=True, text=True, check=True)
        with psycopg.connect(restored, autocommit=True) as conn:
            conn.execute("set pyworker.clock_offset = '61 seconds'")
            assert conn.execute("select pyworker.run_schedules()").fetchone() == (1,)
            worker = conn.execute("select pyworker.register_worker()").fetchone()[0]
            found = conn.execute(
                "select check_name, finding from pyworker.doctor() where severity <> 'ok'"
            ).fetchall()
            assert found == []
            assert len(conn.execute("select id from pyworker.claim_jobs(%s, 10)", [worker]).fetchall()) == 6
    finally:
        fresh.execute(f'drop database if exists "{other}" with (force)')
