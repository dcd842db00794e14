"""Promises of the command line: each command for people and for machines, and errors that take one line."""

from __future__ import annotations

import re
from typing import Any

import pytest
from click.testing import CliRunner
from psycopg.conninfo import make_conninfo

from pyworker.cli import main
from tests.support.cli import add as add
from tests.support.cli import call as call
from tests.support.cli import zoo as zoo

# -- add -------------------------------------------------------------------------------------------


def test_add_says_what_became_of_the_job(call: Any, db: Any) -> None:
    assert call("add", "t") == "job 1 available\n"
    assert call("add", "t", '{"a": 1}', "--queue", "q") == "job 2 available\n"
    assert re.fullmatch(
        r"job 3 scheduled, due 2100-01-0[12] \d\d:00:00[+-]\d\d\n",
        call("add", "t", "--run-at", "2100-01-02 00:00Z"),
    )
    call("add", "t", "--delivery", "at_most_once")
    assert db.execute("select delivery from pyworker.jobs where id = 4").fetchone() == ("at_most_once",)


def test_add_of_a_task_that_no_live_worker_knows_says_so(cli: Any, call: Any, db: Any, dsn: str) -> None:
    assert call("add", "sned_email") == "job 1 available\n"  # before there are workers, any name may be right
    db.execute("""select pyworker.register_worker('{"task_identifiers": ["send_email"]}')""")
    assert call("add", "send_email") == "job 2 available\n"
    done = cli("add", "sned_email", DATABASE_URL=dsn)
    assert (done.returncode, done.stdout) == (0, "job 3 available\n")
    assert done.stderr == (
        "pyworker: no live worker (of 1) knows the task sned_email: start a worker with its module, or "
        "check the --task options and the spelling\n"
    )


def test_add_by_a_role_that_may_only_add_says_what_became_of_the_job(call: Any, db: Any, dsn: str) -> None:
    db.execute("""select pyworker.register_worker('{"task_identifiers": ["send_email"]}')""")
    db.execute("create role adds_only login in role pyworker_producer")
    try:
        of_role = make_conninfo(dsn, user="adds_only")
        assert call("add", "sned_email", "--dsn", of_role) == "job 1 available\n"
    finally:
        db.execute("drop role adds_only")


def test_add_takes_a_delay_in_seconds_or_words(call: Any, db: Any) -> None:
    for delay in ("90", "1 minute 30 s"):
        assert "scheduled, due" in call("add", "t", "--delay", delay)
    delays = db.execute("select extract(epoch from run_at - created_at)::int from pyworker.jobs").fetchall()
    assert delays == [(90,), (90,)]


def test_add_passes_everything_on(call: Any) -> None:
    job = call(
        "add", "t", '{"a": "ü"}', "--queue", "q", "--run-at", "2100-01-01Z", "--max-attempts", "3", "--key",
        "k", "--key-mode",
        "preserve_run_at", "--priority", "-5", "--flag", "a", "--flag", "b", "--meta", '{"m": 1}', "--json",
    )  # fmt: skip
    expected = {
        "id": 1, "task_identifier": "t", "payload": {"a": "ü"}, "queue_name": "q", "max_attempts": 3,
        "key": "k", "priority": -5,
        "flags": {"a": True, "b": True}, "meta": {"m": 1}, "state": "scheduled", "run": 0,
        "deduplicated": False,
    }  # fmt: skip
    assert {name: job[name] for name in expected} == expected
    assert job["run_at"].startswith(("2100-01-01T", "2099-12-31T"))


