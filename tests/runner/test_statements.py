"""How many statements a job costs its worker, from the first claim to the last report: counted on the
wire, where time adds hardly any. Beats and maintenance do not count: the clock asks for them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.support.proxy import Message, Proxy

OF_THE_CLOCK = ("beat(", "maintain(")
EMPTY = b"Q\0\0\0\5\0"  # the pool of connections asks so whether one still works


class Statements:
    """A fault that loses nothing: it counts what the server is told to execute."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    def __call__(self, message: Message) -> bool:
        executes = message.up and message.kind in b"QE" and message.raw != EMPTY
        if executes and not any(word in message.about for word in OF_THE_CLOCK):
            self.asked[message.about] += 1
        return True


# How many jobs, their options, and how many statements each costs at most.
CASES: dict[str, tuple[int, dict[str, Any], float]] = {
    # A turn reports at least ten jobs: it prefetches as many as ended in the turn before, and comes when
    # half of them have begun, or 10 ms after the first has ended. The rest is for a slow machine.
    "no-op": (3000, {}, 0.1),
    # A turn for each job: it reports this one, and claims the next. It polls every 2 seconds, too: a fifth
    # of the jobs, 20 polls, would take 40 seconds.
    "one sequence": (100, {"sequence_policy": {"key": "s"}}, 1.2),
    "one serial queue": (100, {"queue_name": "serial"}, 1.2),
    # BEGIN, start_job and COMMIT. With ten handlers a turn reports about ten jobs, and no fewer than two on a
    # slow machine; each handler's connection begins with three statements.
    "at most once": (600, {"delivery": "at_most_once"}, 3.6),
}


@pytest.mark.parametrize("task", ["silent", "silent_async"])
@pytest.mark.parametrize("case", CASES)
def test_a_job_costs_its_worker_few_statements(queue: Any, case: str, task: str) -> None:
    jobs, options, most = CASES[case]
    network, statements = Proxy(queue.dsn), Statements()
    worker = queue.start("--concurrency", "10", "--dsn", network.dsn).until_ready()
    network.fault = statements
    specs = Jsonb([{"identifier": task, **options}] * jobs)
    queue.rows("select count(*) from pyworker.add_jobs(%s)", specs)
    queue.until("select count(*) = %s from pyworker.finished_jobs", jobs)
    network.fault = None
    assert 0 < statements.asked.total() <= most * jobs, statements.asked.most_common()
    assert worker.stop() == 0
    network.close()


@pytest.mark.parametrize("task", ["five_steps", "five_steps_async"])
def test_a_saved_step_costs_one_statement(queue: Any, task: str) -> None:
    """It is a transaction of its own. One more statement reads what earlier runs of the job have saved."""
    jobs, handlers = 60, 3
    network, statements = Proxy(queue.dsn), Statements()
    options = "--concurrency", f"{handlers}", "--dsn", network.dsn
    worker = queue.start(*options, modules="stepped").until_ready()
    network.fault = statements
    queue.rows("select count(*) from pyworker.add_jobs(%s)", Jsonb([{"identifier": task}] * jobs))
    queue.until("select count(*) = %s from pyworker.finished_jobs", jobs)
    network.fault = None
    saves = sum(times for asked, times in statements.asked.items() if "save_step(" in asked)
    reads = sum(times for asked, times in statements.asked.items() if "get_steps(" in asked)
    assert (saves, reads) == (5 * jobs, jobs), statements.asked.most_common()
    assert not {"BEGIN", "COMMIT"} & {asked.upper() for asked in statements.asked}
    assert worker.stop() == 0
    network.close()


@pytest.mark.parametrize("task", ["logs", "logs_async"])
def test_a_line_in_the_log_costs_no_statement_of_its_own(queue: Any, task: str) -> None:
    jobs = 2000
    network, statements = Proxy(queue.dsn), Statements()
    worker = queue.start("--concurrency", "10", "--dsn", network.dsn, modules="logging_jobs").until_ready()
    network.fault = statements
    specs = Jsonb([{"identifier": task, "payload": {"lines": [["m", "debug"]]}}] * jobs)
    queue.rows("select count(*) from pyworker.add_jobs(%s)", specs)
    queue.until("select count(*) = %s from pyworker.finished_jobs", jobs)
    network.fault = None
    assert 0 < statements.asked.total() <= 0.1 * jobs, statements.asked.most_common()
    assert queue.rows("select count(*) as n from pyworker.log_lines")[0].n == jobs
    assert worker.stop() == 0
    network.close()


class Idle:
    """A fault that loses nothing: it counts what the server executes from one beat to the fifth after it."""

    def __init__(self) -> None:
        self.beats, self.executed, self.over = list[float](), 0, threading.Event()

    def __call__(self, message: Message) -> bool:
        if message.up and message.kind in b"QE" and message.raw != EMPTY and not self.over.is_set():
            if "beat(" in message.about:
                self.beats.append(time.monotonic())
            self.executed += len(self.beats) > 0
            if len(self.beats) == 6:
                self.over.set()
        return True


@pytest.mark.slow
def test_an_idle_worker_executes_three_statements_in_two_seconds_on_two_connections(fresh_queue: Any) -> None:
    network, idle = Proxy(fresh_queue.dsn), Idle()
    worker = fresh_queue.start("--dsn", network.dsn).until_ready()
    fresh_queue.until("select last_value > 0 from pyworker.maintain_at")  # the next is in a minute
    connections = "select count(*) from pg_stat_activity where application_name = 'pyworker'"
    fresh_queue.until(f"select ({connections} and datname = current_database()) = 2")
    network.fault = idle
    assert idle.over.wait(60)
    network.fault = None
    elapsed = idle.beats[5] - idle.beats[0]
    assert 6 < idle.executed - 1 <= 1.5 * elapsed + 2, (idle.executed, elapsed)  # a turn, half a beat
    assert len(network.links) == 2
    assert worker.stop() == 0
    network.close()
