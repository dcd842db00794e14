"""Which verbs meet, from which states, at which levels."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations_with_replacement
from random import Random
from typing import TypeVar

from tests.interleavings.explore import Case
from tests.interleavings.states import STARTS
from tests.interleavings.verbs import VERBS

T = TypeVar("T")


def of(verbs: tuple[str, ...], levels: list[str], ends: list[str], starts: Iterable[str]) -> list[Case]:
    """These verbs from each state in which all of them mean something. Of `ends` the last counts for the
    verbs that are left."""
    found = []
    for start in starts:
        if all(start in VERBS[verb].starts for verb in verbs):
            for level in levels:
                for end in ends:
                    hows = end.split("-")
                    hows += hows[-1:] * (len(verbs) - len(hows))
                    found.append(Case(verbs, start, level, tuple(hows)))
    return found


def part_of(things: list[T], part: str) -> list[T]:
    """Of `2/3` each third one, from the second on."""
    n, parts = map(int, part.split("/"))
    return things[n - 1 :: parts]


def cases(names: list[str], levels: list[str], ends: list[str], starts: Iterable[str] = STARTS) -> list[Case]:
    """Each pair of verbs once. `names` are verbs, pairs or triples (`claim`, `claim+cancel`,
    `claim+cancel+finish`); none stands for all pairs."""
    found = []
    wanted = [tuple(name.split("+")) for name in names]
    for pair in combinations_with_replacement(VERBS, 2):
        if not names or any(verbs in (pair[:1], pair[1:], pair, pair[::-1]) for verbs in wanted):
            found += of(pair, levels, ends, starts)
    for verbs in wanted:
        if len(verbs) > 2:
            found += of(verbs, levels, ends, starts)
    return found


def drawn(chosen: list[Case], number: int, seed: int) -> list[Case]:
    """Of these cases so many of each pair, at random: from some of its states, at some of the levels."""
    random, by_verbs = Random(seed), dict[tuple[str, ...], list[Case]]()
    for case in chosen:
        by_verbs.setdefault(case.verbs, []).append(case)
    return [case for some in by_verbs.values() for case in random.sample(some, min(number, len(some)))]


def triples(number: int, seed: int, levels: list[str], ends: list[str]) -> list[Case]:
    """Some cases of three verbs."""
    random, found = Random(seed), list[Case]()
    while len(found) < number:
        possible = of(tuple(random.choices(list(VERBS), k=3)), levels, ends, STARTS)
        found += random.sample(possible, min(1, len(possible)))
    return found