@pytest.mark.parametrize(
    "payload",
    [
        "null",
        "1.10",
        "1e400",
        '{"a": 1, "a": 2}',
        '"\\u0000\\ud800"',
        "7" * 5000,
        " [1 , 2]",
        '"[/b] ü"',
        "-",
    ],
)
def test_a_payload_is_stored_letter_by_letter(call: Any, db: Any, payload: str) -> None:
    arguments, stdin = (["-"], '{"from": "stdin"}\n') if payload == "-" else (["--", payload], "")
    call("add", "t", *arguments, stdin=stdin)
    assert db.execute("select payload::text from pyworker.get_job(1)").fetchone() == (stdin or payload,)
    call("jobs", "1")
    call("jobs", "1", "--json")


def test_jobs_lists_the_newest_first_finished_ones_included(call: Any, zoo: dict[str, int]) -> None:
    lines = call("jobs").splitlines()
    assert lines[0].split() == [
        "id",
        "task",
        "state",
        "queue",
        "key",
        "attempts",
        "run",
        "at",
        "last",
        "error",
    ]
    assert [line.split()[:3] for line in lines[1:]] == [
        ["4", "waits", "available"], ["3", "runs", "running"], ["2", "cancelled_runs", "cancelled"],
        ["1", "fails", "retryable"],
    ]  # fmt: skip
    assert "[/k]" in lines[1]
    assert lines[4].rstrip().endswith("ValueError: [red]bad[/b]")
    assert {len(line) for line in lines} == {len(lines[0])}  # in columns


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ([], [4, 3, 2, 1]),
        (["--state", "running"], [3]),
        (["--state", "active"], [3]),
        (["--state", "retryable", "--state", "cancelled"], [2, 1]),
        (["--task", "waits", "--task", "fails"], [4, 1]),
        (["--queue", "q"], [1]),
        (["--queue", "default"], [4, 3, 2]),
        (["--key", "k"], [1]),
        (["--key", "k", "--state", "running"], []),
        (["--limit", "2"], [4, 3]),
    ],
)
def test_jobs_can_be_filtered(call: Any, zoo: dict[str, int], filters: list[str], found: list[int]) -> None:
    assert [job["id"] for job in call("jobs", "--json", *filters)] == found
    if not found:
        assert call("jobs", *filters) == "no jobs match\n"


def test_one_job_is_shown_with_the_errors_of_its_attempts(call: Any, db: Any, zoo: dict[str, int]) -> None:
    shown = call("jobs", "1")
    for pattern in (
        r"(?m)^task_identifier +fails *$",
        r"(?m)^queue_name +q *$",
        r"(?m)^payload +\{\} *$",
        "attempt failed ",
    ):
        assert re.search(pattern, shown)
    assert shown.endswith('Traceback\n  File "x"\nValueError: [red]bad[/b]\n')
    job = call("jobs", "1", "--json")
    assert (job["state"], len(job["errors"]), job["errors"][0]["run"]) == ("retryable", 1, job["run"])
    assert job["last_error"] == job["errors"][0]["error"]


def test_an_empty_queue_says_how_to_begin(call: Any) -> None:
    assert call("jobs") == "no jobs yet: pyworker add TASK adds one\n"
    assert call("jobs", "--json") == []
    assert call("queues") == "no queue has jobs\n"
    assert call("queues", "--json") == []


# -- retry, cancel, remove, queues -----------------------------------------------------------------


def test_retry_runs_jobs_now(call: Any, zoo: dict[str, int]) -> None:
    assert call("retry", "1") == "job 1 available\n"
    assert [job["state"] for job in call("retry", "2", "--json")] == ["available"]


def test_retry_says_of_which_jobs_there_was_nothing_to_retry(cli: Any, dsn: str, zoo: dict[str, int]) -> None:
    done = cli("retry", "1", "4", DATABASE_URL=dsn)
    assert (done.returncode, done.stdout) == (1, "job 1 available\n")
    assert done.stderr == "job 4 was already available: nothing to retry\n"


