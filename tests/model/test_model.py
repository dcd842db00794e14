"""The whole SQL interface against a model in plain Python, step by step.

CI runs the same examples every time. For a long run with new ones: PYWORKER_EXAMPLES=5000, or `-m torture`.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.model.machine import Machine, Workflows, run

EXAMPLES = int(os.environ.get("PYWORKER_EXAMPLES", "0"))
STEPS = int(os.environ.get("PYWORKER_STEPS", "60"))

KINDS = pytest.mark.parametrize(("kind", "examples"), [(Machine, 40), (Workflows, 50)])


@KINDS
def test_the_queue_behaves_like_its_model(
    api: Any, clock: Any, clean: Any, invariants: Any, kind: type[Machine], examples: int
) -> None:
    run(kind, api, clock, clean, invariants, EXAMPLES or examples, STEPS, derandomize=not EXAMPLES)


@pytest.mark.torture
@KINDS
def test_the_queue_behaves_like_its_model_for_a_long_time(
    api: Any, clock: Any, clean: Any, invariants: Any, kind: type[Machine], examples: int
) -> None:
    run(kind, api, clock, clean, invariants, 15 * examples, STEPS)
