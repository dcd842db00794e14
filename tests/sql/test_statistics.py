"""A call looks at as many rows whatever statistics PostgreSQL has: say those of a table of scheduled jobs,
since there were no others at the last ANALYZE."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.plans import touched

pytestmark = pytest.mark.slow

MANY = 1000
IN_SEQUENCE = "'payload', jsonb_build_object('c', {}), 'sequence_policy', '{{\"by_args\": [\"c\"]}}'::jsonb"
LATER = "'run_at', pyworker.clock() + interval '1 day'"
# What the table held when it was analyzed: members of the specs of MANY jobs.
ANALYZED = {
    "available jobs": "'priority', n % 7",
    "scheduled jobs": LATER,
    "scheduled jobs of a queue": f"'queue_name', 'q', {LATER}",
    "jobs of many queues": "'queue_name', 'q' || n",
    "jobs of many sequences": IN_SEQUENCE.format("n / 3"),
    "scheduled jobs with keys": f"'job_key', n::text, {LATER}",
}
SETTINGS = """select pyworker.set_queue('c:*', 2); select pyworker.set_queue('r:*', null, 5, '1 hour');
    select pyworker.set_queue('f:*', 3, null, null, true)"""
WORLD = [
    "'queue_name', 'c:' || n % 300", "'queue_name', 'r:' || n % 300", "'queue_name', 'f:' || n % 300",
    "'queue_name', 'serial'", "'queue_name', 'c:large'", "'priority', n % 7", "'job_key', 'k' || n",
    IN_SEQUENCE.format("n % 900"), IN_SEQUENCE.format("'large'"), LATER, f"'queue_name', 'c:' || n, {LATER}",
    "'unique_policy', '{\"keys\": [\"args\"]}'::jsonb, 'payload', n",
]  # fmt: skip
ADD = "select from pyworker.add_job('t', {})"
SEQUENCE = 'payload := \'{{"c": {}}}\', sequence_policy := \'{{"by_args": ["c"]}}\''
HELD = "%(ids)s::bigint[], %(runs)s::bigint[]"
FAILED = (
    "select pyworker.fail_jobs((select jsonb_agg(jsonb_build_object('id', h.id, 'run', h.run{})) "
    f"from unnest({HELD}) h(id, run)))"
)
CALLS = {
    **{f"add: {how}": ADD.format(how) for how in (
        "priority := 1", "queue_name := 'serial'", "queue_name := 'c:7'", "queue_name := 'c:new'",
        "queue_name := 'r:7'", "queue_name := 'f:7'", "job_key := 'k77'", "job_key := 'new'",
        SEQUENCE.format(7), SEQUENCE.format('"large"'), SEQUENCE.format('"new"'),
        "payload := 'true', unique_policy := '{\"keys\": [\"args\"]}'", "depends_on := '[7]'",
        "expires_at := now() + interval '1 day'")},
    "add_jobs": "select from pyworker.add_jobs((select jsonb_agg(jsonb_build_object('identifier', 't', "
        "'queue_name', q.name)) from unnest('{c:8,c:newer,r:8,r:new,serial}'::text[]) q(name)))",
    "cancel": "select pyworker.cancel_job(7)",
    "remove": "select pyworker.remove_job('k12')",
    "promote": "select pyworker.promote_jobs()",
    "claim": "select id, run from pyworker.claim_jobs(1, 60)",
    "finish": f"select pyworker.finish_jobs({HELD})",
    "claim again": "select id, run from pyworker.claim_jobs(1, 60)",
    "fail": FAILED.format(""),
    "claim and discard": "select id, run from pyworker.claim_jobs(1, 60)",
    "discard": FAILED.format(", 'discard', true"),
    "claim and release": "select id, run from pyworker.claim_jobs(1, 60)",
    "release": f"select pyworker.release_jobs({HELD})",
    "claim of one task": "select id, run from pyworker.claim_jobs(1, 300, '{member}')",
    "a callback that waits": "select from pyworker.explain_job(%(callback)s)",
    "its graph": "select from pyworker.job_graph(%(callback)s)",
    "ends of jobs that it waits for": f"select pyworker.finish_jobs({HELD})",
    "and its look at them": "select pyworker.promote_jobs()",
    "a callback that may run": "select from pyworker.explain_job(%(callback)s)",
    "what it reads": "select from pyworker.dependency_results(%(callback)s)",
    "delete_job": "select pyworker.delete_job(%(callback)s)",
    "set_queue": "select pyworker.set_queue('c:5', 3)",
    "pause_queue": "select pyworker.pause_queue('c:6')",
    "resume_queue": "select pyworker.resume_queue('c:6')",
    "promote what changed": "select pyworker.promote_jobs()",
    "turn": "select id, run from pyworker.work(1, null, null, null, null, 20)",
    "beat": "select from pyworker.beat(1)",
    "list_queues": "select from pyworker.list_queues(max_queues := 20)",
    "close_worker": "select from pyworker.close_worker(1)",
}  # fmt: skip
BATCH = """select max(id) from pyworker.add_batch(
    (select jsonb_agg('{"identifier": "member"}'::jsonb) from generate_series(1, 300)),
    '{"identifier": "callback"}')"""
# Before each call, so that its reads do not depend on how soon it comes after the last one: a sweep is due,
# no worker listens, and the session remembers no floor.
RESTED = """
    select setval('pyworker.swept_at', (extract(epoch from clock_timestamp()) * 1000)::bigint - 1000);
    select setval('pyworker.listening_until', 0);
    select set_config('pyworker.floor_' || walk, '', false) from unnest('{ready,due,expired}'::text[]) walk"""
TABLES = ("live_jobs", "queues", "promotion_requests", "edges", "watches", "starts", "unique_keys", "claims")


def fill(api: Any, members: str) -> None:
    api.rows(
        "select from pyworker.add_jobs((select jsonb_agg(jsonb_build_object('identifier', 't', "
        f"{members})) from generate_series(1, {MANY}) n))"
    )


def empty(api: Any) -> None:
    api.rows(
        f"truncate {', '.join(f'pyworker.{table}' for table in TABLES)}, "
        "pyworker.workers, pyworker.finished_jobs, pyworker.errors restart identity; "
        "alter sequence pyworker.job_ids restart"
    )


def looks(api: Any, watched: Any) -> dict[str, dict[str, float]]:
    """Of each call: how many rows it looks at, by the way that it finds them."""
    api.register_worker()
    api.rows(SETTINGS)
    for members in WORLD:
        fill(api, members)
    callback = api.value(BATCH)
    for _ in range(30):
        api.promote_jobs()
    while api.value("select exists (select from pyworker.held_settings)"):  # about a second
        api.promote_jobs()
    api.rows("select from pyworker.live_jobs for share")  # promotions look closer at rows that were locked
    found: dict[str, dict[str, float]] = {}
    held: list[Any] = []
    for name, sql in CALLS.items():
        params = {"ids": [row.id for row in held], "runs": [row.run for row in held], "callback": callback}
        watched(lambda a: a.rows(RESTED))
        plans = watched(lambda a, sql=sql, params=params: a.rows(sql, params if "%(" in sql else None))
        if sql.startswith("select id"):
            held = [row for row in watched.result if row.id]
        found[name] = {
            f"{table}: {way}": rows for table in TABLES for way, rows in touched(plans, table).items()
        }
    return found


def test_a_call_looks_at_as_many_rows_whatever_the_table_held_when_it_was_analyzed(
    api: Any, worker: int, watched: Any
) -> None:
    found = {}
    for name, several in {
        "nothing": (),
        **{name: (one,) for name, one in ANALYZED.items()},
        "all": WORLD,
    }.items():
        empty(api)
        for members in several:
            fill(api, members)
        if name == "all":
            api.value(BATCH)
        api.rows("analyze")
        empty(api)
        found[name] = looks(api, watched)
    empty(api)
    api.rows("analyze")
    for call in CALLS:
        rows = {name: sum(ways[call].values()) for name, ways in found.items()}
        # Where a look takes long, as on a busy machine, a call may promote besides.
        assert max(rows.values()) <= 3 * min(rows.values()) + 300, (
            call,
            {n: w[call] for n, w in found.items()},
        )