@pytest.fixture
def lost(db: Any) -> list[int]:
    """Two jobs that were lost, done or not."""
    ids = [row[0] for row in db.execute(
        "select (pyworker.add_job('mail', delivery => 'at_most_once')).id from generate_series(1, 2)"
    )]  # fmt: skip
    (worker,) = db.execute("select pyworker.register_worker()").fetchone()
    runs = db.execute("select id, run from pyworker.claim_jobs(%s, 2)", [worker]).fetchall()
    for run in runs:
        db.execute("select pyworker.start_job(%s, %s)", run)
    db.execute("select pyworker.unregister_worker(%s)", [worker])
    return ids


def test_retry_of_several_jobs_leaves_lost_ones_out_until_it_is_asked_again(
    cli: Any, call: Any, dsn: str, db: Any, lost: list[int]
) -> None:
    other = db.execute("select (pyworker.add_job('t', run_at => '2100-01-01')).id").fetchone()[0]
    ids = [str(job) for job in (*lost, other)]
    assert sorted(job["id"] for job in call("jobs", "--lost", "--json")) == lost
    done = cli("retry", *ids, DATABASE_URL=dsn)
    assert (done.returncode, done.stdout) == (1, f"job {other} available\n")
    assert f"left out 2 jobs that were lost and may have been done: {lost[0]}, {lost[1]}." in done.stderr
    done = cli("retry", ids[0], DATABASE_URL=dsn)
    assert (done.returncode, done.stdout) == (0, f"job {lost[0]} available\n")
    assert f"job {lost[0]} was lost: it may have been done" in done.stderr
    assert cli("retry", "--lost", *ids[1:], DATABASE_URL=dsn).returncode == 1  # the other one is available
    assert [call("jobs", job, "--json")["state"] for job in ids] == ["available"] * 3


def test_the_printed_retry_of_several_jobs_leaves_lost_ones_out_too(
    cli: Any, db: Any, lost: list[int]
) -> None:
    other = db.execute("select (pyworker.add_job('t', run_at => '2100-01-01')).id").fetchone()[0]
    db.execute(cli("retry", "--sql", str(lost[0]), str(other)).stdout)
    states = "select state from pyworker.get_job(%s)"
    assert db.execute(states, [other]).fetchone() == ("available",)
    assert db.execute(states, lost[:1]).fetchone() == ("discarded",)
    db.execute(cli("retry", "--sql", "--lost", *map(str, lost)).stdout)
    assert [db.execute(states, [job]).fetchone() for job in lost] == [("available",)] * len(lost)


def test_cancel_ends_waiting_jobs_and_asks_running_ones_to_stop(call: Any, zoo: dict[str, int]) -> None:
    assert call("cancel", "4", "3") == "job 4 cancelled\njob 3 is running and was asked to stop\n"
    assert call("cancel", "3", "--force") == "job 3 cancelled\n"


def test_cancel_says_of_which_jobs_there_was_nothing_to_cancel(
    cli: Any, call: Any, dsn: str, zoo: dict[str, int]
) -> None:
    done = cli("cancel", "2", "4", DATABASE_URL=dsn)
    assert (done.returncode, done.stdout) == (1, "job 4 cancelled\n")
    assert done.stderr == "job 2 was already cancelled: nothing to cancel\n"
    assert cli("cancel", "2", "--json", DATABASE_URL=dsn).returncode == 1


def test_a_queue_that_has_no_job_is_paused_only_when_that_is_meant(
    cli: Any, call: Any, dsn: str, zoo: dict[str, int]
) -> None:
    done = cli("queues", "pause", "nosuch", DATABASE_URL=dsn)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "pyworker: no queue nosuch has jobs or a limit (pyworker queues lists them);"
        " to pause it before its first job, say --create\n"
    )
    assert call("queues", "pause", "nosuch", "--create") == "queue nosuch is paused\n"
    assert call("queues", "pause", "nosuch") == "queue nosuch is paused\n"


