"""What sessions do, one line each. All verbs touch the same jobs: see states.py.

`%by` marks the jobs that a session adds. A verb returns what can be compared: no times, no new ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.interleavings.states import (
    DEAD,
    ENDED,
    FRESH,
    GRAPH,
    RATED,
    RUNNING,
    SLOTS,
    STARTS,
    WAITING,
)  # fmt: skip

ALL, RUNS, STILL = STARTS, (RUNNING, DEAD, GRAPH, SLOTS), (WAITING, ENDED, FRESH)
LEVELS = {"rc": "read committed", "rr": "repeatable read", "ssi": "serializable"}


@dataclass(frozen=True)
class Verb:
    name: str
    sql: str
    starts: tuple[str, ...] = ALL
    after: str = ""  # a statement after the commit
    then: str = ""  # a second transaction, at READ COMMITTED: others may come between
    waits: bool = True  # for a lock of another session
    claims: bool = False
    reports: bool = False  # of a worker: they wait for no claim
    names: tuple[int, ...] = ()  # jobs: it waits for no other one, and none refuses it
    stale: list[tuple[str, ...]] | None = None  # what it answers as well if its worker has gone (PW004)
    parts: tuple[str, ...] = ()  # a call for many jobs, job by job: each is judged by itself

    @property
    def claims_then(self) -> bool:
        return self.then == CLAIM


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


def add_unique(n: int) -> str:
    return add(f"""'{{"n": {n}}}', """ + unique("replace"))


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
# New keys, unless another session has added them.
TWO = """[
    {"identifier": "t", "payload": [5], "job_key": "i", "meta": {"by": "%by"}},
    {"identifier": "t", "payload": [5], "job_key": "j", "meta": {"by": "%by"}}]"""
TWO_TURNED = """[
    {"identifier": "t", "payload": [5], "job_key": "j", "meta": {"by": "%by"}},
    {"identifier": "t", "payload": [5], "job_key": "i", "meta": {"by": "%by"}}]"""
ADD_TWO = f"select deduplicated from pyworker.add_jobs('{TWO}'::jsonb)"
# The refs and ids of one call: one job after 6, one after that one and 2.
TREE = """[
    {"identifier": "t", "ref": "a", "depends_on": [6], "meta": {"by": "%by"}},
    {"identifier": "t", "depends_on": ["a", {"id": 2, "on": "end"}], "meta": {"by": "%by2"}}]"""
MEMBERS = """[{"identifier": "t", "meta": {"by": "%by"}}]"""
TURN = """select count(*) filter (where kind = 'refused') from pyworker.work(1, '{2}', '{1}', null,
    '[{"id": 1, "run": 1, "do": "fail", "error": "%by", "delay_s": 3600}]', 0)"""

CLAIM = taken("claim_jobs(2, 10)")
END: dict[str, Any] = {"starts": RUNS, "reports": True, "names": (1, 2, 6)}

VERBS = {
    verb.name: verb
    for verb in [
        Verb("add", add("'{}'")),
        Verb("add-queued", add("'{}', queue_name => 'q'")),
        Verb("add-queued-claim", add("'{}', queue_name => 'q'"), then=CLAIM),
        Verb("add-sequenced", add("'{}', queue_name => 'q', " + S)),
        Verb("add-sequenced-claim", add("'{}', " + S), then=CLAIM),
        Verb("add-late", add("'{}', run_at => now() - interval '1 hour'")),
        Verb("add-keyed", add("'[1]', job_key => 'k'")),
        Verb("add-keyed-all", add("'[1]', job_key => 'k', queue_name => 'q', " + S)),
        Verb("add-keyed-moved", add("'[1]', job_key => 'k', queue_name => 'r'")),
        Verb("add-preserve", add("'[1]', job_key => 'k', job_key_mode => 'preserve_run_at'")),
        Verb("add-dedupe", add("'[1]', job_key => 'k', job_key_mode => 'unsafe_dedupe'")),
        Verb("add-other-key", add("'[2]', job_key => 'j'")),
        Verb("add-unique", add("""'{"n": 1}', """ + unique("ignore"))),
        Verb("add-unique-live", add("""'{"n": 1}', """ + unique("ignore", ""))),
        Verb("add-unique-reject", add("""'{"n": 1}', """ + unique("reject"))),
        Verb("add-unique-replace", add_unique(1)),
        # In the order in which bulk calls take the keys.
        Verb("add-uniques", f"select ({add_unique(1)}), ({add_unique(2)})"),
        Verb("add-many", f"select deduplicated from pyworker.add_jobs('{BULK}'::jsonb)"),
        Verb("add-many-turned", f"select deduplicated from pyworker.add_jobs('{TURNED}'::jsonb)"),
        Verb("add-two", ADD_TWO),
        Verb("add-two-turned", f"select deduplicated from pyworker.add_jobs('{TWO_TURNED}'::jsonb)"),
        Verb("add-key-two", add("'[2]', job_key => 'j'"), then=ADD_TWO),
        Verb("remove", "select id, state from pyworker.remove_job('k')"),
        Verb("claim", CLAIM, waits=False, claims=True),
        Verb("claim-one", taken("claim_jobs(2)"), waits=False, claims=True),
        Verb("claim-queue", taken("claim_jobs(2, 10, '{t}', '{q}')"), waits=False, claims=True),
        Verb("claim-kind", taken("claim_jobs(2, 10, '{u}')"), (FRESH, RATED), waits=False, claims=True),
        Verb("work", taken("work(2, null, null, null, null, 10)"), waits=False, claims=True),
        Verb("idle", taken("claim_jobs(3, 10)"),
             after="select pyworker.seconds_until_due()", waits=False, claims=True),
        Verb("start", "select pyworker.start_job(2, 1)", RUNS, reports=True, names=(2,)),
        Verb("finish", "select pyworker.finish_jobs('{6,2,1}', '{1,1,1}')", **END),
        Verb("finish-one", "select pyworker.finish_job(1, 1)", RUNS, reports=True, names=(1,)),
        Verb("fail", fail('"delay": "1 hour"'), **END),
        Verb("fail-now", fail('"delay": "0"'), **END),
        Verb("discard", fail('"discard": true'), **END),
        Verb("snooze", "select pyworker.snooze_job(1, 1, '1 hour')", RUNS, reports=True, names=(1,)),
        Verb("release", f"{RELEASE}('{{6,2,1}}', '{{1,1,1}}')) id order by id", **END,
             parts=tuple(f"{RELEASE}('{{{id}}}', '{{1}}')) id" for id in (1, 2, 6))),
        Verb("turn", TURN, (RUNNING, SLOTS), reports=True, names=(1, 2), stale=[("2",)]),
        Verb("close", "select pyworker.close_worker(1)", RUNS),
        Verb("force-unlock", "select pyworker.force_unlock_workers('{1}')", RUNS),
        Verb("reconcile", "select pyworker.reconcile(1, '{1}', '{1}')", RUNS, stale=[("{}",)]),
        Verb("cancel", "select id from pyworker.cancel_job(1)", names=(1,)),
        Verb("force-cancel", "select id from pyworker.cancel_job(1, true)", names=(1,)),
        Verb("cancel-waiter", "select id from pyworker.cancel_job(3)", names=(3,)),
        Verb("cancel-queued", "select id from pyworker.cancel_job(4)", names=(4,)),
        Verb("cancel-head", "select id from pyworker.cancel_job(7, true)", (RUNNING,), names=(7,)),
        Verb("cancel-next", "select id from pyworker.cancel_job(8)", (RUNNING, ENDED), names=(8,)),
        Verb("retry", "select id from pyworker.retry_job(1)"),
        Verb("retry-unique", "select id from pyworker.retry_job(2)"),
        Verb("retry-many", **bulk("retry_jobs('{%ids}')", 6, 1, 2, 3, 4, 5)),
        Verb("retry-waiters", **bulk("retry_jobs('{%ids}')", 3, 8), starts=(ENDED,)),
        # The same two sequences the other way round.
        Verb("retry-waiters-turned", **bulk("retry_jobs('{%ids}')", 9, 10), starts=(ENDED,)),
        Verb("delete", "select id from pyworker.delete_job(1)", names=(1,)),
        Verb("delete-unique", "select id from pyworker.delete_job(2)", names=(2,)),
        Verb("delete-waiter", "select id from pyworker.delete_job(3)", names=(3,)),
        Verb("reschedule", **bulk("reschedule_jobs('{%ids}', priority => 5)", 3, 6, 1, 2)),
        Verb("complete", **bulk("complete_jobs('{%ids}')", 3, 6, 1, 2)),
        Verb("fail-by-hand", **bulk("permanently_fail_jobs('{%ids}')", 4, 6, 1, 2)),
        Verb("promote", taken("promote_jobs()"), waits=False, claims=True),
        Verb("promote-delete", taken("promote_jobs()"), (FRESH,),
             then="select id from pyworker.delete_job(1)"),
        Verb("sweep", taken("sweep_workers()"), (DEAD,), waits=False),
        Verb("beat", taken("beat(1)"), RUNS),
        Verb("heartbeat", "select pyworker.heartbeat(1)", RUNS),
        Verb("maintain", taken("maintain()")),
        Verb("tick", taken("run_schedules()"), STILL),
        Verb("pause", "select pyworker.pause_queue('q')"),
        Verb("pause-claim", "select pyworker.pause_queue('q')", then=CLAIM),
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
