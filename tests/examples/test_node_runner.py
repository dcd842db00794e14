"""examples/runners/node: a runner in JavaScript keeps the promises, also beside `pyworker run`."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

ROOT, RUNNER = Path(__file__).parents[2], Path(__file__).parents[2] / "examples" / "runners" / "node"
TABLES = """
create table seen (at bigserial primary key, job_id bigint, attempts integer, task text, told text);
create table booked (job_id bigint primary key)"""
NODE = """
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { Report, cancel, discard, fail, notStarted, snooze } from "./job.mjs"

const pool = new pg.Pool()
const see = (job, told) =>
  pool.query('insert into seen (job_id, attempts, task, told) values ($1, $2, $3, $4)',
    [job.id, job.attempts, job.task_identifier, told ?? null])

async function note(payload, job) {
  await see(job)
  await sleep(payload.ms ?? 20)
}

export default {
  note, deliver: note, in_turn: note,
  async flaky(payload, job) {
    await see(job)
    if (job.attempts === 1) throw new Error('not yet')
  },
  async book(payload, job) {
    await see(job)
    await job.transaction(async client => {
      await client.query('insert into booked values ($1)', [job.id])
      await sleep(20)
    })
  },
  async act({ what, ...members }, job) {
    await see(job)
    throw new Report(what, members)
  },
  async words({ word }) {
    throw { snooze: snooze(60), discard: discard('no use'), cancel: cancel('not wanted'),
      notStarted: notStarted('terminal is off'), fail: fail('boom', { delay_s: 60 }) }[word]
  },
  async answer(payload) { return payload },
  async nul() { return { text: 'a\\0b\\ud800' } },
  async step(payload, job) {
    await see(job, await job.once('mail'))
    if (job.attempts === 1) throw new Error('again')
  },
  async wait(payload, job) {
    await see(job)
    await sleep(30000, null, { signal: job.signal })
  },
  async deaf(payload, job) {
    await see(job)
    await sleep(30000)
  },
}
"""
PYTHON = """
import time

import psycopg

from pyworker import task


def see(job):
    with psycopg.connect(autocommit=True) as conn:
        conn.execute(
            "insert into seen (job_id, attempts, task) values (%s, %s, %s)",
            [job.id, job.attempts, job.task_identifier],
        )


@task
def note(payload, job):
    see(job)
    time.sleep(payload.get("ms", 20) / 1000)


@task(delivery="at_most_once")
def deliver(payload, job):
    note.function(payload, job)


@task(sequence_policy={"by_args": ["customer"]})
def in_turn(payload, job):
    note.function(payload, job)


@task(backoff=["0 seconds"])
def flaky(payload, job):
    see(job)
    if job.attempts == 1:
        raise ValueError("not yet")


@task
def book(payload, job):
    see(job)
    with job.transaction() as conn:
        conn.execute("insert into booked values (%s)", [job.id])
        time.sleep(0.02)