def test_the_database_may_be_named_before_the_command(cli: Any, dsn: str, zoo: dict[str, int]) -> None:
    nowhere = "host=/nowhere"
    for words in (
        ["--dsn", dsn, "explain", "4"],
        ["--dsn", nowhere, "explain", "4", "--dsn", dsn],
        ["--dsn", dsn, "--schema", "pyworker", "queues", "resume", "q"],
        ["--dsn", nowhere, "queues", "--dsn", dsn, "resume", "q"],
    ):
        assert cli(*words, DATABASE_URL=nowhere).returncode == 0, words


def test_signal_sends_a_signal_and_jobs_shows_the_steps(call: Any, db: Any, zoo: dict[str, int]) -> None:
    assert call("signal", "4", "go", '{"by": "ann"}') == (
        "job 4 (waits, available) has the signal 'go': kept for a wait to come\n"
    )
    db.execute(
        "with mine as materialized (select * from pyworker.claim_jobs(pyworker.register_worker(), 9)) "
        "select pyworker.wait_for_signal(4, run, 'go'), pyworker.save_step(4, run, '[red]') "
        "from mine where id = 4"
    )
    printed = call("jobs", "4")
    assert re.search(r'step go +{"by": "ann"}, ', printed)
    assert re.search(r"step \[red\] +null, ", printed)
    assert [step["name"] for step in call("jobs", "4", "--json")["steps"]] == ["go", "[red]"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["999", "go"], 1, "send_signal: there is no job 999"),
        (["2", "go"], 1, "send_signal: job 2 is cancelled"),
        (["4", ""], 1, "send_signal: name must be 1 to 512 characters long, got ''"),
        (["4", "go", "{"], 2, "PAYLOAD is not JSON"),
        (["4", "go", '"\\u0000"'], 1, "send_signal: payload must not contain NUL"),
    ],
)
def test_a_signal_that_reaches_no_job_is_refused(
    cli: Any, db: Any, dsn: str, zoo: dict[str, int], arguments: list[str], code: int, words: str
) -> None:
    done = cli("signal", *arguments, DATABASE_URL=dsn)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert db.execute("select count(*) from pyworker.signals").fetchone() == (0,)


def test_a_signal_under_another_name_says_for_which_the_job_waits(
    cli: Any, db: Any, dsn: str, zoo: dict[str, int]
) -> None:
    db.execute(
        "with mine as materialized (select * from pyworker.claim_jobs(pyworker.register_worker(), 9)) "
        "select pyworker.wait_for_signal(4, run, 'approved') from mine where id = 4"
    )
    for machine in ([], ["--json"]):
        done = cli("signal", "4", "aproved", *machine, DATABASE_URL=dsn)
        assert done.returncode == 0
        assert done.stderr == (
            "pyworker: send_signal: job 4 waits for the signal 'approved', and keeps 'aproved' for a later "
            "wait. If you meant that one: pyworker signal 4 approved.\n"
        )
    assert cli("signal", "4", "approved", DATABASE_URL=dsn).stderr == ""


@pytest.mark.parametrize("verb", [["retry"], ["cancel"], ["delete"], ["explain"], ["signal"]])
def test_a_command_for_a_job_that_is_not_there_says_where_jobs_are(
    cli: Any, dsn: str, zoo: dict[str, int], verb: list[str]
) -> None:
    done = cli(*verb, "99999", *(["go"] if verb == ["signal"] else []), DATABASE_URL=dsn)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.search(r"there is no job 99999\. List jobs by `pyworker jobs`, or by the views", done.stderr)


def test_jobs_shows_what_the_attempts_of_a_job_have_logged(call: Any, db: Any, zoo: dict[str, int]) -> None:
    db.execute(
        "with mine as materialized (select * from pyworker.claim_jobs(pyworker.register_worker(), 9)) "
        "select pyworker.log_job(4, run, E'[red] \\x1b'), pyworker.log_job(4, run, 'paper', 'warning') "
        "from mine where id = 4"
    )
    printed = call("jobs", "4")
    assert re.search(r"\nlog of attempt 1 \(run \d+\):\n2\S+ \S+ info    \[red\] \\x1b\n", printed)
    assert re.search(r"\n2\S+ \S+ warning paper\n", printed)
    logged = call("jobs", "4", "--json")["log"]
    assert [(line["attempt"], line["message"]) for line in logged] == [(1, "[red] \x1b"), (1, "paper")]


