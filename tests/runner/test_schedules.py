"""Promises of schedules outside of SQL: workers fire them, @cron declares them, the command line
shows, loads and changes them."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pyworker import Task, TaskError, cron, task, tasks
from pyworker._distribution import pip_install

HOURLY = "0 * * * *"
# Of this second: a tick that is more than a minute late would be skipped.
DUE = "update pyworker.schedule_entries set next_at = date_trunc('second', pyworker.clock()) where name = %s"


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_registry", {})


@pytest.fixture
def call(db: Any, dsn: str, cli: Any) -> Any:
    """A command on the shared database that must succeed; returns what it printed, decoded if it
    is asked for JSON."""

    def run(*arguments: str) -> Any:
        done = cli(*arguments, DATABASE_URL=dsn)
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout) if "--json" in arguments else done.stdout

    return run


def refused(done: Any, *words: str) -> None:
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done
    assert all(word in done.stderr for word in words), done.stderr


def names(db: Any) -> list[str]:
    return [name for (name,) in db.execute("select name from pyworker.schedules order by name").fetchall()]


# Workers ------------------------------------------------------------------------------------------


def test_a_worker_fires_what_is_due_and_runs_it(queue: Any) -> None:
    queue.rows("select pyworker.add_schedule('s', %s, 'note', '{\"a\": 1}')", HOURLY)
    queue.start().until_ready()
    queue.rows(DUE, "s")
    queue.until("select true from public.seen where task = 'note'")
    (seen,) = queue.seen()
    assert (seen.told["a"], seen.told["_cron"]["backfilled"]) == (1, False)
    assert queue.value("select next_at > last_at and last_job_id = %s from pyworker.schedules", seen.job_id)


def test_a_worker_that_runs_once_fires_what_is_due_first(queue: Any) -> None:
    queue.rows("select pyworker.add_schedule('s', %s, 'note')", HOURLY)
    queue.rows(DUE, "s")
    queue.run_once()
    assert len(queue.seen()) == 1


def test_many_workers_fire_each_tick_once(queue: Any) -> None:
    for n in range(20):
        queue.rows("select pyworker.add_schedule(%s, %s, 'note')", f"s{n}", HOURLY)
    for _ in range(3):
        queue.start("--processes", "2")
    for worker in queue.workers:
        worker.until_ready(2)
    queue.rows("update pyworker.schedule_entries set next_at = pyworker.clock()")
    queue.until("select count(*) >= 20 from public.seen")
    assert [worker.stop() for worker in queue.workers] == [0, 0, 0]
    assert len(queue.seen()) == 20


def test_a_slow_query_delays_no_heartbeat_and_no_tick_of_another_worker(queue: Any) -> None:
    query = "select pg_sleep(55)::text as job_key"
    queue.rows("select pyworker.add_schedule('slow', %s, 'note', query => %s)", HOURLY, query)
    queue.rows("select pyworker.add_schedule('quick', %s, 'note')", HOURLY)
    queue.start().until_ready()
    queue.rows(DUE, "slow")
    pid = queue.until(
        "select pid from pg_stat_activity where query ~ 'run_schedules' and wait_event = 'PgSleep'"
    )
    queue.start().until_ready()
    for _ in range(2):
        beats = queue.value("select min(beat_at) from pyworker.live_workers")
        queue.until("select min(beat_at) > %s from pyworker.live_workers", beats)
    queue.rows(DUE, "quick")
    queue.until("select true from public.seen where task = 'note'")
    assert queue.value("select count(*) = 2 from pyworker.live_workers")
    assert queue.value("select pg_terminate_backend(%s, 10000)", pid) is True, "it was still running"


CODE = """
from datetime import timedelta
from pyworker import cron, task

{decorator}
@task
def nightly(payload):
    pass

@task
def other(payload):
    pass
