"""The payloads of schedules that @cron declares: written by their task, as its jobs will read them."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pydantic
import pytest

import pyworker
from pyworker import InvalidArgument, tasks
from tests.support import TASKS

sys.path.insert(0, str(TASKS))
cases = importlib.import_module("typed_cases")
sys.path.remove(str(TASKS))


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_registry", {})


class Ticked(pydantic.BaseModel):
    cron: dict[str, Any] = pydantic.Field(alias="_cron")


def cron_of(hint: Any, **options: Any) -> Any:
    return pyworker.cron("0 4 * * *", **options)(cases.task_of("x", hint))


@pytest.fixture
def declared(dsn: str) -> Iterator[Any]:
    """Declares the schedules as a worker does that starts, and returns their payloads."""
    from pyworker._db.database import Database

    with psycopg.connect(dsn, autocommit=True) as conn:
        db = Database(conn, "pyworker")

        def declare() -> list[Any]:
            db.declare_schedules(*tasks.schedules(["typed_cases"]))
            query = "select payload::text from pyworker.schedule_entries"
            return [row[0] for row in conn.execute(query).fetchall()]

        yield declare


def test_the_payload_of_a_schedule_is_written_by_its_task(declared: Any) -> None:
    cron_of(cases.Order, payload=cases.Order([cases.LINE]))
    payload = json.loads(declared()[0])
    assert (payload["total"], payload["lines"][0]["price"]) == (1, "0.10")


@pytest.mark.parametrize("hint", [cases.Computed | None, dict[str, Any] | None, type(None)], ids=str)
def test_a_schedule_without_a_payload_has_null_if_its_task_takes_that(declared: Any, hint: Any) -> None:
    cron_of(hint)
    assert declared() == ["null"]


def test_a_schedule_without_a_payload_has_an_empty_object_otherwise(declared: Any) -> None:
    cron_of(Ticked)
    assert declared() == ["{}"]


@pytest.mark.parametrize(
    ("hint", "options", "words"),
    [
        (
            cases.Excluded,
            {"payload": cases.Excluded(a=1, hidden=2)},
            r"payload\.hidden: an int would be read",
        ),
        (cases.Cat, {"payload": {"lives": "many"}}, r"payload\.lives: a worker could not read it"),
        (cases.Needs, {}, r"payload\.hidden: with the member _cron, a worker could not read it"),
        (
            cases.Computed,
            {"payload": cases.Computed(a=1)},
            r"payload\._cron: with the member _cron, a worker",
        ),
        (dict[int, int], {"payload": {1: 2}}, r"payload.*: with the member _cron, a worker could not"),
    ],
)
def test_the_payload_of_a_schedule_that_is_not_read_is_refused_at_the_start(
    declared: Any, hint: Any, options: Any, words: str
) -> None:
    cron_of(hint, **options)
    with pytest.raises(InvalidArgument, match=rf"^<task typed x .*>: {words}"):
        declared()


def test_a_worker_says_at_its_start_which_schedules_payload_is_refused(queue: Any, tmp_path: Path) -> None:
    (tmp_path / "nightly.py").write_text(
        "from pydantic import BaseModel\nfrom pyworker import cron\nclass Report(BaseModel):\n    day: int\n"
        "@cron('0 4 * * *')\ndef nightly(payload: Report): ...\n"
    )
    worker = queue.start("--once", modules="nightly", PYTHONPATH=str(tmp_path))
    assert worker.wait() != 0
    assert "payload.day: with the member _cron, a worker could not read it: Field required" in worker.log


def test_the_jobs_of_a_schedule_without_a_payload_run_with_none(queue: Any, tmp_path: Path) -> None:
    (tmp_path / "nightly.py").write_text(
        "from pydantic import BaseModel\nfrom pyworker import cron, task\n"
        "class Config(BaseModel):\n    day: int\n"
        "@cron('0 4 * * *')\n@task(result=True)\n"
        "def nightly(payload: Config | None): return payload is None\n"
    )
    assert queue.start("--once", modules="nightly", PYTHONPATH=str(tmp_path)).wait() == 0
    ((job,),) = queue.rows("select id from pyworker.run_schedule('nightly')")
    assert queue.start("--once", modules="nightly", PYTHONPATH=str(tmp_path)).wait() == 0
    assert (queue.job(job).payload, queue.job(job).result) == (None, True)
