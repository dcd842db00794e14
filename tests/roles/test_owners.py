"""An installation or upgrade, by any role: everything belongs to one role then, or nothing was changed."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from pyworker._db import migrations
from tests.roles.conftest import Logins
from tests.support import ROOT
from tests.support.doctor import repair

OWNERS = """
    select 'schema' as kind, nspname::text as name, nspowner::regrole::text as owner
    from pg_namespace where nspname in ('pyworker', 'pyworker_queries')
    union all
    select 'relation', relname, relowner::regrole::text from pg_class
    where relnamespace = 'pyworker'::regnamespace
    union all
    select 'function', oid::regprocedure::text, proowner::regrole::text from pg_proc
    where pronamespace = 'pyworker'::regnamespace
    union all
    select 'type', typname, typowner::regrole::text from pg_type
    where typnamespace = 'pyworker'::regnamespace"""
FUNCTION = "pyworker.add_jobs(jsonb)"


def owners(conn: psycopg.Connection[Any]) -> set[str]:
    return {owner for _, _, owner in conn.execute(OWNERS).fetchall()}


def state(conn: psycopg.Connection[Any]) -> list[Any]:
    """All that an installation could have changed."""
    functions = (
        "select oid, xmin::text, proowner, prosrc from pg_proc where pronamespace = 'pyworker'::regnamespace"
    )
    return [
        sorted(conn.execute(OWNERS).fetchall()),
        sorted(conn.execute(functions).fetchall()),
        conn.execute("select * from pyworker.migrations").fetchall(),
    ]


@pytest.fixture
def owner(fresh: psycopg.Connection[Any], logins: Logins) -> str:
    """The installation belongs to this role, which is no superuser. An older one: a function of it has
    another result, so that an upgrade must drop it."""
    fresh.execute("drop schema pyworker cascade")
    role = logins("owner")
    fresh.execute(f"grant create on database {fresh.info.dbname} to {role}")
    with psycopg.connect(logins.dsn_of(role), autocommit=True) as conn:
        migrations.migrate(conn, movable_clock=True)
    assert owners(fresh) == {role}
    return role


def by_command(cli: Any, dsn: str) -> tuple[int, str]:
    done = cli("migrate", DATABASE_URL=dsn)
    return done.returncode, done.stderr


@pytest.fixture
def psql(pg_server: Any) -> Path:
    program = pg_server.bindir / "psql"
    return program if program.exists() else Path("psql")


def run(program: Path, dsn: str, *arguments: str, text: str | None = None) -> tuple[int, str]:
    done = subprocess.run(
        [program, "-X", "-q", "-d", dsn, *arguments], input=text, capture_output=True, text=True
    )
    return done.returncode, done.stderr


@pytest.fixture(params=["command", "install.sql", "script", "script in a transaction"])
def upgrade(request: Any, cli: Any, psql: Path) -> Any:
    """upgrade(dsn): exit code and what it complained of."""

    def in_a_transaction(dsn: str) -> tuple[int, str]:
        with psycopg.connect(dsn) as conn:  # as a migration tool does
            before = conn.execute("select current_user, current_setting('search_path')").fetchone()
            try:
                conn.execute(migrations.script(from_version=None, transaction=False).encode())
            except psycopg.Error as error:
                conn.rollback()
                return 1, str(error)
            assert conn.execute("select current_user, current_setting('search_path')").fetchone() == before
        return 0, ""

    script = migrations.script(from_version=None)
    return {
        "command": lambda dsn: by_command(cli, dsn),
        "install.sql": lambda dsn: run(psql, dsn, "-f", str(ROOT / "sql" / "install.sql")),
        "script": lambda dsn: run(psql, dsn, "-v", "ON_ERROR_STOP=1", text=script),
        "script in a transaction": in_a_transaction,
    }[request.param]


def drop_some(conn: psycopg.Connection[Any]) -> None:
    """As if the version that is installed had these not, or with other arguments."""
    conn.execute("drop function pyworker.doctor(), pyworker._check_catalog(); drop view pyworker.sequences")


def works(dsn: str) -> None:
    """Due, queued and retried jobs run, by workers that are only members of pyworker_worker."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("select pyworker.set_queue('q', 1)")
        added = conn.execute(
            "select (pyworker.add_job('t', run_at => now() + interval '0.001 s')).id,"
            " (pyworker.add_job('t', queue_name => 'q')).id"
        ).fetchone()
        worker = conn.execute("select pyworker.register_worker()").fetchone()[0]  # type: ignore[index]
        conn.execute("select * from pyworker.maintain()")
        claimed = conn.execute("select id, run from pyworker.claim_jobs(%s, 10)", [worker]).fetchall()
        assert sorted(row[0] for row in claimed) == sorted(added)  # type: ignore[arg-type]


