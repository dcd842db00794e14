"""A steady rate: clients add jobs by plain SQL, each at its time, and one worker runs them one by one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
from measure import cpu
from stage import Site, percentiles
from workloads import STATEMENTS, await_lines

CLIENTS = 8
WARM = 2.0  # seconds at the same rate, before anything is measured
SETTLE = 11.0  # seconds after which all backends have counted their commits: an idle one waits for 10
BACKENDS = """
    select from pg_stat_activity
    where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()"""


class Clients:
    def __init__(self, connections: list[psycopg.Connection[Any]], statement: str) -> None:
        self._connections, self._statement = connections, statement.encode()

    def cpu(self) -> float:
        """CPU seconds of their backends."""
        return sum(cpu(conn.info.backend_pid) for conn in self._connections)

    def add(self, jobs: int, rate: int) -> tuple[int, float]:
        """The i-th job is added i / rate seconds after the first, or at once when that is over: a client
        that was late catches up, but gives up after twice that time. Returns how many jobs were added, and
        how many seconds that took."""
        began = time.monotonic()
        added = [0] * CLIENTS

        def loop(client: int) -> None:
            for number in range(client, jobs, CLIENTS):
                time.sleep(max(began + number / rate - time.monotonic(), 0))
                if time.monotonic() - began > 2 * jobs / rate:
                    break
                moment = json.dumps({"t": time.monotonic()})
                self._connections[client].execute(self._statement, [moment])
                added[client] += 1

        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(loop, range(CLIENTS)))
        return sum(added), time.monotonic() - began


@contextmanager
def clients_of(site: Site) -> Iterator[Clients]:
    statement = STATEMENTS[site.contender.name].format(task="steady", payload="%s")
    with ExitStack() as stack:
        connect = [psycopg.connect(site.dsn, autocommit=True, prepare_threshold=0) for _ in range(CLIENTS)]
        yield Clients([stack.enter_context(conn) for conn in connect], statement)


def steady(
    site: Site, rate: int, seconds: float, concurrency: int = 0, pinned: bool = False, beside: str = ""
) -> dict[str, float]:
    """What a job costs, and when its handler starts, where jobs come one by one all the time. `pinned`: a
    session holds an old snapshot meanwhile. `beside`: adds other jobs before."""
    if beside:
        site.conn.execute(beside.encode())
        site.conn.execute("vacuum analyze")
        site.raise_floor()
    site.start().ask("work", concurrency or site.contender.concurrency, True)
    planned, warm = int(rate * seconds), int(rate * WARM)
    with ExitStack() as stack:
        if pinned:
            pin = stack.enter_context(psycopg.connect(site.dsn))
            pin.execute("set transaction isolation level repeatable read")
            pin.execute("select txid_current_snapshot()")
        clients, size = stack.enter_context(clients_of(site)), _size(site)
        await_lines(site, clients.add(warm, rate)[0])
        site.trail.write_text("")
        time.sleep(SETTLE)
        commits = _commits(site)
        with site.measured(planned) as found:
            before = clients.cpu()
            jobs, took = clients.add(planned, rate)
            found["n"] = jobs
            await_lines(site, jobs)
            used = clients.cpu() - before
        grown = _size(site) - size
    site.end()
    while site.conn.execute(BACKENDS).rowcount:  # each counts its last commits when it ends
        time.sleep(0.01)
    commits = _commits(site) - commits - jobs  # without those of the adds
    more = {
        "jobs_s": jobs / took, "adds": used / jobs * 1000, "commits": commits / jobs, "size": grown / jobs
    }  # fmt: skip
    return found | more | percentiles(site.trail)


def _size(site: Site) -> int:
    return int(site.conn.execute("select pg_database_size(current_database())").fetchone()[0])


def _commits(site: Site) -> int:
    found = site.conn.execute("select xact_commit from pg_stat_database where datname = current_database()")
    return int(found.fetchone()[0])
