"""`pyworker run --queue NAME=N`: how much one process takes of a queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pyworker._runner.config import RunConfig
from pyworker._runner.shares import Share, shares
from tests.support.workers import Queue


def running(queue: Queue) -> dict[str, int]:
    sql = (
        "select coalesce(queue_name, 'default'), count(*)::integer from pyworker.jobs"
        " where locked_by is not null group by 1"
    )
    return dict(queue.rows(sql))


def test_a_process_holds_no_more_jobs_of_a_queue_than_its_bound_and_fills_up_with_others(
    queue: Queue,
) -> None:
    for name in ("mail", "news", "other"):
        queue.value("select pyworker.set_queue(%s, null)", name)
    queue.close_gate(1)
    for name in ("mail", "news", "other", None):
        for _ in range(9):
            queue.add("note", {"gate": 1}, **({"queue_name": name} if name else {}))
    queue.start("--concurrency", "20", "--queue", "mail=2", "--queue", "default=3", "--queue", "*=5")
    queue.until_waiting(1, 10)
    taken = running(queue)
    assert (taken["mail"], taken["default"], taken.get("news", 0) + taken.get("other", 0)) == (2, 3, 5)
    queue.open_gate(1)
    queue.until("select not exists (select from pyworker.jobs where state in ('available', 'running'))")


def test_a_job_that_ends_makes_room_for_the_next_one_of_its_queue(queue: Queue) -> None:
    queue.value("select pyworker.set_queue('mail', null)")
    queue.close_gate(1)
    first = queue.add("note", queue_name="mail")
    waiting = [queue.add("note", {"gate": 1}, queue_name="mail") for _ in range(3)]
    queue.start("--concurrency", "5", "--queue", "mail=1")
    queue.until_state("completed", first)
    queue.until_waiting(1)
    assert running(queue) == {"mail": 1}
    queue.open_gate(1)
    queue.until_state("completed", *waiting)


def test_the_bound_of_each_process_and_the_limits_over_all_workers_hold_together(queue: Queue) -> None:
    queue.value("select pyworker.set_queue('mail', 3)")
    queue.value("select pyworker.set_queue('api', null, 3, '1 hour')")
    queue.value("select pyworker.set_queue('free', null)")
    queue.close_gate(1)
    for name in ("mail", "api", "free"):
        for _ in range(9):
            queue.add("note", {"gate": 1}, queue_name=name)
    for _ in range(2):
        queue.start("--concurrency", "20", "--queue", "mail=2", "--queue", "api=2", "--queue", "*=1")
    queue.until_waiting(1, 8)
    for worker in queue.workers:
        worker.until_ready(2)  # both have looked again, and found no more
    assert running(queue) == {"mail": 3, "api": 3, "free": 2}
    most = "select max(n) from (select count(*) as n from pyworker.jobs where locked_by is not null"
    assert queue.value(f"{most} group by queue_name, locked_by) held") == 2
    queue.open_gate(1)
    queue.until("select count(*) = 6 from pyworker.jobs")
    assert queue.value("select array_agg(distinct queue_name) from pyworker.jobs") == ["api"]


def test_only_the_queues_that_are_named_are_taken(queue: Queue) -> None:
    mine = [queue.add("note", queue_name=name) for name in ("mail", "news")]
    other = queue.add("note", queue_name="other")
    queue.run_once("--queue", "mail=3", "--queue", "news")
    assert queue.states(*mine, other) == ["completed", "completed", "available"]


def test_once_with_bounds_runs_all_there_is(queue: Queue) -> None:
    queue.value("select pyworker.set_queue('mail', null)")
    jobs = [queue.add("note", queue_name=name) for name in ["mail", "news"] * 5]
    queue.run_once("--queue", "mail=1", "--queue", "*=2")
    assert set(queue.states(*jobs)) == {"completed"}


@pytest.mark.parametrize("wrong", ["mail=", "mail=0", "mail=x", "=3", "mail=1001"])
def test_a_bound_that_is_none_is_refused(cli: Callable[..., Any], wrong: str) -> None:
    done = cli("run", "handlers", "--queue", wrong)
    assert done.returncode == 2
    assert f"--queue {wrong}: write QUEUE or QUEUE=N" in " ".join(done.stderr.split())


@pytest.mark.parametrize("family", ["customer:*", "customer:*=5"])
def test_a_family_is_refused_as_no_job_is_in_a_queue_of_that_name(
    cli: Callable[..., Any], family: str
) -> None:
    done = cli("run", "handlers", "--queue", family)
    assert done.returncode == 2
    assert f"--queue {family}: name queues one by one" in " ".join(done.stderr.split())


def test_a_queue_given_twice_is_refused(cli: Callable[..., Any]) -> None:
    done = cli("run", "handlers", "--queue", "mail=1", "--queue", "mail=2")
    assert (done.returncode, "--queue mail is given twice" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("queues", "bounds", "held", "expected"),
    [
        ([], {}, [], [Share(9, None)]),
        (["a", "b"], {}, ["a"], [Share(9, ["a", "b"])]),
        (["a", "b"], {"a": 2}, ["a"], [Share(1, ["a"]), Share(9, ["b"])]),
        (["a", "*"], {"a": 2}, ["a", "a"], [Share(9, None, ["a"])]),
        (["a", "*"], {"a": 2, "*": 3}, ["x", None, "a"], [Share(1, ["a"]), Share(1, None, ["a"])]),
        (["a", "*"], {"*": 3}, ["x", "y", "z"], [Share(9, ["a"])]),
        (["a", "*"], {"a": 1, "*": 1}, ["x", "a"], []),
    ],
)
def test_room_is_divided_by_the_bounds(
    queues: list[str], bounds: dict[str, int], held: list[str | None], expected: list[Share]
) -> None:
    assert shares(RunConfig("", queues=queues, bounds=bounds), 9, held) == expected
