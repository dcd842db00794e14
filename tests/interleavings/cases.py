"""Which pairs of verbs meet, from which states, at which levels."""

from __future__ import annotations

from itertools import combinations_with_replacement

from tests.interleavings.explore import Case
from tests.interleavings.verbs import STARTS, VERBS


def cases(
    names: list[str], levels: list[str], ends: list[str], starts: tuple[str, ...] = STARTS
) -> list[Case]:
    """Each pair of verbs once, from each state in which both mean something.

    `names` are verbs or pairs (`claim`, `claim+cancel`); none stands for all.
    """
    found = []
    for a, b in combinations_with_replacement(VERBS, 2):
        if names and not any(name in (a, b, f"{a}+{b}", f"{b}+{a}") for name in names):
            continue
        for start in starts:
            if start in VERBS[a].starts and start in VERBS[b].starts:
                for level in levels:
                    for end in ends:
                        how_a, _, how_b = end.partition("-")
                        found.append(Case((a, b), start, level, (how_a, how_b)))
    return found