"""
NIGHTLY = (
    '@cron("0 4 * * *", timezone="Europe/Berlin", backfill=timedelta(hours=1), payload={"a": 1}, priority=2)'
)


@pytest.fixture
def deploy(queue: Any, tmp_path: Path) -> Callable[..., Any]:
    """A program with a module of tasks, and a worker that has started with it and ended."""

    def start(decorator: str, module: str = "application", *options: str) -> Any:
        (tmp_path / f"{module}.py").write_text(CODE.format(decorator=decorator))
        worker = queue.start(
            "--once", *options, modules=module, PYTHONPATH=f"{tmp_path}:{Path(tasks.__file__).parents[1]}"
        )
        worker.wait()
        return worker

    return start


def test_a_schedule_in_code_comes_and_goes_with_it(queue: Any, deploy: Any) -> None:
    queue.rows("select pyworker.add_schedule('mine', %s, 'nightly')", HOURLY)
    deploy(NIGHTLY)
    columns = "name, cron, timezone, backfill, identifier, payload, priority, origin"
    assert queue.rows(f"select {columns} from pyworker.schedule_entries where name <> 'mine'") == [
        (
            "nightly",
            "0 4 * * *",
            "Europe/Berlin",
            timedelta(hours=1),
            "nightly",
            {"a": 1},
            2,
            "code:application",
        )
    ]
    deploy('@cron("0 5 * * *", name="late")\n@cron("0 6 * * *")')
    rows = "select name, cron from pyworker.schedules order by name"
    assert queue.rows(rows) == [("late", "0 5 * * *"), ("mine", HOURLY), ("nightly", "0 6 * * *")]
    deploy("", "elsewhere")
    assert len(queue.rows(rows)) == 3, "another program says nothing about this one"
    deploy("")
    assert queue.rows(rows) == [("mine", HOURLY)]


def test_a_worker_whose_schedule_is_wrong_does_not_start(deploy: Any) -> None:
    worker = deploy('@cron("61 * * * *")')
    assert worker.wait() == 1
    assert (
        "(nightly) is not valid: add_schedule: cron: Too large value '61' in minutes range, position 1"
        in worker.log
    )
    assert "Traceback" not in worker.log


def test_a_worker_loads_a_crontab_first(queue: Any, tmp_path: Path) -> None:
    (tmp_path / "crontab").write_text("0 4 * * * note ?id=nightly {a: 1}\n")
    queue.run_once("--crontab", str(tmp_path / "crontab"))
    assert queue.rows("select name, identifier, payload, origin from pyworker.schedule_entries") == [
        ("nightly", "note", {"a": 1}, "crontab:crontab")
    ]
    (tmp_path / "crontab").write_text("\n0 25 * * * note\n")
    worker = queue.start("--crontab", str(tmp_path / "crontab"))
    assert worker.wait() == 1
    assert worker.log == (
        "pyworker: Too large value '25' in hours range in line 2 of crontab: expected "
        "values in the range 0-23.\n"
    )


# @cron --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("registry")
def test_cron_stands_above_task_or_alone() -> None:
    @cron("0 4 * * *", unique_policy={"by_args": True}, backfill=60)
    @task(max_attempts=3)
    def one(payload: Any) -> str:
        return f"one {payload}"

    @cron("@daily", name="every day")
    @cron("@hourly")
    def two(payload: Any) -> None: ...

    assert (isinstance(one, Task), isinstance(two, Task), one(1), one.options) == (
        True,
        True,
        "one 1",
        {"max_attempts": 3},
    )
    assert one.schedules == [
        {
            "name": "one",
            "cron": "0 4 * * *",
            "identifier": "one",
            "unique_policy": {"by_args": True},
            "backfill": "60 seconds",
            "origin": f"code:{__name__}",
        }
    ]
    assert [(s["name"], s["cron"]) for s in two.schedules] == [("two", "@hourly"), ("every day", "@daily")]
    origins, wanted = tasks.schedules([__name__])
    assert (origins, [s["name"] for s in wanted]) == ([f"code:{__name__}"], ["one", "two", "every day"])


@pytest.mark.usefixtures("registry")
def test_two_schedules_cannot_have_one_name() -> None:
    with pytest.raises(TaskError, match="another schedule is named 'one'; give one of them name="):

        @cron("@daily")
        @cron("@hourly")
        def one() -> None: ...


def test_an_option_that_cron_does_not_know_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"cron has no option 'run_at' \(known: backfill, delivery, flags, job_key"
    ):
        cron("@daily", run_at="now")


# The command line ---------------------------------------------------------------------------------


def test_schedules_are_listed(call: Any, db: Any) -> None:
    assert (
        call("schedules")
        == "there are no schedules: SELECT pyworker.add_schedule(name, cron, task) adds one\n"
    )
    assert call("schedules", "--json") == []
    db.execute("select pyworker.add_schedule('nightly', '0 4 * * mon-fri', 't', timezone => 'Asia/Tokyo')")
    header, line = call("schedules").splitlines()
    assert header.split() == ["name", "task", "cron", "next", "last", "job", "origin", "when"]
    assert re.fullmatch(
        r"nightly +t +0 4 \* \* mon-fri +\d{4}-.* +sql +at 04:00 on Monday to Friday \(Asia/Tokyo\) *", line
    )
    (row,) = call("schedules", "--json")
    assert (row["name"], row["words"], row["paused"]) == ("nightly", "at 04:00 on Monday to Friday", False)


def test_next_tries_out_an_expression_or_shows_a_schedule(call: Any, db: Any) -> None:
    lines = call("schedules", "next", "30 2 * * *", "--timezone", "Europe/Berlin", "-n", "2").splitlines()
    assert lines[0] == "at 02:30 every day (Europe/Berlin)"
    assert [re.sub(r"\d", "9", line[6:]) for line in lines[1:]] == ["9999-99-99 99:99"] * 2
    db.execute("select pyworker.add_schedule('nightly', '0 4 * * *', 't', timezone => 'Asia/Tokyo')")
    shown = call("schedules", "next", "nightly", "--json")
    assert (shown["words"], shown["timezone"], len(shown["runs"])) == ("at 04:00 every day", "Asia/Tokyo", 5)
    assert all(run["run_at"].endswith("T19:00:00+00:00") or "+" in run["run_at"] for run in shown["runs"])
    assert {run["local_time"][11:] for run in shown["runs"]} == {"04:00:00"}


def test_next_says_so_when_there_is_no_such_schedule(cli: Any, db: Any, dsn: str) -> None:
    unknown = cli("schedules", "next", "nihgtly", DATABASE_URL=dsn)
    refused(unknown, "'nihgtly' is neither a schedule nor a valid cron expression: ")
    broken = cli("schedules", "next", "61 * * * *", DATABASE_URL=dsn)
    refused(broken, "61")
    assert "no schedule" not in broken.stderr


def test_pause_resume_run_and_remove(call: Any, db: Any) -> None:
    db.execute("select pyworker.add_schedule('s', '0 4 * * *', 't')")
    assert call("schedules", "pause", "s") == "schedule s is paused\n"
    assert "paused" in call("schedules").splitlines()[1]
    assert call("schedules", "resume", "s") == "schedule s resumed\n"
    assert call("schedules", "run", "s") == "job 1 available\n"
    assert [job["payload"].keys() for job in call("schedules", "run", "s", "--json")] == [{"_cron": 0}.keys()]
    assert call("schedules", "remove", "s") == "schedule s removed\n"
    assert names(db) == []


@pytest.mark.parametrize("verb", ["pause", "resume", "run", "remove"])
def test_an_unknown_schedule_is_one_line(cli: Any, db: Any, dsn: str, verb: str) -> None:
    refused(
        cli("schedules", verb, "nope", DATABASE_URL=dsn),
        f"pyworker: {verb}_schedule: there is no schedule 'nope'",
    )


def test_load_makes_the_schedules_of_a_file_those_of_the_database(call: Any, db: Any, tmp_path: Path) -> None:
    file = tmp_path / "crontab"
    db.execute("select pyworker.add_schedule('mine', '0 4 * * *', 't')")
    file.write_text(
        "# ours\n* * * * * a {x: 0x10, /* JSON5 */ 'y': [1,],}\n0 4 * * * b ?max=2 {\"z\": 1.50}\n"
        "* * * * * mine\n"
    )
    expected = "a: added\nb: added\nmine: left to sql\n3 schedules\n"
    dry = call("schedules", "load", str(file), "--dry-run")
    assert dry == (
        "a: would be added\nb: would be added\nmine: would be left to sql\n3 schedules, nothing was changed\n"
    )
    assert names(db) == ["mine"]
    assert call("schedules", "load", str(file)) == expected
    assert db.execute("select payload from pyworker.schedule_entries where name = 'a'").fetchone() == (
        {"x": 16, "y": [1]},
    )
    file.write_text("0 4 * * * b ?max=3\n")
    assert call("schedules", "load", str(file)) == "b: changed\na: removed\n2 schedules\n"
    assert names(db) == ["b", "mine"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("* * * * * t {a=1}", "Failed to parse JSON5 payload on line 1 of crontab: "),
        ("\n* * * * t", "Could not process line '2' of crontab: '* * * * t'"),
        ("* * * * * t ?max=0", "(t) is not valid: add_schedule: max_attempts must be from 1 to 32767, got 0"),
        ("* * * * * t {a: NaN}", "JSON"),
    ],
)
def test_a_crontab_that_cannot_be_loaded_changes_nothing(
    cli: Any, db: Any, dsn: str, tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "crontab").write_text(text)
    refused(cli("schedules", "load", str(tmp_path / "crontab"), DATABASE_URL=dsn), words)
    assert names(db) == []


@pytest.fixture
def without_json5(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "json5" else find(name, *a)
    )
    monkeypatch.delitem(sys.modules, "json5", raising=False)
    return


@pytest.mark.usefixtures("without_json5")
def test_plain_json_needs_no_json5(call: Any, cli: Any, db: Any, dsn: str, tmp_path: Path) -> None:
    file = tmp_path / "crontab"
    file.write_text('* * * * * t {"a": [1]}\n')
    assert call("schedules", "load", str(file)) == "t: added\n1 schedule\n"
    file.write_text("* * * * * t {a: [1]}\n")
    words = f"the payload on line 1 of crontab is not plain JSON; for JSON5: {pip_install('crontab')}"
    refused(cli("schedules", "load", str(file), DATABASE_URL=dsn), words)
