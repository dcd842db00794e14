"""The documentation's site: its references leave nothing out, it asks no other site for anything,
its search finds."""

from __future__ import annotations

import html
import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import click
import psycopg
import pytest

import pyworker
from pyworker import cli
from pyworker._db import migrations
from tests.support import ROOT

spec = importlib.util.spec_from_file_location("build_site", ROOT / "docs" / "site" / "build.py")
assert spec
assert spec.loader
build = importlib.util.module_from_spec(spec)
sys.path.insert(0, str(ROOT / "docs" / "site"))  # build imports what lies beside it
spec.loader.exec_module(build)


def headings(text: str) -> list[str]:
    return re.findall(r"(?m)^#+ (.+)$", re.sub(r"(?ms)^```.*?^```$", "", text))


def test_the_sql_reference_has_every_public_function_view_and_type(fresh: psycopg.Connection[Any]) -> None:
    text = build.sql_reference(fresh)
    functions = fresh.execute(
        "select p.proname, array_remove(p.proargnames, null) from pg_proc p"
        " where p.pronamespace = 'pyworker'::regnamespace and p.proname !~ '^_'"
    ).fetchall()
    relations = fresh.execute(
        "select c.relname from pg_class c where c.relnamespace = 'pyworker'::regnamespace "
        "and c.relkind in ('v', 'c')"
        " and c.relname !~ '^_'"
    ).fetchall()
    parts = re.split(r"(?m)^### ", text)
    assert sorted(part.split("\n")[0] for part in parts[1:]) == sorted(
        [name for name, _ in functions] + [name for (name,) in relations]
    )
    for name, arguments in functions:
        shapes = [part for part in parts if part.startswith(f"{name}\n")]
        assert any(
            all(re.search(rf"\b{argument}\b", shape) for argument in arguments or []) for shape in shapes
        ), name
    assert "None" not in text, "something has no comment"


def test_it_is_in_the_order_of_use_with_examples(fresh: psycopg.Connection[Any]) -> None:
    text = build.sql_reference(fresh)
    assert re.findall(r"(?m)^## (.+)$", text) == [*build.PARTS, "For runners", "Types", "Views"]
    stems = {path.stem for path in migrations.code()} | {"optional"}
    assert [stem for stems_ in build.PARTS.values() for stem in stems_ if stem not in stems] == []
    assert "## For runners\n" in text.partition("### work\n")[0], "runners' functions are not the first"
    shown = build.examples()
    assert len(shown) > 20
    assert [text.index(f"\n### {name}\n") for name in shown] == sorted(
        text.index(f"\n### {name}\n") for name in shown
    ), "examples run from top to bottom"
    for said in shown.values():
        assert text.count(said) == 1


def test_the_python_reference_has_every_public_name() -> None:
    found = headings(build.python_reference())
    assert set(pyworker.__all__) <= set(found)
    assert {"Job.transaction", "Job.once", "AsyncJob.add_job", "Task.add"} <= set(found)
    errors = found[found.index("Errors") + 1 :]
    assert {"PyworkerError", "InvalidArgument"} <= set(errors)
    assert "task" not in errors


def test_the_python_reference_shows_names_and_examples_as_they_are_written() -> None:
    text = build.described(pyworker.__doc__)
    assert "not listed in \\_\\_all\\_\\_ are" in text
    assert text.count("```python") == 1
    assert "from pyworker import task\n\n@task\n" in text


def test_the_sql_reference_has_no_line_for_arguments_that_there_are_not(
    fresh: psycopg.Connection[Any],
) -> None:
    assert not re.search(r"(?m)^\w+\(\n\s*\n?\)", build.sql_reference(fresh))


def test_the_command_reference_has_every_command() -> None:
    def walk(command: click.Command, path: str) -> list[str]:
        inner = getattr(command, "commands", {}).items()
        return [path, *(word for name, below in inner for word in walk(below, f"{path} {name}"))]

    assert sorted(headings(build.cli_reference())[1:]) == sorted(walk(cli.main, "pyworker"))


def test_pictures_show_what_their_sources_say() -> None:
    for source in (ROOT / "docs" / "pictures").glob("*.dot"):
        drawn = source.with_suffix(".svg").read_text("utf-8")
        words = [html.unescape(word) for word in re.findall(r"<text[^>]*>([^<]+)</text>", drawn)]
        labels = re.findall(r'label="([^"]+)"', source.read_text("utf-8"))
        for label in labels:
            for line in label.split("\\n"):
                assert line in words, f"{source.name}: {line!r} is not drawn: docs/site/pictures.sh"
        assert 'stroke="black"' not in drawn, "it would not be seen on a dark page"


def test_the_picture_of_the_gate_says_what_its_diagram_says() -> None:
    """The page has a Mermaid diagram, which GitHub draws; the site shows the picture."""
    page = (ROOT / "docs" / "inside" / "gate.md").read_text("utf-8")
    source = (ROOT / "docs" / "pictures" / "gate.dot").read_text("utf-8")
    drawn = re.findall(r'(\w+) -> (\w+) \[label="([^"]+)"', source)
    assert sorted(
        ("[*]" if a == "add" else a, b, said.replace("\\n", " ")) for a, b, said in drawn
    ) == sorted(re.findall(r"(?m)^    (\S+) --> (\w+): (.+)$", page))
    shown = re.sub(build.MERMAID, lambda m: build.picture(m[1], ROOT / "docs/pictures/gate.svg"), page)
    assert "```mermaid" not in shown
    assert '<svg role="img" aria-label="Where a job waits, what lets it run, ' in shown


@pytest.mark.slow
def test_the_site_is_built_and_asks_no_other_site_for_anything(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert {"index.html", "concepts.html", "reference-sql.html", "django.html", "search.html"} <= {
        p.name for p in pages
    }
    for page in pages:
        text = page.read_text("utf-8")
        assert re.findall(r"<(?:script|img|iframe|source)[^>]+src=[\"'](?:https?:)?//[^\"']+", text) == []
        assert (
            re.findall(
                r"<link[^>]+rel=[\"'](?:stylesheet|preload|icon)[^>]+href=[\"'](?:https?:)?//[^>]+", text
            )
            == []
        )
    for sheet in site.rglob("*.css"):
        assert re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^)]+", sheet.read_text("utf-8")) == []


@pytest.mark.slow
def test_its_search_works_without_a_server_and_knows_every_page(site: Path) -> None:
    index = (site / "searchindex.js").read_text("utf-8")  # a script, not something to be fetched
    assert index.startswith("Search.setIndex(")
    for name in ("delivery", "unique-jobs", "reference-sql", "operations", "coming-from"):
        assert f'"{name}"' in index
    assert "resume_sequ" in index


@pytest.mark.slow
def test_every_page_is_in_the_menu(site: Path) -> None:
    text = (site / "index.html").read_text("utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert f'href="{page.stem}.html"' in text, page.name