MAY_ACT = {
    "the owner": "",
    "a superuser": "superuser",
    "a member of the owner's role": "in role {owner}",
    "a member that does not inherit": "noinherit in role {owner}",
    "a member of a member": "in role {member}",
}


@pytest.mark.parametrize("caller", MAY_ACT)
def test_whoever_may_act_as_the_owner_leaves_one_owner(
    fresh: psycopg.Connection[Any], logins: Logins, owner: str, upgrade: Any, caller: str
) -> None:
    member = logins("member", f"in role {owner}")
    options = MAY_ACT[caller].format(owner=owner, member=member)
    role = owner if caller == "the owner" else logins("caller", options)
    drop_some(fresh)
    assert upgrade(logins.dsn_of(role)) == (0, "")
    assert owners(fresh) == {owner}
    works(logins.dsn_of(owner))
    findings = fresh.execute("select severity, finding from pyworker.doctor() where check_name = 'owners'")
    assert findings.fetchall() == [("ok", "everything belongs to one role")]


def strangers(fresh: psycopg.Connection[Any], logins: Logins, owner: str) -> dict[str, str]:
    found = {"a stranger": logins("stranger"), "one that may create": logins("creator")}
    fresh.execute(f"grant usage, create on schema pyworker to {found['one that may create']}")
    fresh.execute(f"grant create on database {fresh.info.dbname} to {found['one that may create']}")
    fresh.execute(f"grant select, insert on all tables in schema pyworker to {found['one that may create']}")
    if fresh.info.server_version >= 160000:
        found["a member that may not set its role"] = logins("no_set")
        fresh.execute(f"grant {owner} to {found['a member that may not set its role']} with set false")
    return found


def test_whoever_may_not_act_as_the_owner_is_refused_before_anything_is_changed(
    fresh: psycopg.Connection[Any], logins: Logins, owner: str, upgrade: Any
) -> None:
    drop_some(fresh)
    for what, role in strangers(fresh, logins, owner).items():
        before = state(fresh)
        code, complaint = upgrade(logins.dsn_of(role))
        assert code != 0, what
        assert (
            f"pyworker in schema pyworker belongs to {owner}, and {role} may not act as that role"
            in complaint
        )
        assert f"Run it as {owner}" in complaint
        assert f"GRANT {owner} TO {role}" in complaint
        assert "Traceback" not in complaint
        assert state(fresh) == before, what


