"""How long recovery takes after something has died: percentiles over many rounds, on a private server and
with real workers.

    python bench/recovery.py [--rounds N] [kind …]      by default all kinds, 20 rounds

Measured is the time from the fault until the handler of the job that it hit has begun again, in another
process. `restart`: from the moment when PostgreSQL answers again until jobs are completed at nine tenths
of the rate before.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psycopg
from psycopg.rows import namedtuple_row

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.pooler import pooler
from tests.support.proxy import Proxy
from tests.support.servers import Postgres
from tests.support.workers import Queue, Worker

ADD = """
    select count(*) from pyworker.add_jobs(
        (select json_agg(json_build_object('identifier', 'silent')) from generate_series(1, %s))::jsonb)"""
Fault = Callable[[Worker, int], None]  # hits a worker, one of whose processes has this pid


@contextmanager
def fresh(directory: str) -> Iterator[tuple[Postgres, Queue]]:
    with ExitStack() as closing:
        server = Postgres(closing, max_connections="300")
        server.install()
        queue = Queue(server.url, Path(tempfile.mkdtemp(dir=directory)))
        closing.callback(queue.close)
        queue.rows("alter table public.seen add column said_at timestamptz default clock_timestamp()")
        yield server, queue


def end(worker: Worker) -> None:
    for pid in [worker.pid, *worker.children()]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    worker.process.wait()


def again(
    rounds: int, directory: str, fault: Fault, start: Callable[[Queue], Worker], replaced: bool = True
) -> Iterator[float]:
    """Of two workers the fault hits the one that has the job. replaced: start another one for the next
    round."""
    with fresh(directory) as (_, queue):
        workers = [start(queue) for _ in range(2)]
        for _ in range(rounds):
            # Otherwise the start of a worker would be measured.
            queue.until("select count(*) filter (where ready) = 2 from pyworker.worker_health()")
            queue.close_gate(1)
            job_id = queue.add("note", {"gate": 1})
            queue.until_waiting(1)
            pid = queue.seen(job_id)[0].pid
            (hit,) = [worker for worker in workers if pid in worker.children()]
            at = queue.value("select clock_timestamp()")
            fault(hit, pid)
            queue.until("select count(*) > 1 from public.seen where job_id = %s", job_id)
            yield queue.value(
                "select extract(epoch from max(said_at) - %s)::float from public.seen where job_id = %s",
                at,
                job_id,
            )
            if replaced:
                end(hit)
                workers.remove(hit)
                workers.append(start(queue))
            queue.open_gate(1)
            queue.until_state("completed", job_id)


def plain(*options: str) -> Callable[[Queue], Worker]:
    return lambda queue: queue.start("--concurrency", "2", *options)


def suspend(worker: Worker, _: int) -> None:
    for pid in [worker.pid, *worker.children()]:
        os.kill(pid, signal.SIGSTOP)


def child(rounds: int, directory: str) -> Iterator[float]:
    """kill -9 of the process that runs the handler"""
    return again(rounds, directory, lambda _, pid: os.kill(pid, signal.SIGKILL), plain(), replaced=False)


def worker(rounds: int, directory: str) -> Iterator[float]:
    """kill -9 of a whole worker"""
    return again(rounds, directory, lambda worker, _: worker.signal(signal.SIGKILL), plain())


def stop(rounds: int, directory: str) -> Iterator[float]:
    """SIGTERM, with no time for what runs"""
    return again(rounds, directory, lambda worker, _: worker.signal(), plain("--shutdown-timeout", "0"))


def host(rounds: int, directory: str) -> Iterator[float]:
    """a machine stands still (SIGSTOP of all its processes)"""
    return again(rounds, directory, suspend, plain())


def network(rounds: int, directory: str) -> Iterator[float]:
    """a machine's network drops all packets"""
    proxies: dict[Worker, Proxy] = {}

    def start(queue: Queue) -> Worker:
        proxy = Proxy(queue.dsn)
        worker = queue.start("--concurrency", "2", "--dsn", proxy.dsn)
        proxies[worker] = proxy
        return worker

    return again(rounds, directory, lambda worker, _: proxies[worker].hush(), start)


def pgbouncer(rounds: int, directory: str) -> Iterator[float]:
    """kill -9 of a whole worker behind PgBouncer"""
    if not shutil.which("pgbouncer"):
        return
    with ExitStack() as closing:
        pools: dict[Queue, str] = {}

        def start(queue: Queue) -> Worker:
            if queue not in pools:
                pools[queue] = closing.enter_context(pooler(queue, Path(tempfile.mkdtemp(dir=directory))))
            return queue.start("--concurrency", "2", "--dsn", pools[queue])

        yield from again(rounds, directory, lambda worker, _: worker.signal(signal.SIGKILL), start)


def restart(rounds: int, directory: str) -> Iterator[float]:
    """PostgreSQL is stopped (immediate) and started again"""
    with fresh(directory) as (server, queue):
        for _ in range(2):
            plain()(queue)
        completed = "select count(*) from pyworker.finished_jobs"
        for _ in range(rounds):
            queue.rows(ADD, 200_000)  # one commit: jobs that come one by one would be done as quickly
            usual = statistics.median(rate(queue, completed) for _ in range(5))
            server.stop_immediately()
            server.start()
            answers = time.monotonic()
            queue.conn.close()
            queue.conn = psycopg.connect(server.url, autocommit=True, row_factory=namedtuple_row)
            while rate(queue, completed) < 0.9 * usual:
                assert queue.value("select count(*) from pyworker.jobs"), "there was too little to do"
            yield time.monotonic() - answers


def rate(queue: Queue, completed: str, window: float = 0.25) -> float:
    began, before = time.monotonic(), queue.value(completed)
    queue.rows("select pg_sleep(%s)", window)
    return (queue.value(completed) - before) / (time.monotonic() - began)


KINDS = [child, worker, stop, restart, host, network, pgbouncer]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("kinds", nargs="*", metavar="kind", help=", ".join(kind.__name__ for kind in KINDS))
    given = parser.parse_args()
    print(f"{'':10} {'rounds':>6} {'p50':>7} {'p90':>7} {'p99':>7} {'worst':>7}   seconds")
    for kind in KINDS:
        if not given.kinds or kind.__name__ in given.kinds:
            with tempfile.TemporaryDirectory() as directory:
                os.chmod(directory, 0o711)  # PgBouncer runs as another user, and needs its files
                took = sorted(kind(given.rounds, directory))
            if took:
                at = [took[min(int(len(took) * share), len(took) - 1)] for share in (0.5, 0.9, 0.99, 1)]
                print(
                    f"{kind.__name__:10} {len(took):6}",
                    *(f"{seconds:7.2f}" for seconds in at),
                    f"  {kind.__doc__}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
