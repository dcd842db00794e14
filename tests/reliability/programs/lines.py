"""What each program of a contender does: a producer answers a call a line, a handler writes down its begin
and its end. (lines.mjs and river.go do the same.)

A call: {"op": 7, "kind": "plain", "end": "commit", "key": null, "delay": 0, "ms": 30}. The producer adds
the job in a transaction and ends that as told. Its answer: {"op": 7, "phase": "ok" or "rolled back"}; with
the end "hang" it says "added" and waits to be killed. An error is the phase "unknown".
"""

import json
import os
import sys
import time

_runs = os.open(os.environ["REPORT_RUNS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def write(what, **fields):
    event = {"what": what, "t": time.time(), **fields, "process": os.getpid()}
    os.write(_runs, (json.dumps(event) + "\n").encode())


def up():
    write("process", phase="up")


def run_of(payload, job, attempt):
    return {"op": payload["op"], "job": job, "attempt": attempt}


def answer(**fields):
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def payload_of(call):
    return {name: call[name] for name in ("op", "key", "ms")}
