"""What sessions do, one line each, and the states from which they begin.

All verbs touch the same jobs: 1 has the key k, heads the sequence s and the queue q; 2 has a unique
key and is delivered at most once; 3 waits in the sequence, 4 in the queue; 5 is due, 6 has the key m.
In the state `graph` 1, 2 and 6 run; 7 depends on the ends of 2 and 6, 8 (key c) on the success of 1, 9 on 7,
and 10 waits for the signal go.
`%by` marks the jobs that a session adds. A verb returns what can be compared: no times, no new ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

WAITING, RUNNING, DEAD, ENDED, GRAPH = STARTS = ("waiting", "running", "dead", "ended", "graph")
ALL, RUNS, STILL = STARTS, (RUNNING, DEAD, GRAPH), (WAITING, ENDED)
LEVELS = {"rc": "read committed", "rr": "repeatable read", "ssi": "serializable"}

BEGIN = """
    select pyworker.register_worker() from generate_series(1, 3);
    select from pyworker.add_job('t', '[0]', queue_name => 'q', job_key => 'k',
        sequence_policy => '{"key": "s"}');
    select from pyworker.add_job('t', '{"n": 1}', delivery => 'at_most_once',
        unique_policy => '{"keys": ["args"]}');
    select from pyworker.add_job('t', sequence_policy => '{"key": "s"}');
    select from pyworker.add_job('t', queue_name => 'q');
    select from pyworker.add_job('t', '[5]', job_key => 'later',
        run_at => pyworker.clock() + interval '2 days');
    select from pyworker.add_job('t', '[6]', job_key => 'm');
    select from pyworker.add_schedule('tick', '0 0 1 1 *', 't', backfill => '2 years',
        meta => '{"by": "tick"}');
    select pyworker.promote_jobs();
    update pyworker.schedule_entries set next_at = date_trunc('year', pyworker.clock());
"""
DUE = """
    update pyworker.live_jobs set run_at = run_at - interval '2 days 1 hour',
        due_at = run_at - interval '2 days 1 hour'
    where id = 5;
"""
CLAIMED = """
    select from pyworker.claim_jobs(1, 2);
    select from pyworker.claim_jobs(2, 1);
    update pyworker.live_jobs set run = 1 where state = 'running';
    update pyworker.claims set run = 1;
"""
ENDS = """
    select pyworker.fail_jobs('[{"id": 1, "run": 1, "error": "e", "discard": true}]'),
        pyworker.finish_job(2, 1), pyworker.finish_job(6, 1);
"""
CHILDREN = """
    select from pyworker.add_job('t', depends_on => '[{"id": 2, "on": "end"}, {"id": 6, "on": "end"}]');
    select from pyworker.add_job('t', job_key => 'c', depends_on => '{"jobs": [1], "on_unmet": "cancel"}');
    select from pyworker.add_job('t', depends_on => '[7]');
    select from pyworker.add_job('t', priority => -1);
    select pyworker.promote_jobs();
    select from pyworker.claim_jobs(2, 1);
    update pyworker.live_jobs set run = 1 where state = 'running';
    update pyworker.claims set run = 1;
    select pyworker.wait_for_signal(10, 1, 'go');
    select pyworker.promote_jobs();
