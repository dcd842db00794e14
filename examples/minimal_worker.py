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
WORK = f"""select w.* from {SCHEMA}.read_reports(%s::bigint[], %s::bigint[], %s::text[]) r,
    {SCHEMA}.work(%s, r.done_ids, r.done_runs, r.done_results, r.reports, %s, %s) w"""  # noqa: S608
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


def perform(conn, handler, job):  # returns the report, as JSON
    if job.delivery == "at_most_once" and not conn.execute(START, [job.id, job.run]).fetchone()[0]:
        return '{"do": "release"}'
    try:
        my.update(held=([job.id], [job.run]), until=time.monotonic() + (job.timeout_s or 1e9))
        return json.dumps({"do": "done", "result": handler(job.payload)})
    except BaseException as error:
        return json.dumps({"do": "fail", "error": repr(error)})
    finally:
        my.update(held=([], []), until=1e99)


def run(conn, handlers, reports=([], [], [])):  # ids, runs, texts
    (worker,) = conn.execute(f"select {SCHEMA}.open_worker() -> 'worker'").fetchone()
    threading.Thread(target=beat, args=[worker], daemon=True).start()
    while any(reports) or not my["end"]:
        call = [*reports, worker, 0 if my["end"] else 1, [*handlers]]
        *rows, turn = conn.execute(WORK, call).fetchall()
        reports = ([], [], [])
        for job in [row for row in rows if row.kind == "job"]:  # one at most
            reports = [job.id], [job.run], [perform(conn, handlers[job.task_identifier], job)]
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
