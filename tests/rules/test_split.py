"""The filing rules of sql/: history apart from current code, each loadable by psql and by Python alike."""

import re

from pglast import ast, parse_sql

from pyworker._db import migrations
from tests.support import ROOT
from tests.support.files import for_each

SQL = ROOT / "sql"
ROOMS = ("heart", "gate", "features", "console")
MIGRATIONS = sorted((SQL / "migrations").glob("*.sql"))
FUNCTIONS = sorted(
    [
        *(path for room in ROOMS for path in (SQL / room).glob("*.sql")),
        SQL / "grants.sql",
    ]
)


def statements(path):
    return [raw.stmt for raw in parse_sql(path.read_text("utf-8"))]


def repeatable(statement, path):
    match statement:
        case ast.CreateFunctionStmt() | ast.ViewStmt():
            return statement.replace
        case ast.DropStmt():
            return statement.missing_ok
        case ast.CommentStmt() | ast.GrantStmt():
            return True
        case ast.DoStmt():
            return path.name == "grants.sql"
    return False


@for_each(FUNCTIONS)
def test_current_code_can_be_loaded_again(path):
    assert [s for s in statements(path) if not repeatable(s, path)] == []


@for_each(MIGRATIONS)
def test_a_migration_holds_no_code_that_is_loaded_again(path):
    code = (ast.CreateFunctionStmt, ast.ViewStmt, ast.CreateTrigStmt)
    assert [s for s in statements(path) if isinstance(s, code)] == []


@for_each(MIGRATIONS)
def test_a_migration_says_whether_it_breaks_older_workers(path):
    found = re.search(r"(?m)^-- breaking: (yes|no)$", path.read_text("utf-8"))
    assert found, "a line '-- breaking: yes' or '-- breaking: no'"
    recorded = re.search(
        rf"values \((\d+), '{path.stem}', (true|false)\)", (SQL / "install.sql").read_text("utf-8")
    )
    assert recorded, f"install.sql does not record {path.stem}"
    assert int(recorded[1]) == int(path.name[:4])
    assert (recorded[2] == "true") == (found[1] == "yes")


def test_migrations_are_numbered_without_gaps():
    assert [int(path.name[:4]) for path in MIGRATIONS] == list(range(1, len(MIGRATIONS) + 1))


def test_psql_and_python_load_the_same_files_in_the_same_order():
    included = re.findall(r"(?m)^ *\\ir (\S+)$", (SQL / "install.sql").read_text("utf-8"))
    assert [name for name in included if name.startswith("migrations/")] == [
        f"migrations/{path.name}" for path in MIGRATIONS
    ]
    assert [included[0], included[-1]] == ["setup/owner.sql", "setup/end.sql"]
    assert [migration.path.name for migration in migrations.migrations()] == [
        path.name for path in MIGRATIONS
    ]
    code = [path.relative_to(SQL).as_posix() for path in migrations.code()]
    assert sorted([*code, "grants.sql"]) == sorted(path.relative_to(SQL).as_posix() for path in FUNCTIONS)
    assert [name for name in included if name in code] == code


def test_the_map_of_sql_names_every_file():
    text = (SQL / "README.md").read_text("utf-8")
    named = re.findall(r"(?m)^ +([a-z0-9_]+)(?:\.sql)? {2,}\S", text)
    assert [path.stem for path in FUNCTIONS if path.stem not in named] == []


@for_each([*MIGRATIONS, *FUNCTIONS])
def test_no_file_names_the_schema(path):
    """It may be installed under any name."""
    code = re.sub(r"--.*|'[^']*'", "", path.read_text("utf-8"))
    assert re.findall(r"\bpyworker\.\w+", code) == []