"""
# Where the jobs 1, 2 and 6 run, no job can be claimed: a worker that listens is idle.
MAKE = {
    WAITING: BEGIN + DUE,
    RUNNING: BEGIN + CLAIMED,
    DEAD: BEGIN + CLAIMED,
    ENDED: BEGIN + CLAIMED + ENDS + DUE,
    GRAPH: BEGIN + CLAIMED + CHILDREN,
}
IDLE = RUNS


@dataclass(frozen=True)
class Verb:
    name: str
    sql: str
    starts: tuple[str, ...] = ALL
    after: str = ""  # a statement after the commit
    waits: bool = True  # for a lock of another session
    parts: tuple[str, ...] = ()  # a call for many jobs, job by job: each is judged by itself


def add(options: str) -> str:
    return f"select deduplicated from pyworker.add_job('t', {options}, meta => '{{\"by\": \"%by\"}}')"


def unique(conflict: str, more: str = ', "completed"') -> str:
    states = f'["available", "running", "scheduled", "retryable", "pending"{more}]'
    return f"""unique_policy => '{{"keys": ["args"], "states": {states}, "on_conflict": "{conflict}"}}'"""


def fail(more: str) -> str:
    items = ", ".join(f'{{"id": {id}, "run": 1, "error": "%by", {more}}}' for id in (6, 2, 1))
    return f"select pyworker.fail_jobs('[{items}]')"


def taken(call: str) -> str:
    """What a claim takes depends on what others have locked: settling makes up for it."""
    return f"select true from (select count(*) from pyworker.{call}) c"


def bulk(call: str, *ids: int) -> dict[str, Any]:
    """A call for many jobs: another session may come between two of them."""
    return {
        "sql": f"select id from pyworker.{call}".replace("%ids", ",".join(map(str, ids))),
        "parts": tuple(f"select id from pyworker.{call}".replace("%ids", str(id)) for id in sorted(ids)),
    }


RELEASE = "select id from unnest(pyworker.release_jobs"
S = """sequence_policy => '{"key": "s"}'"""
BULK = """[
    {"identifier": "t", "payload": [3], "job_key": "k", "queue_name": "q", "sequence_policy": {"key": "s"},
     "meta": {"by": "%by"}},
    {"identifier": "t", "payload": {"n": 1}, "meta": {"by": "%by"},
     "unique_policy": {"keys": ["args"], "on_conflict": "replace"}},
    {"identifier": "t", "sequence_policy": {"key": "s"}, "meta": {"by": "%by"}},
    {"identifier": "t", "payload": [4], "job_key": "j", "meta": {"by": "%by"}},
    {"identifier": "t", "payload": [4], "job_key": "i", "meta": {"by": "%by"}},
    {"identifier": "t", "payload": [4], "job_key": "m", "meta": {"by": "%by"}},
    {"identifier": "t", "payload": {"n": 2}, "meta": {"by": "%by"},
     "unique_policy": {"keys": ["args"], "on_conflict": "replace"}},
    {"identifier": "t", "queue_name": "q", "meta": {"by": "%by"}}]"""
# The same keys the other way round.
TURNED = """[
    {"identifier": "t", "payload": {"n": 2}, "meta": {"by": "%by"},
     "unique_policy": {"keys": ["args"], "on_conflict": "replace"}},
    {"identifier": "t", "payload": {"n": 1}, "meta": {"by": "%by"},
     "unique_policy": {"keys": ["args"], "on_conflict": "replace"}},
    {"identifier": "t", "payload": [4], "job_key": "m", "meta": {"by": "%by"}},
    {"identifier": "t", "payload": [4], "job_key": "i", "meta": {"by": "%by"}},
    {"identifier": "t", "payload": [4], "job_key": "j", "meta": {"by": "%by"}},
    {"identifier": "t", "payload": [3], "job_key": "k", "meta": {"by": "%by"}}]"""
# The refs and ids of one call: one job after 6, one after that one and 2.
TREE = """[
    {"identifier": "t", "ref": "a", "depends_on": [6], "meta": {"by": "%by"}},
    {"identifier": "t", "depends_on": ["a", {"id": 2, "on": "end"}], "meta": {"by": "%by2"}}]"""
MEMBERS = """[{"identifier": "t", "meta": {"by": "%by"}}]"""
TURN = """select count(*) filter (where kind = 'refused') from pyworker.work(1, '{2}', '{1}', null,
    '[{"id": 1, "run": 1, "do": "fail", "error": "%by", "delay_s": 3600}]', 0)"""

VERBS = {
    verb.name: verb
    for verb in [
        Verb("add", add("'{}'")),
        Verb("add-queued", add("'{}', queue_name => 'q'")),
        Verb("add-sequenced", add("'{}', queue_name => 'q', " + S)),
        Verb("add-late", add("'{}', run_at => now() - interval '1 hour'")),
        Verb("add-keyed", add("'[1]', job_key => 'k'")),
        Verb("add-keyed-all", add("'[1]', job_key => 'k', queue_name => 'q', " + S)),
        Verb("add-preserve", add("'[1]', job_key => 'k', job_key_mode => 'preserve_run_at'")),
        Verb("add-dedupe", add("'[1]', job_key => 'k', job_key_mode => 'unsafe_dedupe'")),
        Verb("add-other-key", add("'[2]', job_key => 'j'")),
        Verb("add-unique", add("""'{"n": 1}', """ + unique("ignore"))),
        Verb("add-unique-live", add("""'{"n": 1}', """ + unique("ignore", ""))),
        Verb("add-unique-reject", add("""'{"n": 1}', """ + unique("reject"))),
        Verb("add-unique-replace", add("""'{"n": 1}', """ + unique("replace"))),
        Verb("add-many", f"select deduplicated from pyworker.add_jobs('{BULK}'::jsonb)"),
        Verb("add-many-turned", f"select deduplicated from pyworker.add_jobs('{TURNED}'::jsonb)"),
        Verb("remove", "select id, state from pyworker.remove_job('k')"),
        Verb("claim", taken("claim_jobs(2, 10)"), waits=False),
        Verb("claim-one", taken("claim_jobs(2)"), waits=False),
        Verb("claim-queue", taken("claim_jobs(2, 10, '{t}', '{q}')"), waits=False),
        Verb("work", taken("work(2, null, null, null, null, 10)"), waits=False),
        Verb("idle", taken("claim_jobs(3, 10)"),
             after="select pyworker.seconds_until_due()", waits=False),
        Verb("start", "select pyworker.start_job(2, 1)", RUNS),
        Verb("finish", "select pyworker.finish_jobs('{6,2,1}', '{1,1,1}')", RUNS),
        Verb("finish-one", "select pyworker.finish_job(1, 1)", RUNS),
        Verb("fail", fail('"delay": "1 hour"'), RUNS),
        Verb("fail-now", fail('"delay": "0"'), RUNS),
        Verb("discard", fail('"discard": true'), RUNS),
        Verb("snooze", "select pyworker.snooze_job(1, 1, '1 hour')", RUNS),
        Verb("release", f"{RELEASE}('{{6,2,1}}', '{{1,1,1}}')) id order by id", RUNS,
             parts=tuple(f"{RELEASE}('{{{id}}}', '{{1}}')) id" for id in (1, 2, 6))),
        Verb("turn", TURN, (RUNNING,)),
        Verb("close", "select pyworker.close_worker(1)", RUNS),
        Verb("cancel", "select id from pyworker.cancel_job(1)"),
        Verb("force-cancel", "select id from pyworker.cancel_job(1, true)"),
        Verb("cancel-waiter", "select id from pyworker.cancel_job(3)"),
        Verb("retry", "select id from pyworker.retry_job(1)"),
        Verb("retry-many", **bulk("retry_jobs('{%ids}')", 6, 1, 2, 3, 4, 5)),
        Verb("delete", "select id from pyworker.delete_job(1)"),
        Verb("delete-waiter", "select id from pyworker.delete_job(3)"),
        Verb("reschedule", **bulk("reschedule_jobs('{%ids}', priority => 5)", 3, 6, 1, 2)),
        Verb("complete", **bulk("complete_jobs('{%ids}')", 3, 6, 1, 2)),
        Verb("promote", taken("promote_jobs()"), waits=False),
        Verb("sweep", taken("sweep_workers()"), (DEAD,), waits=False),
        Verb("beat", taken("beat(1)"), RUNS),
        Verb("maintain", taken("maintain()")),
        Verb("tick", taken("run_schedules()"), STILL),
        Verb("pause", "select pyworker.pause_queue('q')"),
        Verb("resume", "select pyworker.resume_queue('q')"),
        Verb("set-queue", "select pyworker.set_queue('q', 2)"),
        Verb("set-rate", "select pyworker.set_queue('q', null, 3, '1 hour')"),
        Verb("add-child", add("""'{}', depends_on => '[1, {"id": 6, "on": "end"}]'""")),
        Verb("add-child-cancel", add("""'{}', depends_on => '{"jobs": [1], "on_unmet": "cancel"}'""")),
        Verb("add-grandchild", add("""'{}', depends_on => '[{"id": 7, "on": "end"}]'"""), (GRAPH,)),
        Verb("add-tree", f"select deduplicated from pyworker.add_jobs('{TREE}'::jsonb)"),
        Verb("replace-child", add("""'[8]', job_key => 'c', depends_on => '[2]'"""), (GRAPH,)),
        Verb("free-child", add("'[8]', job_key => 'c'"), (GRAPH,)),
        Verb("remove-child", "select id from pyworker.remove_job('c')", (GRAPH,)),
        Verb("extend", f"select deduplicated from pyworker.extend_batch(7, '{MEMBERS}')", (GRAPH,)),
        Verb("cancel-child", "select id from pyworker.cancel_job(8)", (GRAPH,)),
        Verb("delete-callback", "select id from pyworker.delete_job(7)", (GRAPH,)),
        Verb("retry-callback", "select id from pyworker.retry_job(7)", (GRAPH,)),
        Verb("save-step", "select pyworker.save_step(6, 1, 'a', '\"%by\"')", (RUNNING, GRAPH)),
        Verb("wait", "select pyworker.wait_for_signal(6, 1, 'go')", (RUNNING, GRAPH)),
        Verb("send", "select pyworker.send_signal(6, 'go', '\"%by\"')"),
        Verb("send-waiter", "select pyworker.send_signal(10, 'go', '\"%by\"')", (GRAPH,)),
        Verb("cancel-wait", "select id from pyworker.cancel_job(10)", (GRAPH,)),
        Verb("resume-sequence", "select pyworker.resume_sequence('s')", (ENDED,)),
    ]
}  # fmt: skip
