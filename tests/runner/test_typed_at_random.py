"""Types and values at random: what an add takes, a worker reads back equal; what it refuses, it refuses by
the name of a field, and only where something may be lost. PYWORKER_EXAMPLES=5000 tries more."""

from __future__ import annotations

import os
import types
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pyworker
from pyworker import tasks
from tests.support.typed import SECRET, kinds

EXAMPLES = int(os.environ.get("PYWORKER_EXAMPLES", "0"))


@pytest.mark.parametrize("library", ["pydantic", "msgspec"])
def test_what_an_add_takes_is_read_back_equal(db: Any, monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    monkeypatch.setattr(tasks, "_registry", {})
    taken = refused = 0

    @settings(
        max_examples=EXAMPLES or 150, deadline=None, derandomize=not EXAMPLES, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.data())
    def run(data: Any) -> None:
        nonlocal taken, refused
        kind = data.draw(kinds(library))
        value, lossy = data.draw(kind.values)

        def handler(payload: Any) -> Any:
            return payload

        handler.__annotations__["payload"] = kind.hint
        task = pyworker.task(handler)
        job, refusal = None, ""
        try:
            job = task.add(db, value)
        except pyworker.InvalidArgument as error:
            refusal = str(error)
        if job is not None:
            assert task.invoke(types.SimpleNamespace(payload=job.payload)) == value
            taken += 1
            return
        assert refusal.startswith("<task handler (tests.runner.test_typed_at_random.")
        assert ">: payload" in refusal
        assert SECRET not in refusal
        assert lossy, refusal
        refused += 1

    run()
    assert min(taken, refused) > 10
