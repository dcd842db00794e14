"""What handlers see of contextvars."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize("no_uvloop", ["0", "1"])
@pytest.mark.parametrize("task", ["tenant", "tenant_async"])
def test_what_a_handler_sets_in_a_context_variable_no_other_job_sees(
    queue: Any, task: str, no_uvloop: str
) -> None:
    jobs = [queue.add(task, n) for n in range(30)]
    queue.start("--concurrency", "1", PYWORKER_RUN_NO_UVLOOP=no_uvloop)
    queue.until_state("completed", *jobs)
    assert [queue.job(job_id).result for job_id in jobs] == ["set on import"] * 30
