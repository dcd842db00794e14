"""Each line of docs/coming-from.md about workflows, steps and signals, run as it stands there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

import pyworker
from tests.support import ROOT
from tests.support.workers import one_worker

PAGE = (ROOT / "docs" / "coming-from.md").read_text("utf-8")
WORDS = re.compile(
    r"flow|add_batch|job\.step|wait_for|signal|depends_on|job\.inputs|raise Snooze\(…\)|begins again|a task$"
)
# What stands on the right of the page's tables; codes: the parts of it that are code.
CELLS = [
    cell.strip()
    for line in PAGE.partition("\n## RQ\n")[0].splitlines()  # the others: test_coming_from_others.py
    if line.startswith("|")
    for cell in [line.strip("| ").rpartition(" | ")[2]]
    if WORDS.search(cell)
]


def results(queue: Any, *jobs: int) -> list[Any]:
    queue.until_state("completed", *jobs)
    return [queue.job(job).result for job in jobs]


def after_a(queue: Any, db: Any, codes: list[str]) -> None:
    with pyworker.flow(db) as flow:
        a = flow.add("a")
        names = {"flow": flow, "a": a, "b": "b", "args": "job.inputs['a']"}
        made = eval(codes[0], names)
    assert [d.depends_on for d in rows(queue, made.id)] == [a.id]
    child = pyworker.add_job(db, "b", depends_on=[a.id])
    assert codes[1] == "depends_on"
    assert results(queue, a.id, made.id, child.id)[0] == "from a"


def rows(queue: Any, job: int) -> list[Any]:
    return queue.rows("select * from pyworker.dependencies where job_id = %s", job)


def steps_and_signals(queue: Any, db: Any, codes: list[str]) -> None:
    step, wait, send = codes
    step = step.replace("…", "function")
    job = pyworker.add_job(db, "run_line", f"first = {step}; result = [first, {wait}('go')]").id
    queue.until_state("pending", job)
    getattr(pyworker, send)(db, job, "go", "come")
    assert results(queue, job) == [[1, "come"]]


def batch(queue: Any, db: Any, codes: list[str]) -> None:
    jobs, callback = [{"identifier": "a"}, {"identifier": "a"}], "c"
    made = eval(codes[0], {"add_batch": pyworker.add_batch, "conn": db, "jobs": jobs, "callback": callback})
    assert results(queue, made.callback.id) == [["from a", "from a"]]


def inputs(queue: Any, db: Any, codes: list[str]) -> None:
    with pyworker.flow(db) as flow:
        b = flow.add("b", codes[0], after=flow.add("a"))
    assert results(queue, b.id) == ["from a"]


def chain(queue: Any, db: Any, codes: list[str]) -> None:
    first, second, _, read = codes
    with pyworker.flow(db) as flow:
        names = {"flow": flow, "a": "a", "b": "b"}
        names["first"] = eval(first, names)
        b = eval(second.replace("b,", f"b, {read!r},").replace("…", "first"), names)
    assert results(queue, b.id) == ["from a"]


def group(queue: Any, db: Any, codes: list[str]) -> None:
    made = getattr(pyworker, codes[0])(db, [{"identifier": "a"}, {"identifier": "c"}])
    with pyworker.flow(db) as flow:
        several = [flow.add("a"), flow.add("c")]
    assert {job.state for job in [*made, *(one.job for one in several)]} == {"available"}
    assert results(queue, *(one.id for one in several)) == ["from a", []]


def chord(queue: Any, db: Any, codes: list[str]) -> None:
    jobs = [{"identifier": "a"}, {"identifier": "b"}]
    made = eval(codes[0], {"add_batch": pyworker.add_batch, "conn": db, "jobs": jobs})
    assert [job.task_identifier for job in made.jobs] == ["a", "b"]
    assert results(queue, made.callback.id) == [["", "from a"]]


def graph(queue: Any, db: Any, codes: list[str]) -> None:
    assert codes == ["flow", "depends_on"]
    one = pyworker.add_job(db, "a")
    first, second = pyworker.add_jobs(
        db,
        [
            {"identifier": "a", "ref": "x", "depends_on": [one.id]},
            {"identifier": "c", "depends_on": ["x"]},
        ],
    )
    assert results(queue, first.id, second.id) == ["from a", ["from a"]]


def run_lines(*lines: str) -> Callable[[Any, Any, list[str]], None]:
    """Runs the cell's code in a handler that fails once after it; `%s` in a line is the code."""

    def run(queue: Any, db: Any, codes: list[str]) -> None:
        program = "\n".join(lines).replace("%s", codes[0].replace(", …", "") if codes else "")
        job = pyworker.add_job(db, "run_line", program + "\nif job.attempts == 1: raise ValueError")
        queue.until_state("retryable", job.id)
        pyworker.retry_job(db, job.id)
        assert results(queue, job.id) == [1]

    return run


