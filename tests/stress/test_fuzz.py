# ruff: noqa: PT017
"""Every public function with all that its argument types allow: it does its work, or refuses with
a code of its own; it never breaks."""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Any

import psycopg
import pytest

CALLS = int(os.environ.get("PYWORKER_FUZZ", "100000"))
REFUSALS = {"PW001", "PW002", "PW003", "PW004", "PW005", "PW006"}
# Their answer, or their work, is not a matter of arguments.
LEFT_OUT = {"advance_clock", "conformance", "schema_version", "clock", "prune"}

TEXTS = [
    None, "", "t", "u", "q", "default", "k", "*", "q*", "%s %I %L $1", "'; drop table jobs; --", '"', "\\",
    "\n\t\x01", "é" * 128, "x" * 129,
    "x" * 513, "日本", "{}", "[]", "null", "replace", "reject", "0", "-1", "NaN", "a\u0301", "\U0001f600",
    "x" * 5000, "at_most_once",
]  # fmt: skip
INTEGERS = [None, 0, 1, 2, 3, 5, -1, 100, 32767, 32768, -32768, -32769, 2**31 - 1, -(2**31)]
BIGINTS = [None, 0, 1, 2, 3, 4, 5, 6, 7, 8, -1, 2**31, 2**63 - 1, -(2**63)]
TIMES = [
    None, "now", "infinity", "-infinity", "2000-01-01", "4713-01-01 BC", "294276-12-31 23:59:59+00",
    "2038-01-19 03:14:08+00", "tomorrow",
]  # fmt: skip
INTERVALS = [
    None, "0", "1 second", "-1 second", "1 month", "178000000 years", "-178000000 years", "2147483647 days",
    "1 microsecond", "25 hours",
    "00:00:00.000001", "1 mon -30 days", "596523:14:07",
]  # fmt: skip
JSON = [
    None, "null", "{}", "[]", "1", '"x"', "true", '{"a":1}', '{"a":null}',
    '{"a":{"b":[1,2,{"c":"\\u00e9"}]}}', '{"keys":["type","args"]}',
    '{"keys":["type"],"on_conflict":"replace"}', '{"by_args":true}',
    '{"by_args":["a"],"by_period":"1 second"}', '{"key":"s"}', '{"key":""}',
    '{"by_args":["a"],"continue_on_discarded":true}', '{"period":"P9999999999Y"}', '{"states":[]}',
    '{"unknown":1}', "1e308", "-0", "1e400",
    '{"a":1e131071}', '{"a":12345678901234567890}', '{"by_period":1e300}',
    '{"strategy":"exponential","factor":100,"max":1e9}', '["1 s", 5]',
    '[{"identifier":"t"}]',
    '[{"identifier":"t","payload":{"a":1},"job_key":"k"},{"identifier":"t","job_key":"k"}]',
    '[{"identifier":""}]', "[[]]",
    '[{"id":1,"run":1,"error":"e"}]', '[{"id":2,"run":1,"discard":true}]',
    '[{"id":3,"run":1,"delay":"178000000 years"}]',
    '[{"id":4,"run":1,"delay":1e18}]', '[{"id":1e40,"run":1}]',
    '[{"id":5,"run":1,"payload":[1],"cancel":true}]',
    '{"task_identifiers":5,"queue_names":{},"forbidden_flags":[null]}', '{"": 1, "a.b": 2}',
    '"\\ud83d\\ude00"',
]  # fmt: skip


def value(rng: random.Random, kind: str, ids: list[int]) -> Any:
    if kind.endswith("[]"):
        return (
            None
            if rng.random() < 0.1
            else [value(rng, kind[:-2], ids) for _ in range(rng.choice([0, 1, 1, 2, 3, 8]))]
        )
    if kind == "bigint" and rng.random() < 0.7:  # a job or a worker that is there
        return rng.choice(ids)
    if kind == "integer" and rng.random() < 0.3:  # a run
        return 1
    pool: list[Any] = {
        "text": TEXTS, "integer": INTEGERS, "bigint": BIGINTS, "timestamp with time zone": TIMES,
        "interval": INTERVALS,
        "jsonb": JSON, "json": JSON, "boolean": [None, True, False],
        "smallint": [n for n in INTEGERS if n is None or abs(n) < 32768],
        "double precision": [None, 0, 0.4, -1, 1e308, "NaN", "Infinity"],
        "xid8": [None, "0", "3", "5", "1000000", "18446744073709551615"],
    }[kind]  # fmt: skip
    return rng.choice(pool)


