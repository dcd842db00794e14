"""A worker and its database, its tasks and its log."""

from __future__ import annotations

import json
from typing import Any

import pytest


def test_a_breaking_upgrade_lets_running_jobs_end_and_stops_the_worker_with_57(fresh_queue: Any) -> None:
    fresh_queue.close_gate(1)
    jobs = [fresh_queue.add("note", {"gate": 1}) for _ in range(2)]
    worker = fresh_queue.start("--processes", "2", "--concurrency", "1")
    fresh_queue.until_waiting(1, 2)
    fresh_queue.rows("insert into pyworker.migrations values (998, 'x', false), (999, 'x', true)")
    fresh_queue.rows("select pg_notify('pyworker', 'migrate')")
    worker.until_log("breaking")
    late = fresh_queue.add("note")
    fresh_queue.open_gate(1)
    assert worker.wait() == 57
    assert fresh_queue.states(*jobs, late) == ["completed", "completed", "available"]
    assert "pip install -U pyworker-pg" in worker.log


def test_an_upgrade_that_is_not_breaking_disturbs_no_worker(fresh_queue: Any) -> None:
    worker = fresh_queue.start().until_ready()
    fresh_queue.rows("insert into pyworker.migrations values (998, 'x', false)")
    fresh_queue.rows("select pg_notify('pyworker', 'migrate')")
    fresh_queue.until_state("completed", fresh_queue.add("note"))
    assert worker.stop() == 0


def test_a_worker_that_does_not_fit_the_database_says_so_in_one_line(fresh_queue: Any) -> None:
    fresh_queue.rows("drop schema pyworker cascade; create schema pyworker")
    worker = fresh_queue.start()
    assert worker.wait() == 56
    assert worker.log == (
        "pyworker: there is no pyworker in schema 'pyworker' of this database, or a very old one. Run: "
        "pyworker migrate\n"
    )


def test_a_worker_of_an_older_version_goes_on_with_a_newer_database_that_is_not_breaking(
    fresh_queue: Any,
) -> None:
    job_id = fresh_queue.add("note")
    fresh_queue.rows("insert into pyworker.migrations values (999, 'x', false)")
    fresh_queue.run_once()
    assert fresh_queue.states(job_id) == ["completed"]


# -- tasks that cannot be used ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "options", "words"),
    [
        (None, [], ["there is no module 'mine'"]),
        (
            "import nothing_like_it",
            [],
            ["module 'mine' cannot be imported", "No module named 'nothing_like_it'"],
        ),
        (
            "import asyncio\nraise asyncio.CancelledError('x')",
            [],
            ["module 'mine' cannot be imported: CancelledError: x"],
        ),
        (
            "from pyworker import task\n@task(max_attempts=0)\ndef f(): pass",
            [],
            ["<task f (mine.f)>: define_task: max_attempts must be from 1 to 32767, got 0"],
        ),
        (
            "from pyworker import task\n@task\ndef f(): pass",
            ["--task", "g"],
            ["--task g: no such task (known: f)"],
        ),
    ],
    ids=["no module", "missing import", "no Exception", "refused default", "--task"],
)
def test_a_worker_that_cannot_load_its_tasks_says_why_and_exits(
    queue: Any, tmp_path: Any, module: str | None, options: list[str], words: list[str]
) -> None:
    if module is not None:
        (tmp_path / "mine.py").write_text(module)
    worker = queue.start("--processes", "2", *options, modules="mine")
    assert worker.wait() == 1
    for word in words:
        assert word in worker.log


def test_a_package_is_loaded_with_all_its_modules(queue: Any, tmp_path: Any) -> None:
    for name, text in {
        "__init__": "", "__main__": "raise SystemExit",
        "a": "from pyworker import task\n@task\ndef one(): pass",
        "deep/__init__": "", "deep/b": "from pyworker import task\n@task\ndef two(): pass",
    }.items():  # fmt: skip
        (tmp_path / "app" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "app" / f"{name}.py").write_text(text)
    jobs = [queue.add("one"), queue.add("two"), queue.add("note")]
    queue.run_once(modules="app handlers")
    assert queue.states(*jobs) == ["completed"] * 3


def test_a_decorator_that_fills_a_parameter_of_its_own_hides_it(queue: Any, tmp_path: Any) -> None:
    """With functools.wraps: what the decorator takes counts, unless it passes all on."""
    (tmp_path / "mine.py").write_text(
        "import functools\nfrom dataclasses import dataclass\nfrom pyworker import Job, task\n"
        "@dataclass\nclass Order:\n    id: int\n"
        "def with_session(function):\n"
        "    @functools.wraps(function)\n"
        "    def wrapper(payload):\n"
        "        return function(payload, 'session')\n"
        "    return wrapper\n"
        "def passes(function):\n"
        "    @functools.wraps(function)\n"
        "    def wrapper(*args, **kwargs):\n"
        "        return function(*args, **kwargs)\n"
        "    return wrapper\n"
        "@task(result=True)\n@with_session\n"
        "def filled(payload: Order, session):\n    return [payload.id, session]\n"
        "@task(result=True)\n@passes\n"
        "def passed(payload: Order, my: Job):\n    return [payload.id, my.id]\n"
    )
    filled, passed = queue.add("filled", {"id": 7}), queue.add("passed", {"id": 8})
    queue.run_once(modules="mine")
    assert queue.job(filled).result == [7, "session"]
    assert queue.job(passed).result == [8, passed]


