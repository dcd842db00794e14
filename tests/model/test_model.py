"""The whole SQL interface against a model in plain Python, step by step.

CI runs the same examples every time. For a long run with new ones: PYWORKER_EXAMPLES=5000, or `-m torture`.
Only the long run asks whether MET and FATES were met: thirty examples meet most of them, but any change to a
rule or to what the machine may say is another choice of examples, which may miss one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from tests.model.limits import Limits
from tests.model.machine import Machine, Workflows, run
from tests.model.signals import FATES, Signals

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("PYWORKER_EXAMPLES", "0"))
STEPS = int(os.environ.get("PYWORKER_STEPS", "60"))

KINDS = ("kind", "examples"), [(Machine, 30), (Workflows, 30), (Limits, 20)]
LONG = KINDS[0], [(kind, 20 * examples) for kind, examples in [*KINDS[1], (Signals, 30)]]

# What a job that depends on others, waiting and running, and its parents have had besides.
EVERY = ["waits: ", "runs: ", "waits, parent: ", "runs, parent: "]
MET = {
    Workflows: {
        *(
            each + what
            for each in EVERY
            for what in ("a key", "a unique policy", "a sequence", "at_most_once")
        ),
        *(each + "was replaced" for each in EVERY if each != "runs: "),
        *(each + what for each in EVERY[:2] for what in ("several parents", "a ref", "on_unmet cancel")),
        "waits: expires",
        "waits, parent that failed",
        "waits, parent that waits for jobs",
        "waits, parent that waits for a signal",
        "runs, parent: was tried before",
        "runs, parent that has ended and was retried",
        "runs, parent that is gone",
    }
}


@pytest.mark.parametrize(*KINDS)
def test_the_queue_behaves_like_its_model(
    api: Any, clock: Any, clean: Any, invariants: Any, kind: type[Machine], examples: int
) -> None:
    run(kind, api, clock, clean, invariants, EXAMPLES or examples, STEPS, derandomize=not EXAMPLES)


def test_the_model_accepts_no_claim_that_breaks_a_promise(
    api: Any, clock: Any, clean: Any, invariants: Any
) -> None:
    machine = Limits(api, clock, clean, invariants)
    queues = [("h:1", -1), ("h:1", -1), ("h:2", 1), ("h:3", 1), ("h:3", 1)]
    specs = [{"task": "t", "queue": queue, "priority": priority} for queue, priority in queues]
    machine.begin(many=specs, theme=None, claims=0)
    a, b, c, d, _ = (job.id for job in machine.model.jobs)
    worker = machine.workers[0]

    def accepted(*got: int, most: int = 3) -> bool:
        try:
            deepcopy(machine.model).claim(worker, most, None, None, None, got=list(got))
        except AssertionError:
            return False
        return True

    assert accepted(a, b, c)
    assert accepted(a, b, d)
    assert accepted(a, b, c, d, most=4)
    assert not accepted(a, c, d)  # a better priority goes first
    assert not accepted(a, b)  # no worker is idle
    assert not accepted(c, a, b)  # and comes first


@pytest.mark.parametrize("waits", [False, True])
def test_a_job_that_is_retried_after_its_cancellation_is_put_off_no_longer_than_before(
    api: Any, clock: Any, clean: Any, invariants: Any, waits: bool
) -> None:
    machine = Machine(api, clock, clean, invariants)
    job = {"task": "t", "key": "a"}
    machine.begin(many=[job], theme=None, claims=0)
    if waits:
        machine.claim(0, 1)
        machine.wait_for(*machine.run(1), "x", None)
    calls: list[Callable[[], None]] = [
        lambda: machine.add_one({**job, "max_wait": 0, "expires_at": 1.5}),
        lambda: machine.cancel(1, False),
        lambda: machine.many([1], "retry"),
        lambda: machine.add_one(job),
    ]
    for call in calls:
        call()
        machine.the_views_show_what_the_model_holds()


@pytest.mark.torture
@pytest.mark.parametrize(*LONG)
def test_the_queue_behaves_like_its_model_for_a_long_time(
    api: Any, clock: Any, clean: Any, invariants: Any, kind: type[Machine], examples: int
) -> None:
    run(kind, api, clock, clean, invariants, examples, STEPS)
    assert MET.get(kind, set()) - Machine.met.keys() == set(), "no example has met these"
    if kind is Signals:
        assert FATES - Signals.fates.keys() == set(), "no example has met these"
