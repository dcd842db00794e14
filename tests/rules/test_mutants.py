"""`make mutants` tries the mutants. These tests only check that each still has its place and its tests."""

from __future__ import annotations

from tests.mutants import MUTANTS, refusals
from tests.support import ROOT

TESTS = ROOT / "tests"


def test_every_mutant_has_its_place_in_the_sql() -> None:
    assert refusals(MUTANTS) == []


def test_every_mutant_names_tests_that_exist() -> None:
    named = {test.split("[")[0] for mutant in MUTANTS for test in mutant.tests}
    files = {name: (TESTS / name).read_text() for name in {test.split("::")[0] for test in named}}
    missing = [
        test
        for test in named
        if "::" in test and f"def {test.split('::')[1]}(" not in files[test.split("::")[0]]
    ]
    assert missing == []
    assert len(named) > 100
