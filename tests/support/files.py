"""Rules that hold for each of many files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.support import ROOT

Rule = Callable[[Path], None]


def for_each(paths: Iterable[Path]) -> Callable[[Rule], Callable[[], None]]:
    """One test of a rule of one file, for all of them: a thousand tests would take longer to report than to
    run. Its failure names each file that breaks the rule."""
    files = list(paths)

    def decorate(rule: Rule) -> Callable[[], None]:
        def test() -> None:
            broken = []
            for path in files:
                try:
                    rule(path)
                except (AssertionError, pytest.fail.Exception) as error:
                    broken.append(f"{path.relative_to(ROOT)}: {error}")
            assert files
            if broken:
                pytest.fail("\n\n".join(broken), pytrace=False)

        test.__name__ = rule.__name__
        test.__doc__ = rule.__doc__
        return test

    return decorate