def wait(queue: Any, db: Any, codes: list[str]) -> None:
    job = pyworker.add_job(db, "run_line", f"result = {codes[0]}").id
    queue.until_state("pending", job)
    pyworker.send_signal(db, job, "go", 1)
    assert results(queue, job) == [1]


def send(queue: Any, db: Any, codes: list[str]) -> None:
    id = pyworker.add_job(db, "run_line", "result = job.wait_for(name)").id
    with db.transaction():  # or the job could have ended before the second one
        for payload in (1, 2):
            eval(codes[0], {"pyworker": pyworker, "conn": db, "id": id, "name": "go", "payload": payload})
    assert results(queue, id) == [1]


def sleep(queue: Any, db: Any, codes: list[str]) -> None:
    """The step is not repeated after the pause."""
    program = f"result = job.step('once', function)\nif function() == 2: {codes[0].replace('…', '0')}"
    job = pyworker.add_job(db, "run_line", program)
    assert results(queue, job.id) == [1]
    assert queue.job(job.id).attempts == 1


def awaited(queue: Any, db: Any, codes: list[str]) -> None:
    id = pyworker.add_job(db, "a").id
    assert codes[0] == "@task(result=True)"
    assert eval(codes[1], {"pyworker": pyworker, "conn": db, "id": id}) == "from a"


LINES: dict[str, Callable[[Any, Any, list[str]], None]] = {
    '`flow.add("b", args, after=a)`, or `depends_on`': after_a,
    "`flow.add(b, after=a)`, or `depends_on`": after_a,
    '`job.step("pay", …)`; `job.wait_for`, `send_signal`': steps_and_signals,
    "`add_batch(conn, jobs, callback)`": batch,
    '`job.inputs["a"]`': inputs,
    '`flow.add(a)`, `flow.add(b, after=…)`; `b` reads `job.inputs["a"]`': chain,
    "`add_jobs`; or a flow, whose jobs run side by side unless one is `after` another": group,
    '`add_batch(conn, jobs, "c", on="success")`; `c` reads `job.inputs`': chord,
    "`flow`, or `depends_on`: ids, or refs of the same call: [workflows](workflows.md)": graph,
    "`@task(result=True)`, then `pyworker.wait_for_job(conn, id).result`": awaited,
    "a task": run_lines("result = 1"),
    '`job.step("name", function, …)`': run_lines("result = %s"),
    '`with job.step_transaction("name") as step`': run_lines(
        "%s:", "    if not step.done: step.result = function()", "result = step.result"
    ),
    "`job.wait_for(name, timeout)`: the run ends meanwhile, and begins again": wait,
    "`pyworker.send_signal(conn, id, name, payload)`; the first counts": send,
    "`raise Snooze(…)` after the step that need not be repeated": sleep,
    "a handler begins again; its steps return what they had returned": run_lines(
        "result = job.step('once', function)"
    ),
}


def test_each_line_about_workflows_is_run() -> None:
    assert sorted(set(CELLS)) == sorted(LINES)


@pytest.fixture(scope="module")
def lines(pg_template: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with one_worker(pg_template, "lines", tmp_path_factory.mktemp("lines"), modules="lines") as queue:
        with psycopg.connect(queue.dsn, autocommit=True) as conn:
            yield queue, conn


@pytest.mark.parametrize("cell", LINES)
def test_a_line_for_those_who_come_from_elsewhere_does_what_it_says(lines: Any, cell: str) -> None:
    LINES[cell](*lines, re.findall("`([^`]+)`", cell))