def test_the_last_line_of_an_error_names_the_group_that_was_raised(
    queue: Any, tmp_path: Any, cli: Any
) -> None:
    (tmp_path / "mine.py").write_text(
        "from pyworker import task\n@task\ndef fails(payload):\n"
        "    raise ExceptionGroup('several', [ValueError('bad'), KeyError('x')])\n"
    )
    job_id = queue.add("fails")
    queue.run_once(modules="mine")
    assert queue.job(job_id).last_error.splitlines()[-1] == "ExceptionGroup: several (2 sub-exceptions)"
    shown = cli("jobs", DATABASE_URL=queue.dsn).stdout
    assert "ExceptionGroup: several (2 sub-exceptions)" in shown


# -- logs ------------------------------------------------------------------------------------------


def test_every_line_of_a_json_log_is_json_and_tells_of_the_job(queue: Any) -> None:
    job_id = queue.add("log_a_line")
    failing = queue.add("act", {"raise": ["error", "canary\n\x1b"], "secret": "not for the log"})
    queue.run_once("--log-format", "json", "--log-level", "debug")
    lines = [json.loads(line) for line in queue.workers[0].log.splitlines()]
    assert {"time", "level", "logger", "message", "pid"} <= set.intersection(*(set(line) for line in lines))
    (line,) = [line for line in lines if line["message"] == "two\nlines"]
    told = (line["job_id"], line["run"], line["task"], line["level"])
    assert told == (job_id, queue.job(job_id).run, "log_a_line", "info")
    (line,) = [line for line in lines if line.get("job_id") == failing]
    assert (line["level"], line["task"], line["attempt"]) == ("warning", "act", 1)
    assert line["message"] == f"job {failing} (act) attempt 1 of 25 failed: Canary: canary …".replace(
        "Canary", "handlers.Canary"
    )
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert "not for the log" not in queue.workers[0].log


def test_without_tracebacks_the_log_says_what_was_raised_and_no_more(queue: Any) -> None:
    job_id = queue.add("act", {"raise": ["error", "canary"]})
    queue.run_once("--no-tracebacks")
    (line,) = [line for line in queue.workers[0].log.splitlines() if f"job {job_id} " in line]
    assert line.endswith(f"job {job_id} (act) attempt 1 of 25 failed: handlers.Canary: canary")
    assert "Traceback" not in queue.workers[0].log


@pytest.mark.parametrize(
    ("task", "payload", "options", "reason"),
    [
        ("act", {"raise": ["error", "x"]}, {"max_attempts": 1}, "out of attempts"),
        ("act_async", {"raise": ["error", "x"]}, {"max_attempts": 1}, "out of attempts"),
        ("act", {"raise": ["discard", "hopeless"]}, {}, "discarded by its handler"),
        ("deliver", {"fail": True}, {}, "failed, and must not be run twice"),
    ],
)
def test_the_log_says_that_a_job_is_discarded_now(
    queue: Any, task: str, payload: Any, options: Any, reason: str
) -> None:
    retried = queue.add("act", {"raise": ["error", "x"]}, max_attempts=2)
    queue.start().until_ready()
    job_id = queue.add(task, payload, **options)
    queue.until_state("discarded", job_id)
    queue.workers[0].until_log(f"job {job_id} ({task}) is discarded now: {reason}")
    assert queue.workers[0].stop() == 0
    assert f"job {retried} (act) is discarded" not in queue.workers[0].log


def test_an_outcome_is_logged_with_its_reason_and_without_a_traceback(queue: Any) -> None:
    job_id = queue.add("act", {"raise": ["cancel", "not wanted"]})
    queue.run_once()
    (line,) = [line for line in queue.workers[0].log.splitlines() if f"job {job_id} " in line]
    assert line.endswith(f"job {job_id} (act) attempt 1 of 25: Cancel: not wanted")
    assert "Traceback" not in queue.workers[0].log


def test_an_idle_worker_holds_two_connections(queue: Any) -> None:
    """A third one comes for maintain() and for schedules, and goes."""
    connections = (
        "select count(*) from pg_stat_activity"
        " where datname = current_database() and application_name = 'pyworker'"
    )
    worker = queue.start("--concurrency", "1").until_ready()
    queue.until("select last_value > 0 from pyworker.maintain_at")
    queue.until(f"select ({connections}) = 2")
    queue.until_state("completed", queue.add("note"))
    assert worker.stop() == 0
    queue.until(f"select ({connections}) = 0")


def test_a_worker_tells_how_many_handlers_it_has_and_how_much_memory(fresh_queue: Any) -> None:
    worker = fresh_queue.start("--concurrency", "3").until_ready()
    about = "from pyworker.live_workers"
    fresh_queue.until(f"select (info ->> 'memory')::bigint between 10 << 20 and 1 << 30 {about}")
    assert fresh_queue.rows(f"select info -> 'concurrency' {about}") == [(3,)]
    assert worker.stop() == 0
