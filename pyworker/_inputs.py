"""What the jobs have returned that a job has waited for (SQL: dependency_results)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Input(NamedTuple):
    """How a job has ended that this one has waited for."""

    id: int
    ref: str | None  # its ref in the call that added both
    state: str | None
    result: Any


class Inputs(Mapping[str | int, Any]):
    """The results of the jobs that a job has waited for: `job.inputs["fetch"]`, by ref or by id.

    Its keys are refs, and the ids of jobs that have none. `ended`: with their states, by id.
    """

    __slots__ = ("_by_key", "ended")

    def __init__(self, ended: list[Input]) -> None:
        self.ended = ended
        self._by_key = {one.id if one.ref is None else one.ref: one for one in ended}

    def __getitem__(self, key: str | int) -> Any:
        found = self._by_key.get(key) or next((one for one in self.ended if one.id == key), None)
        if found is None:
            known = ", ".join(map(repr, self)) or "none"
            raise KeyError(f"{key!r}: this job has waited for no such job (it has for: {known})")
        return found.result

    def __iter__(self) -> Iterator[str | int]:
        return iter(self._by_key)

    def __len__(self) -> int:
        return len(self._by_key)

    def __repr__(self) -> str:
        return f"Inputs({self.ended!r})"


def inputs_of(text: str) -> Inputs:
    return Inputs([Input(**one) for one in json.loads(text)])
