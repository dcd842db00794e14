"""A worker by docs/protocol.md alone: python minimal_worker.py MODULE, with a dict MODULE.HANDLERS by task"""

import importlib
import json
import os
import signal
import sys
import threading
import time

import psycopg
from psycopg.rows import namedtuple_row

HOW = {"autocommit": True, "row_factory": namedtuple_row, "connect_timeout": 5, "tcp_user_timeout": 10000}
URL, SCHEMA = os.environ.get("DATABASE_URL", ""), os.environ.get("PYWORKER_SCHEMA", "pyworker")
WORK = f"select * from {SCHEMA}.work(%s, %s::bigint[], %s::bigint[], null, %s::jsonb, %s, %s)"  # noqa: S608
BEAT = f"select * from {SCHEMA}.beat(%s, %s::bigint[], %s::bigint[], true)"  # noqa: S608
START = f"select {SCHEMA}.start_job(%s, %s)"
my = {"held": ([], []), "until": 1e99, "end": False}  # the job that runs, how long it may; was I told to end?


def beat(worker):  # in a thread; ends the process if a handler must stop: others get its job in two seconds
    with psycopg.connect(URL, **HOW, options="-c statement_timeout=4s") as conn:  # of a schedule's query
        while time.monotonic() < my["until"]:
            held = my["held"]
            alive, *stops = conn.execute(BEAT, [worker, *held]).fetchall()
            if alive.kind == "dead" and not any(my["held"]):
                return
            if alive.kind == "dead" or (my["held"] is held and "lost" in [stop.why for stop in stops]):
                break
            time.sleep(alive.next_in_s)
        os._exit(70)


def perform(conn, handler, job):  # returns done_ids, done_runs, reports
    if job.delivery == "at_most_once" and not conn.execute(START, [job.id, job.run]).fetchone()[0]:
        return [], [], [{"id": job.id, "run": job.run, "do": "release"}]
    try:
        my.update(held=([job.id], [job.run]), until=time.monotonic() + (job.timeout_s or 1e9))
        handler(job.payload)
    except BaseException as error:
        text = repr(error).replace("\0", "\ufffd")
        return [], [], [{"id": job.id, "run": job.run, "do": "fail", "error": text}]
    finally:
        my.update(held=([], []), until=1e99)
    return [job.id], [job.run], []


def run(conn, handlers, ended=([], [], [])):
    (worker,) = conn.execute(f"select {SCHEMA}.open_worker() -> 'worker'").fetchone()
    threading.Thread(target=beat, args=[worker], daemon=True).start()
    while any(ended) or not my["end"]:
        call = [worker, *ended[:2], json.dumps(ended[2]), 0 if my["end"] else 1, [*handlers]]
        *rows, turn = conn.execute(WORK, call).fetchall()
        jobs = [row for row in rows if row.kind == "job"]  # one at most
        ended = perform(conn, handlers[jobs[0].task_identifier], jobs[0]) if jobs else ([], [], [])
        if not rows and not my["end"]:
            list(conn.notifies(timeout=min(turn.again_in_s, 1), stop_after=1))
    conn.execute(f"select {SCHEMA}.close_worker(%s)", [worker])


signal.signal(signal.SIGTERM, lambda *_: my.update(end=True))
threading.excepthook = lambda _: os._exit(70)
with psycopg.connect(URL, **HOW) as conn:
    conn.execute(f"listen {SCHEMA}")
    while not my["end"]:
        try:
            run(conn, importlib.import_module(sys.argv[1]).HANDLERS)
        except psycopg.DatabaseError as error:
            if error.sqlstate != "PW004":
                raise
