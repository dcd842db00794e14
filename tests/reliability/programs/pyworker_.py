"""pyworker: add_job in a transaction of psycopg's."""

import json
import os
import sys
import threading
from datetime import timedelta

import psycopg
from lines import answer, payload_of

import pyworker
from pyworker._db.migrations import migrate

DSN = os.environ["DATABASE_URL"]


def setup():
    with psycopg.connect(DSN, autocommit=True) as conn:
        migrate(conn)


def options_of(call):
    if call["kind"] == "unique":
        return {"unique_policy": {"by_args": ["key"]}, "delay": timedelta(seconds=call["delay"])}
    return {"sequence_policy": {"by_args": ["key"]}} if call["kind"] == "sequence" else {}


def produce():
    conn = None
    answer(ready=True)
    for line in sys.stdin:
        call = json.loads(line)
        try:
            if conn is None or conn.closed:
                conn = psycopg.connect(DSN)
            pyworker.add_job(conn, call["kind"], payload_of(call), **options_of(call))
            if call["end"] == "hang":
                answer(op=call["op"], phase="added")
                threading.Event().wait()
            (conn.commit if call["end"] == "commit" else conn.rollback)()
            answer(op=call["op"], phase="ok" if call["end"] == "commit" else "rolled back")
        except Exception as error:
            if conn is not None:
                conn.close()
            answer(op=call["op"], phase="unknown", error=str(error))


{"setup": setup, "produce": produce}[sys.argv[1]]()
