"""The table of roles in docs/operations.md is what the commands and calls go by."""

from __future__ import annotations

from pyworker._db.rights import ALL, CALLS, COMMANDS, OWNER, Roles
from tests.roles.conftest import GROUPS
from tests.support import ROOT

MOST = 4  # in a row
PAGE = (ROOT / "docs" / "operations.md").read_text("utf-8")


def rows(prefix: str, table: dict[str, Roles]) -> list[str]:
    """A row for each set of roles, in the order of the table; a long one is two."""
    found: dict[Roles, list[str]] = {}
    for verb, roles in table.items():
        if roles not in (OWNER, ALL):
            found.setdefault(roles, []).append(verb)
    return [
        f"| {prefix}{'`, `'.join(verbs[at : at + MOST])}` |"
        + "".join(" yes |" if group in roles else " |" for group in GROUPS)
        for roles, verbs in found.items()
        for at in range(0, len(verbs), MOST)
    ]


def test_the_page_has_the_table_of_who_may_do_what() -> None:
    section = PAGE.partition("## Roles")[2].partition("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith("| ") and "`" in line]
    assert table == [*rows("`pyworker ", COMMANDS), *rows("Python: `", CALLS)]
