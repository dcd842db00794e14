"""Sequences, queues and explanations as users of a real worker meet them."""

from __future__ import annotations

import itertools
import json
import random
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb


def spans(queue: Any) -> dict[str, list[tuple[int, int, str]]]:
    """Of each sequence what its jobs said, in order: job, run, begin or end."""
    found: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for row in queue.seen():
        found[row.task].append((row.job_id, row.run, row.told))
    return found


def assert_one_at_a_time_in_order(said: list[tuple[int, int, str]]) -> None:
    """Begin and end alternate, of one job and run each, unless its process was killed; starts
    follow the ids."""
    starts = [job for job, _, what in said if what == "begin"]
    assert starts == sorted(starts), said
    for (job, run, what), (next_job, next_run, next_what) in itertools.pairwise(said):
        if what == "begin" and next_what == "end":
            assert (job, run) == (next_job, next_run), said
        elif what == "begin":  # killed: the same job begins again, later
            assert (next_job, next_run > run) == (job, True), said
        else:
            assert next_what == "begin", said


@pytest.mark.parametrize("task", ["in_turn", "in_turn_async"])
def test_a_worker_with_many_handlers_runs_the_jobs_of_a_sequence_one_at_a_time_in_order(
    queue: Any, task: str
) -> None:
    queue.start(
        "--concurrency", "8"
    ).until_ready()  # by then the task's sequence_policy is known to the database
    jobs = [queue.add(task, {"customer": n % 4}) for n in range(48)]
    queue.until_state("completed", *jobs)
    found = spans(queue)
    assert len(found) == 4
    for said in found.values():
        assert_one_at_a_time_in_order(said)
        assert len(said) == 24


def test_sequences_run_side_by_side(queue: Any) -> None:
    queue.close_gate(1)
    queue.start("--concurrency", "3")
    first, second = (
        queue.add("act", {"gate": 1, "n": n}, sequence_policy=Jsonb({"by_args": ["n"]})) for n in range(2)
    )
    queue.until_waiting(1, handlers=2)
    queue.open_gate(1)
    queue.until_state("completed", first, second)


def test_failures_snoozes_and_killed_processes_change_neither_order_nor_turn(queue: Any) -> None:
    rng = random.Random(4)
    queue.start("--processes", "2", "--concurrency", "4").until_ready(2)
    jobs = [
        queue.add(
            "in_turn",
            {
                "customer": n % 5,
                "fate": "".join(rng.choices(["", "e", "s", "k", "es"], [8, 2, 2, 0.4, 1])[0]),
            },
        )
        for n in range(60)
    ]
    queue.until_state("completed", *jobs)
    for said in spans(queue).values():
        assert_one_at_a_time_in_order(said)


def test_once_runs_a_sequence_to_its_end(queue: Any) -> None:
    jobs = [queue.add("note", n, sequence_policy=Jsonb({"key": "a"})) for n in range(20)]
    queue.run_once()
    assert [row.job_id for row in queue.seen()] == jobs
    assert set(queue.states(*jobs)) == {"completed"}


def test_a_halted_sequence_is_shown_explained_and_resumed_from_the_command_line(queue: Any, cli: Any) -> None:
    def call(*arguments: str) -> str:
        done = cli(*arguments, DATABASE_URL=queue.dsn)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert call("sequences") == "no sequence has jobs to run\n"
    for payload in ({"raise": ["discard", "broken"]}, {}, {}):
        call("add", "act", json.dumps(payload), "--sequence-policy", '{"key": "customer 42"}')
    queue.run_once()
    assert queue.states(1, 2, 3) == ["discarded", "pending", "pending"]
    shown = call("sequences")
    assert "customer 42" in shown
    assert "discarded" in shown
    assert "pyworker retry 1" in shown
    (row,) = json.loads(call("sequences", "--json"))
    assert (row["sequence_key"], row["running"], row["waiting"], row["halted_by"]) == (
        "customer 42",
        None,
        2,
        1,
    )
    assert "sequence halted" in call("explain", "3")
    assert next(row["reason"] for row in json.loads(call("explain", "2", "--json"))) == "sequence halted"
    assert "halted by job 1" in call("add", "act", "{}", "--sequence-policy", '{"key": "customer 42"}')
    assert call("sequences", "resume", "customer 42") == "sequence customer 42 resumed\n"
    queue.run_once()
    assert queue.states(1, 2, 3, 4) == ["discarded", "completed", "completed", "completed"]
    refused = cli("sequences", "resume", "customer 42", DATABASE_URL=queue.dsn)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "not halted" in refused.stderr


