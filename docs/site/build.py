"""Builds the documentation into site/.

Run `make docs`, or python docs/site/build.py [--without-playground | --only-reference DIRECTORY].
Sphinx reads the Markdown of docs/ as it is. Three references are written here: the SQL functions,
views and types of an installed schema with their comments, the Python package with its docstrings,
the commands with their help.
"""

from __future__ import annotations

import inspect
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import typing
from pathlib import Path
from typing import Any

import click
import playground
import psycopg

import pyworker
from pyworker._db import migrations
from pyworker._dev.postgres import temporary_server
from pyworker.cli import main as command

ROOT = Path(__file__).parents[2]
# Pages from elsewhere in the repository, by their name in docs/.
GUESTS = {
    "README.md": "readme.md",
    "sql/README.md": "inside.md",
    "bench/README.md": "benchmarks.md",
    "docs/inside/crash-points.md": "inside-crash-points.md",
    "docs/inside/interleavings.md": "inside-interleavings.md",
    "docs/inside/leases.md": "inside-leases.md",
    "docs/inside/notify.md": "inside-notify.md",
    "docs/inside/runner.md": "inside-runner.md",
    "docs/inside/gate.md": "inside-gate.md",
    "docs/inside/torture.md": "inside-torture.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
# In this order in the menu. A page that is not there (yet) is left out; one that is not named here
# is found under "More".
MENU = {
    "Start": ["start", "tutorial", "playground", "howto", "The README <readme>"],
    "Concepts": [
        "concepts",
        "delivery",
        "sequences-and-queues",
        "limits",
        "unique-jobs",
        "schedules",
        "workflows",
        "batches",
        "middleware",
    ],
    "In your stack": ["integrations", "django", "testing", "development"],
    "Operations": [
        "operations",
        "deployment",
        "failover",
        "monitoring",
        "dashboard",
        "top",
        "performance",
        "benchmarks",
    ],
    "Reference": [
        "reference-sql",
        "reference-python",
        "reference-cli",
        "protocol",
        "conformance",
        "inside",
        "inside-runner",
        "inside-leases",
        "inside-notify",
        "inside-gate",
        "inside-interleavings",
        "inside-crash-points",
        "inside-torture",
    ],
    "Project": ["support", "changes", "contributing", "security"],
    "Coming from elsewhere": ["coming-from", "comparison", "reliability"],
}
# The SQL reference in the order of use: parts, and the files whose functions they show. The other
# files' functions come last.
PARTS = {
    "Define tasks": ("tasks",),
    "Add jobs": ("add", "add_jobs", "unique_policy", "batches"),
    "Ask why": ("explain", "doctor"),
    "Look up, cancel, retry": ("jobs", "retry", "waiters", "fail"),
    "Queues and sequences": ("settings", "sequences"),
    "Schedules": ("schedules", "cron_times", "cron_words", "crontab", "schedule_ticks"),
    "Steps and signals": ("steps", "dependencies", "graph"),
    "Lists, for dashboards": ("list_jobs", "pages", "actions"),
    "Monitoring and upkeep": ("metrics", "health", "maintain"),
    "For tests": ("optional",),
}

# The same of the Python package; names that are not here come last.
PYTHON_PARTS = {
    "Define tasks": ("task", "Task", "cron", "middleware"),
    "Add jobs": ("add_job", "add_jobs", "AddOptions", "JobSpec", "JobRow"),
    "In a handler": ("Job", "AsyncJob", "Step", "Inputs", "Input"),
    "How a handler ends": ("Snooze", "Cancel", "Discard", "Failed", "Suspended"),
    "Look up, cancel, retry": (
        "get_job",
        "wait_for_job",
        "cancel_job",
        "retry_job",
        "delete_job",
        "remove_job",
        "send_signal",
    ),
    "Workflows": ("flow", "Flow", "AsyncFlow", "FlowJob", "add_batch", "extend_batch", "Batch"),
}

# GitHub draws it; here it is docs/pictures/PAGE.svg.
MERMAID = r"(?s)```mermaid\n[^`]*?accTitle: ([^\n]+)\n[^`]*```\n"

FUNCTIONS = """
    select p.proname, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid),
        obj_description(p.oid, 'pg_proc')
    from pg_proc p
    where p.pronamespace = 'pyworker'::regnamespace and p.proname !~ '^_'
    order by p.proname, p.oid"""
COLUMNS = """
    select c.relname, c.relkind = 'v', obj_description(c.oid, 'pg_class'),
        array_agg(
            array[a.attname, format_type(a.atttypid, a.atttypmod),
                  coalesce(col_description(c.oid, a.attnum), '')] order by a.attnum)
    from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    where c.relnamespace = 'pyworker'::regnamespace and c.relkind in ('v', 'c') and c.relname !~ '^_'
    group by c.oid order by 2, 1"""


def home(function: str) -> str:
    pattern = re.compile(rf"(?m)^create or replace function {function}\(")
    for path in migrations.code():
        if pattern.search(path.read_text("utf-8")):
            return path.stem
    return "optional"


def examples() -> dict[str, str]:
    """What stands below each heading of examples.md, which a test runs."""
    text = (ROOT / "docs" / "site" / "examples.md").read_text("utf-8")
    _, *parts = re.split(r"(?m)^## (.+)\n", text)
    return {name: said.strip() for name, said in zip(parts[::2], parts[1::2], strict=True)}


def sql_reference(conn: psycopg.Connection[Any]) -> str:
    """Every public function, view and type of the schema: first what most people call, last what only
    runners do."""
    shown = examples()
    by_file: dict[str, list[str]] = {}
    for name, arguments, result, comment in conn.execute(FUNCTIONS).fetchall():
        arguments = re.sub(
            r" DEFAULT (NULL)?(?:(?<=NULL)::[\w \[\]]+)?", lambda m: " = null" if m[1] else " = ", arguments
        )
        call = f"{name}({arguments}) → {result}"
        if len(call) > 100 and arguments:
            call = f"{name}(\n    " + ",\n    ".join(re.split(r", (?=\w+ )", arguments)) + f"\n) → {result}"
        example = f"\n{shown.pop(name)}\n" if name in shown else ""  # below the first of its overloads
        by_file.setdefault(home(name), []).append(
            f"### {name}\n\n```text\n{call}\n```\n\n{prose(comment)}\n{example}"
        )
    parts = [
        "# SQL reference\n",
        "Made from the comments in the database: `\\df+ pyworker.*` in psql shows the same. "
        "Arguments are given by position or by name (`name := value`). "
        "The examples run from top to bottom.\n",
    ]
    for title, files in {**PARTS, "For runners": tuple(by_file)}.items():
        found = [entry for stem in files for entry in by_file.pop(stem, [])]
        parts += [f"## {title}\n", *found]
    return "\n".join(parts + relations(conn))


def relations(conn: psycopg.Connection[Any]) -> list[str]:
    """The public types, then the views, with their columns."""
    parts = []
    kind = None
    for name, is_view, comment, columns in conn.execute(COLUMNS).fetchall():
        if kind != is_view:
            kind = is_view
            parts.append("## Views\n" if is_view else "## Types\n")
        rows = "\n".join(f"| `{column}` | {type_} | {prose(said)} |" for column, type_, said in columns)
        parts.append(f"### {name}\n\n{prose(comment or '')}\n\n| column | type | |\n|---|---|---|\n{rows}\n")
    return parts


def prose(text: str) -> str:
    """Plain text as Markdown that shows it as it is; what stands between backticks is code already."""
    parts = re.split(r"(`[^`\n]+`)", text)
    return "".join(
        part if number % 2 else re.sub(r"[*<\[\]|]|_(?=_)|(?<=_)_", r"\\\g<0>", part)
        for number, part in enumerate(parts)
    )


def described(doc: str) -> str:
    """A docstring: indented lines are code."""
    parts = []
    blocks = re.split(r"\n\n+", inspect.cleandoc(doc))
    for is_code, same in itertools.groupby(
        blocks, lambda block: bool(re.fullmatch(r"(?: {4}.*\n?)+", block))
    ):
        text = "\n\n".join(same)
        parts.append(f"```python\n{inspect.cleandoc(text)}\n```" if is_code else prose(text))
    return "\n\n".join(parts)


def python_reference() -> str:
    """Every public name of the package with its signature and docstring, in the order of use."""
    parts = ["# Python reference\n", described(pyworker.__doc__ or "") + "\n"]
    named = {name for names in PYTHON_PARTS.values() for name in names}
    rest = [name for name in pyworker.__all__ if name not in named]
    errors = [
        name
        for name in rest
        if issubclass(type(value := getattr(pyworker, name)), type) and issubclass(value, Exception)
    ]
    last = {"Errors": errors, "More": [name for name in rest if name not in errors]}
    for title, names in {**PYTHON_PARTS, **last}.items():
        if names:
            parts += [f"## {title}\n", *(entry for name in names for entry in python_entry(name))]
    return "\n".join(parts)


def python_entry(name: str) -> list[str]:
    """One name, and the members of a class."""
    value = getattr(pyworker, name)
    parts = [f"### {name}\n\n```text\n{shape(name, value)}\n```\n\n{described(value.__doc__ or '')}\n"]
    for member, inner in vars(value).items() if inspect.isclass(value) else ():
        plain = getattr(inner, "__wrapped__", getattr(inner, "func", getattr(inner, "fget", inner)))
        if not member.startswith("_") and inspect.isfunction(plain) and plain.__doc__:
            parts.append(f"#### {name}.{member}\n\n```text\n{shape(member, plain)}\n```\n")
            parts.append(f"{described(plain.__doc__)}\n")
    return parts


def shape(name: str, value: Any) -> str:
    """How it is called; private parameters are left out."""
    if value in (pyworker.Job, pyworker.AsyncJob) or (
        inspect.isclass(value) and issubclass(value, pyworker.PyworkerError)
    ):
        return f"class {name}"  # users do not construct these
    if typing.is_typeddict(value):
        members = {
            n: kind
            for base in reversed(bases_of(value))
            for n, kind in vars(base).get("__annotations__", {}).items()
        }
        lines = [f"    {n}: {getattr(kind, '__forward_arg__', kind)}" for n, kind in members.items()]
        return "\n".join([f"class {name}(TypedDict, total=False)", *lines])
    overloads = typing.get_overloads(value) if inspect.isfunction(value) else []
    if 0 < len(overloads) <= 2:  # with more of them the function itself says it better
        return "\n".join(signed(name, each) for each in overloads)
    return signed(name, value)


def bases_of(value: Any) -> list[Any]:
    """A TypedDict and those that it extends, of which Python forgets the order."""
    return [value, *(base for base in getattr(value, "__orig_bases__", ()) if typing.is_typeddict(base))]


def signed(name: str, value: Any) -> str:
    signature = inspect.signature(value)
    shown = [str(p).replace("'", "") for n, p in signature.parameters.items() if not n.startswith("_")]
    answer = signature.return_annotation
    kind = (
        "class " if inspect.isclass(value) else "async def " if inspect.iscoroutinefunction(value) else "def "
    )
    said = "" if kind == "class " or answer is signature.empty else f" -> {answer}".replace("'", "")
    text = f"{kind}{name}({', '.join(shown)}){said}"
    return text if len(text) <= 100 else f"{kind}{name}(\n    " + ",\n    ".join(shown) + f"\n){said}"


def cli_reference() -> str:
    """The help of every command and subcommand."""
    parts = ["# Command line reference\n"]

    def walk(group: click.Command, path: list[str]) -> None:
        context = click.Context(
            group, info_name=" ".join(path), max_content_width=100, terminal_width=100,
            **command.context_settings,
        )  # fmt: skip
        parts.append(
            f"{'#' * min(len(path) + 1, 4)} {' '.join(path)}\n\n```text\n{group.get_help(context)}\n```\n"
        )
        for name, inner in sorted(getattr(group, "commands", {}).items()):
            walk(inner, [*path, name])

    walk(command, ["pyworker"])
    return "\n".join(parts)


def references(directory: Path) -> None:
    with temporary_server(in_memory=True) as server, psycopg.connect(server.url(), autocommit=True) as conn:
        migrations.migrate(conn, movable_clock=True)
        (directory / "reference-sql.md").write_text(sql_reference(conn), "utf-8")
    (directory / "reference-python.md").write_text(python_reference(), "utf-8")
    (directory / "reference-cli.md").write_text(cli_reference(), "utf-8")


def stage(source: Path) -> None:
    """docs/ and its guests in one directory, with their links to each other.

    A link to code becomes its name.
    """
    shutil.copytree(ROOT / "docs" / "screenshots", source / "screenshots") if (
        ROOT / "docs" / "screenshots"
    ).is_dir() else None
    pages = {path: path.name for path in (ROOT / "docs").glob("*.md")} | {
        ROOT / k: v for k, v in GUESTS.items()
    }
    references(source)
    if (images := ROOT / "docs" / "images").is_dir():
        shutil.copytree(images, source / "images")

    def link(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        there = (page.parent / target).resolve()
        if there in pages:
            return f"[{text}]({pages[there]}{anchor})"
        return match[0] if there.is_relative_to(ROOT / "docs") else f"{text} (`{there.relative_to(ROOT)}`)"

    for page, name in pages.items():
        text = page.read_text("utf-8")
        text = re.sub(r"(?<!!)\[([^\]\n]+)\]\((?![a-z]+:|#|reference-)([^)#\s]+)(#[^)]*)?\)", link, text)
        text = re.sub(
            r"!\[([^\]]*)\]\((pictures/[^)]+\.svg)\)", lambda m: picture(m[1], ROOT / "docs" / m[2]), text
        )
        drawn = ROOT / "docs" / "pictures" / f"{page.stem}.svg"  # of the page's one diagram
        text = re.sub(MERMAID, lambda m, drawn=drawn: picture(m[1], drawn), text)
        (source / name).write_text(text, "utf-8")
    there = {path.stem for path in source.glob("*.md")}
    more = sorted(there - {file_of(entry) for entries in MENU.values() for entry in entries})
    tocs = [
        f"```{{toctree}}\n:caption: {title}\n:hidden:\n\n"
        + "\n".join(entry for entry in entries if file_of(entry) in there)
        + "\n```\n"
        for title, entries in {**MENU, **({"More": more} if more else {})}.items()
    ]
    start = (ROOT / "docs" / "site" / "index.md").read_text("utf-8")
    (source / "index.md").write_text(start + "\n" + "\n".join(tocs), "utf-8")


def file_of(entry: str) -> str:
    return re.sub(r".*<(.*)>", r"\1", entry)


def picture(words: str, path: Path) -> str:
    """Into the page itself, so that it takes the page's colours."""
    svg = re.sub(r"(?s)^.*?(?=<svg)", "", path.read_text("utf-8"))
    svg = re.sub(r"<style>.*?</style>\n| id=\"[^\"]*\"", "", svg)
    svg = re.sub(r"\n\s*\n", "\n", svg).replace("<svg", f'<svg role="img" aria-label="{words}"', 1)
    return f'<div class="picture">\n{svg}</div>\n'


def build(target: Path, with_playground: bool = True) -> int:
    """Two at once do not meet."""
    conf = ROOT / "docs" / "site"
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory() as made:
        source = Path(made) / "docs"
        source.mkdir()
        stage(source)
        arguments = [
            "-q",
            "-W",
            "--keep-going",
            "-b",
            "html",
            "-c",
            str(conf),
            "-d",
            str(Path(made) / "doctrees"),
        ]
        command = [sys.executable, "-m", "sphinx", *arguments, str(source), str(target)]
        environment = {**os.environ, "PYWORKER_PLAYGROUND": "yes" if with_playground else "no"}
        code = subprocess.run(command, env=environment).returncode
    if with_playground:
        playground.install(target / "_static" / "playground")
    return code


if __name__ == "__main__":
    if sys.argv[1:2] == ["--only-reference"]:
        references(Path(sys.argv[2]))
    else:
        sys.exit(build(ROOT / "site", "--without-playground" not in sys.argv))