def test_a_dry_run_is_refused_to_the_same_roles(
    fresh: psycopg.Connection[Any], logins: Logins, owner: str, cli: Any
) -> None:
    done = cli("migrate", "--dry-run", DATABASE_URL=logins.dsn_of(logins("stranger")))
    assert done.returncode == 1
    assert f"belongs to {owner}" in done.stderr
    done = cli(
        "migrate", "--dry-run", DATABASE_URL=logins.dsn_of(logins("guest", f"noinherit in role {owner}"))
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_superuser_creates_the_group_roles_though_the_owner_may_not(
    fresh: psycopg.Connection[Any], logins: Logins, owner: str, cli: Any, pg_server: Any
) -> None:
    """In a schema of another name: the roles are the server's."""
    schema = f"acme_{fresh.info.dbname}"
    fresh.execute(f"create schema {schema} authorization {owner}")
    root = logins("root", "superuser")
    try:
        done = cli("migrate", "--roles", "--schema", schema, DATABASE_URL=logins.dsn_of(root))
        assert (done.returncode, done.stderr) == (0, "")
        rows = fresh.execute(
            "select distinct proowner::regrole::text from pg_proc where pronamespace = %s::regnamespace",
            [schema],
        ).fetchall()
        assert rows == [(owner,)]
        made = fresh.execute("select count(*) from pg_roles where rolname like %s", [f"{schema}%"]).fetchone()
        assert made == (4,)
    finally:
        fresh.execute(f"drop schema if exists {schema} cascade")
        for suffix in ("producer", "worker", "reader", "admin"):
            fresh.execute(f"drop role if exists {schema}_{suffix}")


def test_an_empty_schema_of_another_role_is_installed_for_that_role(
    fresh: psycopg.Connection[Any], logins: Logins, upgrade: Any
) -> None:
    fresh.execute("drop schema pyworker cascade")
    app, root, dba = logins("app"), logins("root", "superuser"), logins("dba")
    fresh.execute(
        f"create schema pyworker authorization {app}; grant create, usage on schema pyworker to {dba}"
    )
    code, complaint = upgrade(logins.dsn_of(dba))
    assert code != 0
    assert f"pyworker in schema pyworker belongs to {app}" in complaint
    assert upgrade(logins.dsn_of(root)) == (0, "")
    assert owners(fresh) == {app}


# What may belong to another role, as a statement with {other}.
MIXED = {
    "a function": f"alter function {FUNCTION} owner to {{other}}",
    "the schema": "alter schema pyworker owner to {other}",
    "a table": "alter table pyworker.live_jobs owner to {other}",
    "a partition": "alter table pyworker.finished_jobs_default owner to {other}",
    "a sequence": "alter sequence pyworker.job_ids owner to {other}",
    "a view": "alter view pyworker.jobs owner to {other}",
    "a type": "alter type pyworker.job owner to {other}",
    "the schema of queries": "create schema pyworker_queries authorization {other}",
}


@pytest.mark.parametrize("what", MIXED)
def test_doctor_names_what_belongs_to_another_role_and_its_fix_repairs_that(
    fresh: psycopg.Connection[Any], logins: Logins, owner: str, what: str
) -> None:
    other = logins("other")
    fresh.execute(MIXED[what].format(other=other))
    found = "select severity, finding, fix from pyworker.doctor() where check_name = 'owners'"
    ((severity, finding, fix),) = fresh.execute(found).fetchall()
    assert severity == "error"
    if what == "the schema":  # then the owner may not even look
        assert finding == f"{owner} owns these functions, but has no right on their schema"
    else:
        assert finding.startswith(f"some of pyworker does not belong to {owner}, its owner: ")
        assert f"({other})" in finding

    class Api:
        conn = fresh

    repair(Api, fix)
    assert owners(fresh) == {owner}
    assert [row[0] for row in fresh.execute(found).fetchall()] == ["ok"]


HELPERS = {
    "a check": "alter function pyworker._check_locks() owner to {other}",
    "what checks call": "alter function pyworker._few(text[]) owner to {other}",
    "the check of owners": "alter function pyworker._check_owners() owner to {other}",
    "doctor": "alter function pyworker.doctor() owner to {other}",
}


@pytest.mark.parametrize("what", MIXED | HELPERS)
def test_doctor_says_first_and_once_that_pyworker_belongs_to_several_roles(
    fresh: psycopg.Connection[Any], logins: Logins, owner: str, cli: Any, what: str
) -> None:
    fresh.execute((MIXED | HELPERS)[what].format(other=logins("other")))
    rows = fresh.execute("select * from pyworker.doctor()").fetchall()
    assert rows[0][:2] == ("owners", "error")
    assert [row for row in rows[1:] if "permission denied" in row[2]] == []
    if "superuser" in rows[0][3]:
        assert by_command(cli, logins.dsn_of(logins("root", "superuser"))) == (0, "")
    else:
        repair(SimpleNamespace(conn=fresh), rows[0][3])
    assert owners(fresh) == {owner}
    assert fresh.execute("select severity from pyworker.doctor()").fetchone() == ("ok",)


def test_an_upgrade_by_a_superuser_gives_all_of_it_to_the_owner(
    fresh: psycopg.Connection[Any], logins: Logins, owner: str, cli: Any
) -> None:
    other = logins("other")
    for statement in MIXED.values():
        fresh.execute(statement.format(other=other))
    assert by_command(cli, logins.dsn_of(logins("root", "superuser"))) == (0, "")
    assert owners(fresh) == {owner}
    works(logins.dsn_of(owner))


@pytest.mark.parametrize("what", ["a function", "the schema", "a table", "the schema of queries"])
def test_an_upgrade_by_who_may_not_give_it_to_the_owner_is_refused_and_says_what_to_do(
    fresh: psycopg.Connection[Any], logins: Logins, owner: str, cli: Any, what: str
) -> None:
    other = logins("other")
    fresh.execute(MIXED[what].format(other=other))
    before = state(fresh)
    code, complaint = by_command(cli, logins.dsn_of(owner))
    assert code == 1
    assert f"does not belong to {owner}, the owner of pyworker in schema pyworker" in complaint
    statement = complaint.partition("let one run: ")[2].strip()
    assert statement.startswith("ALTER ")
    assert state(fresh) == before
    fresh.execute(statement)
    assert by_command(cli, logins.dsn_of(owner)) == (0, "")
    assert owners(fresh) == {owner}
