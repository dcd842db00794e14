"""The floors: a table and one statement per step, or pyworker's functions, in a bare loop."""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

import ours
import psycopg
from repl import DSN, TRAIL, chunks, now, payload, serve

KIND, BATCH = sys.argv[1], int(sys.argv[2])
TABLE = """
    create table jobs (
        id bigint generated always as identity primary key, priority integer not null default 0,
        worker integer, run_at timestamptz not null default now(), task text not null, payload json not null
    ) with (fillfactor = %s);
    create index on jobs (priority, run_at, id)"""
TAKE = f"""
    delete from jobs
    where id = any(array(
        select id from jobs where run_at <= now()
        order by priority, run_at, id limit {BATCH} for update skip locked))
    returning id, payload"""
# What it costs to lose no job when a worker dies: mark the job, and delete it when it is done.
MARK = f"""
    update jobs set worker = 1
    where id = any(array(
        select id from jobs where run_at <= now() and worker is null
        order by priority, run_at, id limit {BATCH} for update skip locked))
    returning id, payload"""
DELETE = "delete from jobs where id = any(%s)"
CLAIM = f"select id, run, payload from pyworker.claim_jobs(%s, {BATCH})"
FINISH = "select pyworker.finish_jobs(%s::bigint[], %s::bigint[])"
pause = threading.Event()
done = 0


def setup(*statements: str) -> None:
    if KIND == "functions":
        return ours.setup(*statements)
    with psycopg.connect(DSN, autocommit=True) as conn:
        # Rows that are updated need room for their new versions on the page.
        conn.execute((TABLE % (50 if KIND == "two steps" else 100)).encode())


def add(n: int) -> None:
    ours.call(n, "insert into jobs (task, payload) values ('noop', %s)")


def bulk(n: int) -> None:
    for chunk in chunks(n):
        specs = json.dumps([payload(i) for i in chunk])
        ours.connections[0].execute(
            "insert into jobs (task, payload) select 'noop', value from json_array_elements(%s::json)",
            [specs],
        )


def work(*_: Any) -> None:
    threading.Thread(target={"table": take, "two steps": mark, "functions": claim}[KIND], daemon=True).start()


def did(rows: int) -> None:
    """Record progress as the handlers of the others do."""
    global done
    done, before = done + rows, done // 1000
    if done // 1000 > before:
        os.write(TRAIL, b"%f %d\n" % (now(), (done // 1000 - before) * 1000))


def take() -> None:
    with psycopg.connect(DSN, autocommit=True) as conn:
        while True:
            rows = conn.execute(TAKE).fetchall()
            did(len(rows))
            if not rows:
                pause.wait(0.02)


def mark() -> None:
    with psycopg.connect(DSN, autocommit=True) as conn:
        ids: list[int] = []
        while True:
            with conn.pipeline():
                if ids:
                    conn.execute(DELETE, [ids])
                cursor = conn.execute(MARK)
            rows = cursor.fetchall()
            did(len(rows))
            ids = [row[0] for row in rows]
            if not rows:
                pause.wait(0.02)


def claim() -> None:
    with psycopg.connect(DSN, autocommit=True) as conn:
        worker = conn.execute("select pyworker.register_worker()").fetchone()[0]
        threading.Thread(target=beat, args=[worker], daemon=True).start()
        ids: list[int] = []
        runs: list[int] = []
        while True:
            with conn.pipeline():
                if ids:
                    conn.execute(FINISH, [ids, runs])
                cursor = conn.execute(CLAIM, [worker])
            rows = cursor.fetchall()
            did(len(rows))
            ids, runs = [row[0] for row in rows], [row[1] for row in rows]
            if not rows:
                pause.wait(0.02)


def beat(worker: int) -> None:
    with psycopg.connect(DSN, autocommit=True) as conn:
        while not pause.wait(4):
            conn.execute("select pyworker.heartbeat(%s)", [worker])


if __name__ == "__main__":
    serve({verb.__name__: verb for verb in (setup, ours.connect, add, ours.call, bulk, work)})
