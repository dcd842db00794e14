"""Mutants of the SQL: each takes one guard away, and a test that is named beside it has to notice.

The lists are the TOML files of this directory. A mutant names its function (or view), a pattern
that stands once in the function's text, and what is put in its place. In a pattern, white space and
comments of the SQL do not count, so that a change of wording or layout breaks no mutant.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
SQL = HERE.parent.parent / "sql"
ROOMS = ("heart", "gate", "features", "console")
OBJECT = re.compile(r"(?m)^create (?:or replace )?(?:function|view) ([a-z_]+)")
BLANK = r"(?:\s|--[^\n]*\n)"


@dataclass(frozen=True)
class Mutant:
    name: str  # what is missing
    function: str  # all functions of this name, or a view
    find: str
    put: str
    tests: list[str]  # below tests/
    waits: bool = False  # its tests are about waiting: a mutant that makes them hang is killed

    def places(self) -> list[tuple[Path, int, int]]:
        """Where its pattern stands: file, begin and end."""
        pattern = re.compile(f"{BLANK}+".join(map(re.escape, self.find.split())))
        return [
            (path, start + found.start(), start + found.end())
            for path, start, text in functions().get(self.function, [])
            for found in pattern.finditer(text)
        ]


@cache
def functions() -> dict[str, list[tuple[Path, int, str]]]:
    """Name → file, place in it and text, of each function and view in sql/."""
    found: dict[str, list[tuple[Path, int, str]]] = {}
    for path in sorted(
        [
            *SQL.glob("*.sql"),
            *(path for room in ROOMS for path in SQL.glob(f"{room}/*.sql")),
        ]
    ):
        text = path.read_text("utf-8")
        end = len(text)
        for begin in reversed(list(OBJECT.finditer(text))):
            found.setdefault(begin[1], []).append((path, begin.start(), text[begin.start() : end]))
            end = begin.start()
    return found


def mutants() -> Iterator[Mutant]:
    for path in sorted(HERE.glob("*.toml")):
        for entry in tomllib.loads(path.read_text("utf-8"))["mutant"]:
            yield Mutant(**entry)


MUTANTS = list(mutants())


def refusals(chosen: list[Mutant]) -> list[str]:
    """What is wrong with the list itself."""
    found = []
    for mutant in chosen:
        count = len(mutant.places())
        if count != 1:
            found.append(
                f"{mutant.name}: its pattern stands {count} times in {mutant.function}, it must be once"
            )
    names = [mutant.name for mutant in chosen]
    return found + [
        f"{name}: two mutants have this name" for name in sorted({n for n in names if names.count(n) > 1})
    ]
