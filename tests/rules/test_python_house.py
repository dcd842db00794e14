"""The rules of pyworker/: SQL in one room, rules only in the database, imports that go one way.

And a public face that is written down.
"""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pyworker
from pyworker._values import STATES
from tests.support.files import for_each

PACKAGE = Path(pyworker.__file__).parent
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.read_text("utf-8"))
STATEMENT = re.compile(
    r"""(?isx)^\s*(
        select\s.+\sfrom\s | select\s+[\w.]+\( | insert\s+into\s | update\s+\S+\s+set\s | delete\s+from\s
        | with\s+\w+\s+as\s*\( | truncate\s
        | (create|alter|drop)\s+(or\s+replace\s+)?(table|schema|function|view|index|role|type|database)\s
        | set\s+(local\s+)?\w+\s*= | show\s+\w+$ | begin\b.*; | (listen|notify)\s+\w+$
        | (un)?lock\s+table\s )"""
)


def strings(path):
    """Every string of a module but its docstrings.

    An f-string is one text, with a word in place of each expression.
    """
    tree = ast.parse(path.read_text("utf-8"))
    skipped = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(node.value)  # a docstring
        if isinstance(node, ast.JoinedStr):
            skipped.update(ast.walk(node))
            yield (
                node,
                "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values),
            )
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node not in skipped and isinstance(node.value, str | bytes):
            yield node, node.value if isinstance(node.value, str) else node.value.decode("latin-1")


# Who may import whom: each room the ones below it. What is in no room is the API, or what all rooms share.
FLOORS = ["_db", "the API", "_runner", "_dev", "_cli", "cli"]
ABOVE = {"_top": 4, "conformance": 4, "ui": 4, "django": 5, "testing": 4, "__init__": 5, "__main__": 6}
BASE = {"errors", "_payload", "_same", "_checks", "_escape", "_distribution", "_files", "_texts", "_logging"}


def room(module):
    """The floor of a dotted module below pyworker."""
    first = module.split(".")[0]
    if first in BASE:
        return -1
    return ABOVE[first] if first in ABOVE else FLOORS.index(first if first in FLOORS else "the API")


UPWARDS = {
    ("job", "_runner.connections"),  # a type: the job holds what its worker gives it
    ("_runner.children", "__init__"),  # the version
}


def imported(path):
    """The modules of ours that a module imports, where it is loaded or later, also for types."""
    here = list(path.relative_to(PACKAGE.parent).with_suffix("").parts[:-1])
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else []
            base += node.module.split(".") if node.module else []
            if base[0] == "pyworker":
                for name in ([*base, alias.name] for alias in node.names):
                    file = PACKAGE.parent.joinpath(*name)
                    is_module = file.with_suffix(".py").exists() or (file / "__init__.py").exists()
                    yield ".".join((name if is_module else base)[1:]) or "__init__"
        elif isinstance(node, ast.Import):
            assert not [alias for alias in node.names if alias.name.split(".")[0] == "pyworker"]


@for_each(MODULES)
def test_imports_go_one_way(path):
    module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    if module == "__init__":
        return
    floor = room(module)
    above = {name for name in imported(path) if room(name) > floor}
    assert {name for name in above if (module, name) not in UPWARDS} == set()


def test_no_modules_import_each_other_in_a_circle():
    """Not for types either. Without circles, some module imports none that is left, until none is left."""
    imports = {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): set(
            imported(path)
        )
        for path in MODULES
    }
    while done := {module for module, names in imports.items() if not names & imports.keys()}:
        imports = {module: names for module, names in imports.items() if module not in done}
    assert imports == {}


@for_each(MODULES)
def test_sql_is_in_one_room_only(path):
    if path.parent.name != "_db":
        assert [text for _, text in strings(path) if STATEMENT.match(text)] == []


@for_each(MODULES)
def test_python_knows_states_only_to_show_them(path):
    if path.stem not in ("_values", "_output", "_tasks", "demo") and path.parent.name not in (
        "_cli",
        "_top",
        "ui",
        "_db",
        "conformance",
    ):  # _tasks: in Django's words; conformance: compares what a worker did with what it was to do
        assert [(node.lineno, text) for node, text in strings(path) if text in STATES] == []


@for_each(MODULES)
def test_a_module_says_what_it_is_for(path):
    if path.stem != "__main__":
        assert ast.get_docstring(ast.parse(path.read_text("utf-8")))


@for_each(MODULES)
def test_the_first_line_of_a_docstring_stands_alone(path):
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, kinds)]
    heads = [(ast.get_docstring(node) or "").split("\n")[:2] for node in nodes]
    assert [head for head in heads if head[1:] not in ([], [""])] == []


def test_public_is_what_all_says_and_no_more():
    names = {
        name
        for name, value in vars(pyworker).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert names == set(pyworker.__all__)
    assert list(pyworker.__all__) == sorted(pyworker.__all__)


@pytest.mark.parametrize("name", pyworker.__all__)
def test_what_is_public_is_described(name):
    value = getattr(pyworker, name)
    assert inspect.getdoc(value)
    assert value.__doc__ is not None, "not inherited"


def test_every_error_has_its_own_code():
    codes = {
        value: value.sqlstate
        for value in map(pyworker.__getattribute__, pyworker.__all__)
        if isinstance(value, type) and issubclass(value, pyworker.PyworkerError) and value.sqlstate
    }
    assert set(codes) == set(importlib.import_module("pyworker.errors").BY_SQLSTATE.values())
    assert len(set(codes.values())) == len(codes)


def test_to_import_it_needs_nothing_that_only_some_users_have():
    """Nor does a producer pay for the command line."""
    heavy = [
        "msgspec", "pydantic", "sqlalchemy", "django", "aiosmtpd", "click", "rich", "psycopg_pool",
        "psycopg2", "prometheus_client", "opentelemetry", "sentry_sdk", "starlette", "jinja2", "uvicorn",
        "textual",
    ]  # fmt: skip
    code = f"import sys, pyworker; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_no_file_names_a_machine_or_a_person():
    root = PACKAGE.parent
    files = [
        path
        for top in ("pyworker", "sql", "tests", "examples", "docs")
        for path in (root / top).rglob("*")
        if path.is_file()
    ]
    files = [path for path in files if path.suffix in (".py", ".sql", ".md") and path != Path(__file__)]
    pattern = re.compile(r"/(home|root|Users|work)/\w")
    assert [str(path) for path in files if pattern.search(path.read_text("utf-8"))] == []
