"""The record of what clients and workers see, and what is asked in the end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SEED = os.environ.get("PYWORKER_SEED", "3")
FINAL = """
    select j.id, j.task_identifier as task, j.state, j.reason, j.run, j.delivery,
        array(select e.run from public.effects e where e.job_id = j.id order by 1) as effects
    from (select id, task_identifier, state, reason, run, delivery from pyworker.live_jobs
          union all
          select id, task_identifier, state, reason, run, delivery from pyworker.finished_jobs) j"""


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    kept = Path(os.environ.get("PYWORKER_HISTORY") or tmp_path / "history").absolute()
    kept.mkdir(parents=True, exist_ok=True)
    assert not list(kept.glob("*.jsonl")), f"{kept} has a record already"
    monkeypatch.setenv("PYWORKER_HISTORY", str(kept))
    return kept