def test_a_job_may_depend_on_others_and_they_name_it(call: Any, zoo: dict[str, int]) -> None:
    assert call("add", "after", "--depends-on", "4", "--depends-on", "3") == "job 5 pending\n"
    assert [job["id"] for job in call("jobs", "--waiting-for", "4", "--json")] == [5]
    assert call("jobs", "--waiting-for", "3").splitlines()[1].split()[:3] == ["5", "after", "pending"]
    assert call("jobs", "--waiting-for", "1") == "no jobs match\n"
    assert "waits for the success of job 3" in call("explain", "5")


def test_delete_takes_ids_and_remove_takes_keys(call: Any, db: Any, zoo: dict[str, int]) -> None:
    db.execute("select pyworker.add_job('x', job_key => 'later', run_at => '2100-01-01')")
    assert call("delete", "1", "2") == "job 1 deleted (was retryable)\njob 2 deleted (was cancelled)\n"
    assert call("remove", "--key", "[/k]", "--key", "later") == (
        "job 4 deleted (was available)\njob 5 deleted (was scheduled)\n"
    )
    assert [job["id"] for job in call("jobs", "--json")] == [3]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["retry", "1", "999"], "retry_job: there is no job 999"),
        (
            ["retry", "1", "3"],
            "retry_job: job 3 is running. pyworker cancel ID --force first, or wait for its end.",
        ),
        (["cancel", "4", "999"], "cancel_job: there is no job 999"),
        (["delete", "1", "3"], "delete_job: job 3 is running."),
        (["remove", "--key", "[/k]", "--key", "nobody's"], 'no job holds the key "nobody\'s"'),
    ],
)
def test_of_several_jobs_all_or_none_are_changed(
    cli: Any, db: Any, dsn: str, zoo: dict[str, int], arguments: list[str], words: str
) -> None:
    before = db.execute(
        "select id, state from pyworker.jobs union all select id, state from pyworker.history"
    ).fetchall()
    done = cli(*arguments, DATABASE_URL=dsn)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"pyworker: {words}")
    assert (
        db.execute(
            "select id, state from pyworker.jobs union all select id, state from pyworker.history"
        ).fetchall()
        == before
    )


def test_queues_counts_jobs_per_state(call: Any, zoo: dict[str, int], add: Any) -> None:
    add("'a', queue_name => 'a [b]'")
    lines = [line.split() for line in call("queues").splitlines()]
    assert lines[0][:3] == ["queue", "name", "concurrency"]
    assert [line[:2] for line in lines[1:]] == [["a", "[b]"], ["default", "no"], ["q", "1"]]
    rows = {row["queue_name"]: row for row in call("queues", "--json")}
    assert rows["default"] | {"oldest_waiting": None} == {
        "queue_name": "default", "concurrency": None, "paused": False, "available": 1, "running": 1,
        "pending": 0, "scheduled": 0,
        "retryable": 0, "discarded": 0, "oldest_waiting": None, "fair": False,
        "rate_limit": None, "rate_period": None, "rate_used": None, "rate_left": None, "rate_free_at": None,
    }  # fmt: skip
    assert (rows["q"]["retryable"], rows["a [b]"]["concurrency"]) == (1, 1)


def test_the_summary_of_each_command_fits_a_line():
    text = CliRunner().invoke(main, ["--help"], terminal_width=80).output
    lines = text.partition("Commands:")[2].splitlines()
    assert len([line for line in lines if line.strip()]) == len(main.commands)
    assert [line for line in lines if line.endswith("...")] == []
