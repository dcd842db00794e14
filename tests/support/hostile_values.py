"""What a caller can write where a function of SQL takes a value: by type, and for some arguments by name."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

# A string of each kind that has broken some program. NUL cannot be sent; its escapes can.
TEXTS = [
    None, "", " ", "t", "u", "q", "default", "k", "s", "*", "q*", "q:*", "**", "%", "_", "\\",
    "%s %I %L $1 %n",
    "'", "''", "'; drop table pyworker.jobs; --", '"', '""', "$$", "$1", "E'\\'",
    "') or pg_sleep(30) is null --",
    "pyworker.live_jobs", "pg_temp", "pg_catalog.now()", "current_user", "null", "NULL", "true",
    "\n\t\x01", "\x1b]0;x\x07", "\r\n", "\u202e", "\ufeff", "\u0085", "\ud7ff\ue000\uffff", "\U0010ffff",
    "é" * 128, "x" * 129, "x" * 513, "日本", "a\u0301", "\U0001f600", "\u0130\u0131\u1e9e\ufb03", "x" * 5000,
    "(a+)+$", "((((((((a*)*)*)*)*)*)*)*)*b", "a{255}{255}", "[[:alpha:", "(?=", "\\M\\m\\y", "%" * 3000,
    "a%" * 500,
    "{}", "[]", "{", "}", "{null}", "{{1,2},{3,4}}", "(,,,)", "()", "0", "-1", "1e400", "NaN", "Infinity",
    "replace", "reject", "ignore", "at_most_once", "infinity", "epoch", "P1Y", "\\u0000", '"\\u0000"',
    '"\\ud800"',
    '{"a":"\\udc00\\ud800"}', "[" * 10000 + "]" * 10000, '{"a":' * 10000 + "1" + "}" * 10000,
    "<script>alert(1)</script>",
    "javascript:alert(1)", "../../etc/passwd", "http://[::1]/", "18446744073709551616", "0x1f", "1_000", "٣",
]  # fmt: skip
INTEGERS = [None, 0, 1, 2, 3, 5, -1, 100, 32767, 32768, -32768, -32769, 2**31 - 1, -(2**31)]
BIGINTS = [None, 0, 1, 2, 3, 8, -1, 2**31, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)]
TIMES = [
    None, "now", "infinity", "-infinity", "2000-01-01", "4713-01-01 BC", "294276-12-31 23:59:59+00", "epoch",
    "2038-01-19 03:14:08+00", "tomorrow", "0001-01-01", "1970-01-01 00:00:00-15:59:59",
    "2026-03-29 02:30 Europe/Berlin",
]  # fmt: skip
INTERVALS = [
    None, "0", "1 second", "-1 second", "1 month", "178000000 years", "-178000000 years", "2147483647 days",
    "1 microsecond", "25 hours", "00:00:00.000001", "1 mon -30 days", "596523:14:07", "-1 day 24 hours",
    "infinity", "-infinity", "2562047788:00:54.775807", "1 year -365 days", "-1 microsecond",
]  # fmt: skip
FLOATS = [None, 0, -0.0, 0.4, 1, -1, 1e308, -1e308, 5e-324, "NaN", "Infinity", "-Infinity"]
XIDS = [None, "0", "1", "2", "3", "5", "1000000", "9223372036854775807", "18446744073709551615"]
JSON = [
    None, "null", "{}", "[]", "1", '"x"', "true", '{"a":1}', '{"a":null}', "[null]", "[[]]",
    '{"": 1, "a.b": 2}',
    '{"a":{"b":[1,2,{"c":"\\u00e9"}]}}', "1e308", "-0", "1e400", "1e-400", '{"a":1e131071}',
    '{"a":12345678901234567890}', "1e1000000", '"\\ud83d\\ude00"', '"\\ud800"', '{"\\udc00":1}', '"\\u0000"',
    '{"\\u0000":[]}',
    '{"a":1,"a":2,"a":{}}', "[" * 101 + "]" * 101, "[" * 10000 + "]" * 10000,
    '{"a":' * 5000 + "1" + "}" * 5000,
    '{"by_args":true}', '{"key":""}', '{"unknown":1}', "[1,2", "'", "{'a':1}", '{"a":NaN}',
]  # fmt: skip
# Right ones: what is hostile in them is put there by `mutated`.
SHAPES: list[Any] = [
    {"by_args": ["a"], "by_period": "1 second", "by_queue": True, "by_state": ["available"],
    "on_conflict": "replace"},
    {"keys": ["type", "args", "queue"], "period": "PT1S", "states": ["available", "active"],
    "on_conflict": "ignore"},
    {"key": "s", "continue_on_discarded": True, "continue_on_cancelled": True},
    {"by_args": ["a"], "by_queue": True},
    {"strategy": "exponential", "initial": "1 s", "factor": 2, "max": "1 hour", "jitter": 0.1},
    ["1 s", "5 min", 5],
    [1, {"id": 2, "on": "end"}, {"id": 3, "on": "failure", "ref": "a"}],
    [
        {"identifier": "t", "payload": {"a": 1}, "job_key": "k", "ref": "one", "queue_name": "q",
        "priority": 1},
        {"identifier": "u", "depends_on": ["one"], "run_at": "2030-01-01", "max_attempts": 2, "flags": ["f"]},
        {"identifier": "t", "unique_policy": {"by_args": True}, "sequence_policy": {"key": "s"},
        "meta": {"m": 1}},
    ],
    {"identifier": "t", "payload": [1], "delivery": "at_most_once", "expires_at": "2030-01-01",
    "max_wait": "1 hour",
     "job_key": "k"},
    [{"name": "s", "cron": "* * * * *", "identifier": "t", "timezone": "UTC", "payload": {},
    "backfill": "1 hour"}],
    {"name": "w", "host": "h", "pid": 1, "task_identifiers": ["t"], "queue_names": ["q"],
    "forbidden_flags": ["f"],
     "definitions": {"t": {"max_attempts": 3}}, "concurrency": 10, "memory": 2**30},
    {"condition": "live", "memory": 1, "running": 2},
    {"concurrency": "3", "rate_limit": "10", "rate_period": "1 minute", "fair": "true"},
]  # fmt: skip
CRONS = [
    "* * * * *", "0 0 31 2 *", "0 0 29 2 1", "*/1 */23 */31 */12 */7", "0-59/7 1,2,3 l * mon#1", "60 * * * *",
    "@daily",
    "1-99999999999999999999 * * * *", "*/0 * * * *", "* * * *", ", , , , ,", "*" * 2000, "0 4 * * mon-fri",
    "59-0 * * * *",
    ",".join(map(str, range(60))) + " * * * *", "* * * * * *",
]  # fmt: skip
ZONES = [
    "UTC", "Europe/Berlin", "Asia/Kathmandu", "<+03>-3", "XYZ-99", "posix/../../../etc/passwd", "UTC'; --",
    "a" * 300,
    "localtime", "Factory", "+25", "EST5EDT,M3.2.0,M11.1.0", "Antarctica/Troll", "",
]  # fmt: skip
QUERIES = [
    "select 't' as identifier", "select 1 as priority", "select * from pyworker.live_jobs",
    "select 1; select 2", "",
    "drop table pyworker.live_jobs", "select null::jsonb as payload", "values (1)",
    "select '{}'::text as payload, 1 as x",
    "select 1/0 as priority", "with x as (delete from pyworker.jobs returning 1) select 1", "reset role",
    "%L $q$ $body$",
    "select set_config('role', 'postgres', true)", "select pyworker.prune() as priority",
    "select 't' as identifier --",
    "select repeat('x', 2000000) as job_key", "select current_user as identifier, session_user as job_key",
]  # fmt: skip
ACTIONS = [
    "retry", "cancel", "force_cancel", "delete", "pause_queue", "resume_queue", "set_queue",
    "resume_sequence",
    "run_schedule", "pause_schedule", "resume_schedule", "restore", "undo", "drop",
]  # fmt: skip
STATES = [
    "scheduled", "pending", "available", "running", "retryable", "completed", "cancelled", "discarded",
    "active", "x",
]  # fmt: skip
BY_NAME: dict[str, list[Any]] = {
    "cron": CRONS, "timezone": ZONES, "query": QUERIES, "query_role": ["pyworker_reader", "postgres", "none",
    "public"],
    "action": ACTIONS, "states": STATES, "by_state": STATES, "level": ["debug", "info", "warning", "error",
    "fatal"],
    "kind": ["task", "queue", "x"], "sort_by": ["id", "run_time", "attempts", "payload"], "on": ["success",
    "end", "failure"],
    "on_conflict": ["ignore", "reject", "replace"], "job_key_mode": ["replace", "preserve_run_at",
    "unsafe_dedupe"],
    "delivery": ["at_least_once", "at_most_once"], "identifier": ["t", "u"], "queue_name": ["q", "q:1", "q:*",
    "paused"],
    "job_key": ["k", "l"], "sequence_key": ["s"], "name": ["s", "go", "w"], "worker": ["w"], "actor": ["ada"],
    "argument": ["payload", "meta", "specs"], "content": [
        "* * * * * t ?id=a&fill=1d2h {a: 1}\n@daily u ?jobKey=k", "* * * * * t ?fill=" + "9" * 400 + "y",
        "\n" * 10000,
        "* * * * * t ?id=%00&max=99999999999", "* * * * * t {\"a\": \"\\ud800\"}",
        "#" * 10000 + "\n* * * * * t ?&&&===",
    ],
    "search": ["t", "1", "%", "_", "\\", "(a+)+$", "%%%%%%%%%%%%%%%%%%%%a", "x" * 100000, "[", "*"],
    "minutes": [1, 60, 1440, 10080, 10**6], "step": [1, 15, 10**6], "protocol": [1, 2],
}  # fmt: skip
HUGE: list[Callable[[], str]] = [
    lambda: "x" * 10_000_000,
    lambda: json.dumps("x" * 10_000_000),
    lambda: "[" + "1," * 2_000_000 + "1]",
    lambda: json.dumps({f"k{n}": n for n in range(300_000)}),
    lambda: "1" * 10_000_000,
    lambda: "%" * 10_000_000,
    lambda: "* " * 5_000_000,
]


class Values:
    """Random values for arguments. jobs: (id, run) of jobs that are there; workers: ids."""

    def __init__(self, rng: random.Random, huge: float) -> None:
        self.rng, self.huge = rng, huge
        self.jobs: list[tuple[int, int]] = []
        self.workers: list[int] = []

    def of(self, name: str, kind: str) -> Any:
        """A value of this type, as text or number; lists for arrays."""
        rng = self.rng
        if kind.endswith("[]"):
            return self._array(name, kind[:-2])
        if kind.startswith("pyworker."):
            return self._row()
        if kind == "bigint" and rng.random() < 0.75:
            return self._id(name)
        if (named := BY_NAME.get(name)) and rng.random() < 0.6:
            return rng.choice(named)
        if kind in ("json", "jsonb"):
            return self._json()
        if kind == "text" and rng.random() < self.huge:
            return rng.choice(HUGE)()
        if kind == "text" and name in ("payload", "specs", "value") and rng.random() < 0.5:
            return self._json()
        pools: dict[str, list[Any]] = {
            "text": TEXTS, "integer": INTEGERS, "bigint": BIGINTS, "timestamp with time zone": TIMES,
            "interval": INTERVALS,
            "boolean": [None, True, False], "double precision": FLOATS, "xid8": XIDS,
        }  # fmt: skip
        return rng.choice(pools[kind])

    def _id(self, name: str) -> int:
        if name.startswith("worker") and self.workers and self.rng.random() < 0.8:
            return self.rng.choice(self.workers)
        job, run = self.rng.choice(self.jobs)
        return run if name in ("run", "runs", "done_runs") and self.rng.random() < 0.9 else job

    def _array(self, name: str, kind: str) -> Any:
        rng = self.rng
        if rng.random() < 0.1:
            return None
        if name in ("job_ids", "done_ids", "runs", "done_runs") and rng.random() < 0.5:
            # Ids and runs that fit each other: both lists are of the same jobs.
            at = rng.randrange(len(self.jobs))
            return [self.jobs[at]["runs" in name]]
        items = [self.of(name, kind) for _ in range(rng.choice([0, 1, 1, 2, 3, 8]))]
        if rng.random() < 0.05 and items:  # of two dimensions
            return [items, list(items)]
        if rng.random() < 0.002 and items and all(len(str(item)) < 20 for item in items):
            return items * (100_000 // len(items))
        return items

    def _row(self) -> str | None:
        """A composite as text; the number of its members may be wrong."""
        if self.rng.random() < 0.1:
            return None
        members = [self.rng.choice([None, None, *TEXTS, *JSON, "{f}", "3", "2030-01-01"]) for _ in range(8)]
        members[0] = self.rng.choice(["t", members[0]])
        if self.rng.random() < 0.5:
            members[3:7] = ["2030-01-01", "2", "k", "1"]
        quoted = [
            "" if m is None else '"' + m.replace("\\", "\\\\").replace('"', '""') + '"' for m in members
        ]
        return f"({','.join(quoted)})"

    def _json(self) -> str | None:
        rng = self.rng
        if rng.random() < self.huge:
            return rng.choice(HUGE[1:4])()
        if rng.random() < 0.4:
            return rng.choice(JSON)
        shape = [self._report(), self._report()] if rng.random() < 0.3 else rng.choice(SHAPES)
        text = json.dumps(self.mutated(shape))
        # Half a surrogate pair, which json.dumps has escaped, or a number that Python does not know.
        return text.replace('"+1e400"', "1e400").replace('"+1e-9999"', "1e-9999").replace('"+9"', "9" * 400)

    def _report(self) -> Any:
        rng = self.rng
        job, run = rng.choice(self.jobs)
        done = ["fail", "discard", "cancel", "not_started", "snooze", "release", "log"]
        return {
            "id": job, "run": rng.choice([run, str(run)]), "do": rng.choice(done), "error": "e", "delay_s": 1,
            "delay": "1 s",
            "message": "m", "level": "info", "ago_s": 0.5, "discard": rng.random() < 0.3,
            "cancel": rng.random() < 0.3,
        }  # fmt: skip

    def mutated(self, value: Any) -> Any:
        """The same JSON, with one to three of its parts replaced, dropped or moved."""
        value = json.loads(json.dumps(value))
        for _ in range(self.rng.choice([0, 1, 1, 1, 2, 3])):
            value = self._one(value)
        return value

    def _one(self, value: Any) -> Any:
        rng = self.rng
        if not value or not isinstance(value, dict | list) or rng.random() < 0.05:
            return self._part()
        at = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        deed = rng.random()
        if deed < 0.15:
            del value[at]
        elif deed < 0.25 and isinstance(value, dict):
            value[str(rng.choice(TEXTS))[:200]] = self._part()
        elif deed < 0.5 and isinstance(value[at], dict | list):
            value[at] = self._one(value[at])
        else:
            value[at] = self._part()
        return value

    def _part(self) -> Any:
        rng = self.rng
        pool: list[Any] = rng.choice([TEXTS, INTEGERS, BIGINTS, TIMES, INTERVALS, SPECIAL, SPECIAL])
        return copy.deepcopy(rng.choice(pool))  # it may be changed in its turn


SPECIAL: list[Any] = [
    None, True, False, [], {}, [None], [[]], {"a": {}}, 1e308, -1e308, 0.1, 1e18, 2**64, -0.5, "+1e400",
    "+1e-9999", "+9",
    "\ud800", "\udc00\ud800", "\x00", "1 s", "PT1S", ["1 s"] * 2000, {"id": 1}, [1, 2], "5", 10**30,
    {"": None},
]  # fmt: skip