def functions(api: Any) -> list[tuple[str, list[str], list[str], int]]:
    rows = api.rows(
        "select p.proname, p.proargnames[:p.pronargs] as names, p.pronargdefaults,"
        " array(select format_type(t, null) from unnest(p.proargtypes) with ordinality a(t, n) "
        "order by n) as kinds"
        " from pg_proc p where p.pronamespace = 'pyworker'::regnamespace and p.proname not like E'\\\\_%'"
        " and p.provariadic = 0 and p.prorettype <> 'trigger'::regtype order by p.oid"
    )
    return [
        (row.proname, row.names or [], row.kinds, row.pronargdefaults)
        for row in rows
        if row.proname not in LEFT_OUT and not any("job_spec" in kind for kind in row.kinds)
    ]


def populate(conn: psycopg.Connection[Any]) -> list[int]:
    """A few jobs in every state, of every kind; and a worker. Their ids."""
    conn.execute("select pyworker.register_worker()")
    for named in (
        "", ", job_key => 'k'", ", queue_name => 'q'", """, sequence_policy => '{"key": "s"}'""",
        """, unique_policy => '{"by_args": true}'""",
        ", run_at => now() + interval '1 hour'", ", delivery => 'at_most_once'", ", max_attempts => 1",
    ):  # fmt: skip
        conn.execute(f"select pyworker.add_job('t'{named})")
    conn.execute("select pyworker.claim_jobs((select max(id) from pyworker.live_workers), 5)")
    ids = (
        "select id from pyworker.jobs union all (select id from pyworker.live_workers "
        "order by id desc limit 1)"
    )
    return [row[0] for row in conn.execute(ids)]


def fuzz(conn: psycopg.Connection[Any], api: Any, calls: int, seed: int) -> Counter[str]:
    rng = random.Random(seed)
    known = functions(api)
    outcomes: Counter[str] = Counter()
    ids: list[int] = []
    conn.execute("set lock_timeout = '10s'; set statement_timeout = '20s'")
    for n in range(calls):
        if n % 50 == 0:
            conn.rollback()
            conn.execute("begin")
            ids = populate(conn)
        name, names, kinds, defaults = rng.choice(known)
        given = [
            (argument, kind)
            for at, (argument, kind) in enumerate(zip(names, kinds, strict=True))
            if at < len(names) - defaults or rng.random() < 0.3
        ]
        values = [value(rng, kind, ids) for _, kind in given]
        arguments = ", ".join(f'"{argument}" => %s::{kind}' for argument, kind in given)
        call = f"select * from pyworker.{name}({arguments})"
        conn.execute("savepoint one")
        try:
            conn.execute(call, values)
            conn.execute("release one")
            outcomes["done"] += 1
        except psycopg.Error as error:
            assert not conn.closed, (call, values)
            state = error.sqlstate or ""
            # The casts are the caller's: what no value of the type can be never reaches us.
            in_cast = state.startswith("22") and "function" not in str(error.diag.context or "")
            assert state in REFUSALS or in_cast, (state, str(error), call, values)
            outcomes["cast" if in_cast else state] += 1
            conn.execute("rollback to one")
    conn.rollback()
    return outcomes


def test_no_argument_breaks_a_function(api: Any, actor: Any) -> None:
    print(dict(fuzz(actor().conn, api, 4000, 1)))


@pytest.mark.torture
def test_no_argument_breaks_a_function_for_a_long_time(api: Any, actor: Any) -> None:
    print(dict(fuzz(actor().conn, api, CALLS, random.randrange(10**9))))
