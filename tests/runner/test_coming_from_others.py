"""The right column of docs/coming-from.md for RQ, Dramatiq, arq and Hatchet: each piece of code in
it is run, by what it looks like."""

from __future__ import annotations

import re
import shlex
from datetime import timedelta
from typing import Any

import pytest

import pyworker
from pyworker import tasks
from tests.docs.test_snippets import check
from tests.support import ROOT

from .test_coming_from import PAGE, results
from .test_coming_from import lines as lines

SECTIONS = PAGE.partition("\n## RQ\n")[2]
ROWS = [
    [cell.strip() for cell in line.strip("| ").split(" | ")]
    for line in re.sub(r"(?ms)^```.*?^```$", "", SECTIONS).splitlines()
    if line.startswith("| ") and not line.endswith("| here |")
]
CODES = sorted({code for row in ROWS for code in re.findall("`([^`]+)`", row[-1])})
# Words of a cell that are no statement: an option of tasks, what an annotation means.
WORDS = {"datetime", "async", "@task"}
HANDLER = re.compile(r"(async )?def ")


def test_each_row_has_two_cells_and_an_answer() -> None:
    assert len(ROWS) > 60
    assert [row for row in ROWS if len(row) != 2] == []
    assert [row for row in ROWS if not re.search("`|PostgreSQL|middleware", row[1])] == []


def called(queue: Any, db: Any, code: str) -> None:
    """A function of the package, on a job that suits it: one that has ended, or one that waits."""
    has_ended = ".result" in code
    one = pyworker.add_job(db, "a", run_at=None if has_ended else timedelta(days=9))
    if has_ended:
        queue.until_state("completed", one.id)
    made = eval(code, {"pyworker": pyworker, "conn": db, "id": one.id, "timedelta": timedelta})
    if has_ended:
        assert made == "from a"
    elif ".add_job(" in code:
        assert made.task_identifier == "send_email"
        assert made.state in ("available", "scheduled", "pending")
        assert (made.state == "available") == ("run_at" not in code and "depends_on" not in code)
    elif ".add_batch(" in code:
        assert made.callback.state == "pending"
    else:
        verb = code.removeprefix("pyworker.").partition("(")[0]
        state = {"cancel_job": "cancelled", "retry_job": "available", "delete_job": "scheduled"}
        assert verb in {*state, "send_signal", "add_jobs"}
        assert verb not in state or made.state == state[verb]


def decorated(db: Any, code: str) -> None:
    """A decorator makes a task that the database takes, with each of its options."""
    handler = "def handler(payload): pass"
    names = {"task": pyworker.task, "cron": pyworker.cron}
    before = dict(tasks._registry)
    try:
        exec(f"{code}\n{'@task' if code.startswith('@cron') else ''}\n{handler}", names)
        made = names["handler"].add(db, {})
        assert made.task_identifier in ("handler", "send_email")
        limit = re.search(r"max_attempts=(\d+)", code)
        assert not limit or made.max_attempts == int(limit[1])
    finally:
        tasks._registry.clear()
        tasks._registry.update(before)


def handled(queue: Any, db: Any, code: str) -> None:
    """Run by a handler: an exception ends the job as it says, anything else lets it complete."""
    if "wait_for" in code:
        job = pyworker.add_job(db, "run_line", f"from datetime import timedelta\nresult = {code}").id
        queue.until_state("pending", job)
        pyworker.send_signal(db, job, "approved", {"by": "ann"})
        assert results(queue, job) == [{"by": "ann"}]
    elif code.startswith("raise "):
        kind = code.removeprefix("raise ").partition("(")[0]
        line = f"from pyworker import Discard, Snooze\n{code}"
        job = pyworker.add_job(db, "run_line", line).id
        queue.until_state({"Discard": "discarded", "Snooze": "scheduled"}[kind], job)
    else:
        assert results(queue, pyworker.add_job(db, "run_line", f"{code}\nresult = 1").id) == [1]


def run(queue: Any, db: Any, code: str) -> None:
    if code.startswith("pyworker."):
        called(queue, db, code)
    elif code.startswith(("@task(", "@cron(")):
        decorated(db, code)
    elif code.startswith(("job.", "raise ")):
        handled(queue, db, code)
    elif code.startswith("flow."):
        with pyworker.flow(db) as flow:
            made = eval(code, {"flow": flow})
        queue.until_state("completed", made.id)
    elif code.startswith("SELECT "):
        db.execute(code)
    elif code.startswith("pyworker "):
        check(shlex.split(code), "coming-from.md")
    elif HANDLER.match(code):
        exec(f"@task(name='annotated')\n{code}: pass", {"task": pyworker.task, "Mail": dict})
    else:
        assert code in WORDS, f"nothing runs `{code}`"


@pytest.mark.parametrize("code", CODES)
def test_the_code_of_a_cell_runs(lines: Any, code: str) -> None:
    run(*lines, code)


def test_the_pages_of_the_others_are_linked_to_what_moves_their_jobs() -> None:
    text = (ROOT / "docs" / "coming-from.md").read_text("utf-8")
    for name in ("Celery", "RQ", "Dramatiq", "arq", "procrastinate", "DBOS", "Hatchet"):
        assert f"\n### Move from {name}\n" in text
        assert f"(#move-from-{name.lower()})" in text