def test_queues_are_limited_paused_and_resumed_from_the_command_line(queue: Any, cli: Any) -> None:
    def call(*arguments: str, expect: int = 0) -> str:
        done = cli(*arguments, DATABASE_URL=queue.dsn)
        assert done.returncode == expect, (done.stdout, done.stderr)
        return done.stdout + done.stderr

    assert call("queues", "set", "q", "2") == "queue q: concurrency 2\n"
    assert call("queues", "set", "free", "--no-limit") == "queue free: no limit\n"
    assert call("queues", "pause", "q") == "queue q is paused\n"
    jobs = [queue.add("note", queue_name="q") for _ in range(3)]
    queue.run_once()
    assert set(queue.states(*jobs)) == {"available"}
    assert "queue paused" in call("explain", str(jobs[0]))
    assert "yes" in call("queues")
    assert "queues resume" in call("queues")
    assert call("queues", "resume", "q") == "queue q resumed\n"
    queue.run_once()
    assert set(queue.states(*jobs)) == {"completed"}
    assert "name a number, --no-limit, --rate or --fair" in call("queues", "set", "q", expect=2)
    assert "'default'" in call("queues", "pause", "default", expect=1)
    assert call("explain", "999", expect=1).count("\n") == 1


@pytest.mark.parametrize("place", ["before", "after", "after, against the environment"])
def test_where_the_database_is_may_be_said_before_or_after_a_subcommand(
    queue: Any, cli: Any, place: str
) -> None:
    dsn, pause = ["--dsn", queue.dsn], ["pause", "q", "--create"]
    elsewhere = {"DATABASE_URL": "host=/nowhere"} if "environment" in place else {}
    done = cli("queues", *(dsn + pause if place == "before" else pause + dsn), **elsewhere)
    assert (done.returncode, done.stdout) == (0, "queue q is paused\n"), done.stderr
    assert queue.value("select paused from pyworker.queues")


def test_a_paused_queue_that_is_resumed_wakes_an_idle_worker(queue: Any) -> None:
    queue.rows("select pyworker.pause_queue('q')")
    job = queue.add("note", queue_name="q")
    queue.start("--poll-interval", "2").until_ready()
    queue.rows("select pyworker.resume_queue('q')")
    queue.until_state("completed", job)


def test_explain_knows_what_the_running_workers_take(queue: Any) -> None:
    queue.start("--task", "note", "--queue", "a", "--forbid-flag", "f").until_ready()
    why = "select reason || ': ' || detail from pyworker.explain_job(%s) order by position desc limit 1"
    other = queue.add("act", queue_name="a")
    assert "the task act" in queue.value(why, other)
    elsewhere = queue.add("note", queue_name="b")
    assert "the queue b" in queue.value(why, elsewhere)
    flagged = queue.add("note", queue_name="a", flags=["f"])
    assert "flags" in queue.value(why, flagged)


def test_reports_of_several_kinds_and_bulk_adds_onto_the_same_jobs_do_not_deadlock(queue: Any) -> None:
    """A turn's ends are told kind by kind, each in the order of ids, while adders lock all of
    these jobs, too."""
    queue.start("--concurrency", "6").until_ready()
    specs = [
        {"identifier": "act", "job_key": f"k{n}", "max_attempts": 2,
         "payload": [{}, {"raise": ["error", "e"]}, {"raise": ["snooze", ""]}][n % 3]}
        for n in range(12)
    ]  # fmt: skip

    def adder(seed: int) -> None:
        rng = random.Random(seed)
        with psycopg.connect(queue.dsn, autocommit=True) as conn:
            for _ in range(60):
                conn.execute("select pyworker.add_jobs(%s::jsonb)", [Jsonb(rng.sample(specs, 12))])

    with ThreadPoolExecutor(3) as pool:
        for future in [pool.submit(adder, n) for n in range(3)]:
            future.result()
    assert "deadlock" not in queue.workers[0].log
    queue.rows("select pyworker.remove_job('k' || n) from generate_series(0, 11) n")
    assert queue.workers[0].stop() == 0