"""


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runner's directory with its package, as npm installs it."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("no node or no npm here")
    directory = tmp_path_factory.mktemp("node") / "runner"
    shutil.copytree(RUNNER, directory, ignore=shutil.ignore_patterns("node_modules"))
    npm = ["npm", "install", "--no-audit", "--no-fund", "--prefer-offline", "--loglevel=error"]
    try:
        subprocess.run(npm, cwd=directory, capture_output=True, timeout=120, check=True)
    except subprocess.SubprocessError as error:
        pytest.skip(f"npm cannot install pg: {error}")
    (directory / "handlers.mjs").write_text(NODE)
    return directory


class Running:
    """A queue, and the workers of a test."""

    def __init__(self, example: Any, installed: Path, directory: Path) -> None:
        self.installed, self.directory = installed, directory
        self.environment = {**example.environment, "PYTHONPATH": f"{directory}:{ROOT}"}
        self.conn = psycopg.connect(example.dsn, autocommit=True)
        self.conn.execute(TABLES)
        self.processes: list[subprocess.Popen[bytes]] = []

    def _start(self, command: list[str], cwd: Path, **environment: str) -> subprocess.Popen[bytes]:
        with (self.directory / f"{len(self.processes)}.log").open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env={**self.environment, **environment},
                stderr=output,
                stdin=subprocess.DEVNULL,
            )
        self.processes.append(process)
        return process

    def node(self, **environment: str) -> subprocess.Popen[bytes]:
        return self._start(["node", "run.mjs", "handlers.mjs"], self.installed, **environment)

    def python(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "pyworker", "run", "mixed", "--concurrency", "5", "--no-uvloop"]
        return self._start(command, self.directory)

    def rows(self, sql: str, *parameters: Any) -> list[Any]:
        return self.conn.execute(sql, parameters).fetchall()  # type: ignore[arg-type]

    def value(self, sql: str, *parameters: Any) -> Any:
        return self.rows(sql, *parameters)[0][0]

    def add(self, task: str, payload: Any = None, **options: Any) -> int:
        named = "".join(f", {name} => %s" for name in options)
        call = f"select (pyworker.add_job(%s, %s{named})).id"
        return self.value(call, task, Jsonb({} if payload is None else payload), *options.values())

    def job(self, job_id: int, column: str) -> Any:
        return self.value(f"select {column} from pyworker.get_job(%s)", job_id)

    def until(self, sql: str, *parameters: Any) -> None:
        for _ in range(3000):
            if self.value(sql, *parameters):
                return
            assert all(process.poll() in (None, -9, 70) for process in self.processes), self.report()
            self.conn.execute("select pg_sleep(0.01)")
        raise AssertionError(f"never came true: {sql} {parameters}\n{self.report()}")

    def until_state(self, state: str, *job_ids: int) -> None:
        self.until(
            "select bool_and((pyworker.get_job(i)).state = %s) from unnest(%s) i", state, list(job_ids)
        )

    def until_begun(self, job_id: int) -> None:
        self.until("select exists (select from seen where job_id = %s)", job_id)

    def report(self) -> str:
        jobs = self.rows(
            "select id, task_identifier, state, attempts, last_error from pyworker.jobs limit 20"
        )
        logs = [path.read_text()[-2000:] for path in sorted(self.directory.glob("*.log"))]
        return "\n".join([*map(str, jobs), *logs])

    def seen(self, job_id: int) -> list[Any]:
        return self.rows("select attempts, told from seen where job_id = %s order by at", job_id)

    def stop(self, process: subprocess.Popen[bytes]) -> int:
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(40)
        except subprocess.TimeoutExpired:
            raise AssertionError(self.report()) from None


@pytest.fixture
def queue(example: Callable[[str], Any], installed: Path, tmp_path: Path) -> Iterator[Running]:
    made = example("runners/node")
    made.python("-m", "pyworker", "migrate")
    (tmp_path / "mixed.py").write_text(PYTHON)
    running = Running(made, installed, tmp_path)
    yield running
    running.conn.close()
    for process in running.processes:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("report", "state", "attempts"),
    [
        ({"what": "fail", "error": "boom"}, "retryable", 1),
        ({"what": "discard", "error": "boom"}, "discarded", 1),
        ({"what": "cancel", "error": "boom"}, "cancelled", 1),
        ({"what": "not_started", "error": "boom"}, "retryable", 1),
        ({"what": "snooze", "delay_s": 60}, "scheduled", 0),
    ],
)
def test_each_outcome_is_reported(queue: Running, report: Any, state: str, attempts: int) -> None:
    queue.node()
    delivery = "at_most_once" if report["what"] == "not_started" else "at_least_once"
    job = queue.add("act", report, delivery=delivery)
    queue.until_state(state, job)
    assert queue.job(job, "attempts") == attempts
    assert queue.job(job, "last_error") == report.get("error")


def test_a_handler_may_throw_each_outcome_by_its_name(queue: Running) -> None:
    states = {
        "snooze": "scheduled", "discard": "discarded", "cancel": "cancelled", "notStarted": "retryable",
        "fail": "retryable",
    }  # fmt: skip
    jobs = {word: queue.add("words", {"word": word}) for word in states}
    queue.node()
    for word, state in states.items():
        queue.until_state(state, jobs[word])


def test_results_are_kept_and_what_jsonb_cannot_hold_is_replaced(queue: Running) -> None:
    queue.node()
    jobs = [queue.add("answer", {"a": [1, None]}), queue.add("nul")]
    queue.until_state("completed", *jobs)
    results = queue.rows("select result from pyworker.finished_jobs order by id")
    assert results == [({"a": [1, None]},), ({"text": "a\ufffdb\ufffd"},)]


def test_a_timeout_aborts_the_handler_and_the_job_fails(queue: Running) -> None:
    queue.rows("select pyworker.define_task('wait', timeout => '0.3 seconds')")
    queue.node()
    job = queue.add("wait")
    queue.until_state("retryable", job)
    assert "timed out after 0.3 s" in queue.job(job, "last_error")


def test_a_handler_that_does_not_stop_ends_its_process_after_its_report(queue: Running) -> None:
    queue.rows("select pyworker.define_task('deaf', timeout => '0.3 seconds')")
    node = queue.node()
    job = queue.add("deaf")
    assert node.wait(30) == 70
    assert queue.job(job, "state") == "retryable"
    assert queue.value("select count(*) from pyworker.live_workers") == 0


def test_cancel_job_aborts_the_handler_at_once(queue: Running) -> None:
    queue.node()
    job = queue.add("wait")
    queue.until_begun(job)
    queue.rows("select pyworker.cancel_job(%s)", job)
    queue.until_state("cancelled", job)


def test_a_step_is_done_once_over_all_attempts(queue: Running) -> None:
    queue.rows("select pyworker.define_task('step', backoff => '[0]')")
    queue.node()
    job = queue.add("step")
    queue.until_state("completed", job)
    assert queue.seen(job) == [(1, "true"), (2, "false")]


def test_sigterm_lets_handlers_end_and_hands_back_the_others(queue: Running) -> None:
    node = queue.node(PYWORKER_RUN_CONCURRENCY="1")
    first = queue.add("note", {"ms": 1500})
    queue.until_begun(first)
    others = [queue.add("note") for _ in range(5)]
    queue.until("select count(*) = 6 from pyworker.jobs where state = 'running'")
    assert queue.stop(node) == 0
    assert queue.job(first, "state") == "completed"
    assert [(queue.job(job, "state"), queue.job(job, "attempts")) for job in others] == [("available", 0)] * 5
    assert queue.value("select count(*) from pyworker.live_workers") == 0


def test_a_second_sigterm_hands_back_what_runs(queue: Running) -> None:
    node = queue.node()
    jobs = [queue.add("wait"), queue.add("wait", delivery="at_most_once")]
    for job in jobs:
        queue.until_begun(job)
    node.send_signal(signal.SIGTERM)
    queue.until("select count(*) = 2 from pyworker.jobs where state = 'running'")
    queue.rows("select pg_sleep(0.3)")  # two signals at once are one
    assert queue.stop(node) == 0
    assert (queue.job(jobs[0], "state"), queue.job(jobs[0], "attempts")) == ("available", 0)
    assert queue.value("select state || reason from pyworker.jobs where id = %s", jobs[1]) == "discardedlost"


def test_lost_connections_cost_no_running_handler(queue: Running) -> None:
    queue.node()
    jobs = [queue.add("note", {"ms": 1500}, delivery=how) for how in ("at_least_once", "at_most_once")]
    for job in jobs:
        queue.until_begun(job)
    mine = "datname = current_database() and pid <> pg_backend_pid() and query ~ 'pyworker'"
    for _ in range(2):
        queue.rows(f"select pg_terminate_backend(pid) from pg_stat_activity where {mine}")
        queue.rows("select pg_sleep(0.3)")
    later = queue.add("note")
    queue.until_state("completed", *jobs, later)
    assert [len(queue.seen(job)) for job in jobs] == [1, 1]


def test_a_report_whose_answer_is_lost_is_repeated(queue: Running) -> None:
    queue.node()
    job = queue.add("note", {"ms": 500})
    queue.until_begun(job)
    with queue.conn.transaction():  # the report waits for this transaction
        queue.rows("select from pyworker.live_jobs where id = %s for update", job)
        cut = "select pg_terminate_backend(pid) from pg_locks where not granted limit 1"
        queue.until(f"select coalesce(({cut}), false)")
    queue.until_state("completed", job)
    assert len(queue.seen(job)) == 1


def test_it_opens_again_when_it_was_declared_dead_and_drops_what_it_was_running(queue: Running) -> None:
    queue.node()
    job = queue.add("wait")
    queue.until_begun(job)
    first = queue.value("select max(id) from pyworker.live_workers")
    queue.rows("select pyworker.close_worker(%s)", first)
    queue.until("select count(*) = 2 from seen where job_id = %s", job)
    assert queue.job(job, "state") == "running"
    assert queue.value("select min(id) from pyworker.live_workers") > first


def test_beside_a_python_worker_nothing_is_lost_and_nothing_runs_too_often_when_both_are_killed(
    queue: Running,
) -> None:
    python, node = queue.python(), queue.node()
    queue.until("select count(*) >= 2 from pyworker.live_workers")
    queue.until("select count(*) = 3 from pyworker.list_tasks()")
    kinds: dict[int, str] = {}
    for n in range(400):
        task = ["note", "deliver", "in_turn", "book", "flaky", "in_turn", "deliver", "note"][n % 8]
        options = {"queue_name": "serial"} if n % 16 == 0 else {}
        kinds[queue.add(task, {"customer": n % 4}, **options)] = task
    ended = "select count(*) >= %s from pyworker.history"
    queue.until(ended, 60)
    node.kill()
    node.wait()
    queue.until(ended, 120)
    node = queue.node()
    queue.until(ended, 200)
    python.kill()
    python.wait()
    queue.until(ended, 260)
    python = queue.python()
    queue.until("select count(*) = 0 from pyworker.jobs where state <> 'discarded'")

    left = dict(queue.rows("select id, reason from pyworker.jobs"))
    assert set(left.values()) <= {"lost"}
    assert {kinds[job] for job in left} <= {"deliver"}
    completed = {job for (job,) in queue.rows("select id from pyworker.history where state = 'completed'")}
    assert completed | left.keys() == kinds.keys()
    begun = dict(queue.rows("select job_id, count(*) from seen group by 1"))
    assert [job for job, task in kinds.items() if task == "deliver" and begun.get(job, 0) > 1] == []
    assert kinds.keys() - left.keys() <= begun.keys()
    booked = {job for (job,) in queue.rows("select job_id from booked")}
    assert booked == {job for job, task in kinds.items() if task == "book"}
    in_turn = "select j.payload ->> 'customer', array_agg(s.job_id order by s.at) from seen s"
    in_turn += " cross join lateral pyworker.get_job(s.job_id) j where s.task = 'in_turn' group by 1"
    for _, starts in queue.rows(in_turn):
        assert starts == sorted(starts)
    findings = "select check_name, finding from pyworker.doctor() where severity in ('warning', 'error')"
    assert [row for row in queue.rows(findings) if "lost" not in row[1]] == []
    assert (queue.stop(node), queue.stop(python)) == (0, 0)
