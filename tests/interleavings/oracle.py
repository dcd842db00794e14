"""Is what a schedule has come to right?

It is, if the state is that of one serial order of the verbs that were committed, once all that can
run has run; if no verb comes in that order before one that was committed before it began; if no call raised
what is not documented; if the invariants hold; and if the worker that listens was notified of what it can
claim, or will come again by itself.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from math import inf
from typing import Any

import psycopg

from tests.interleavings.rules import broken
from tests.interleavings.schedule import Run
from tests.interleavings.sessions import Answer
from tests.interleavings.stage import PROMOTE, Stage
from tests.interleavings.states import IDLE
from tests.interleavings.verbs import VERBS, Verb

# Rows without their times and ids: a job is known by who added it.
JOB = """
    to_jsonb(j) - '{id,ready_at,due_at,run,run_at,created_at,updated_at,claimed_at,started_at,
                     cancel_requested_at,finished_at,expires_at,unique_key,payload,parked,slot,pace,turn,
                     wait_until,waits_since,waits_run}'::text[]
    || jsonb_build_object(
        'job', coalesce(j.meta ->> 'by', j.id::text), 'payload', j.payload::text, 'run', least(j.run, 2),
        'worker_id', least(j.worker_id, 2), -- 2 and 3 are alike
        'started', j.started_at is not null, 'cancel', j.cancel_requested_at is not null,
        'unique', j.unique_key is not null, 'later', j.due_at > pyworker.clock() + interval '10 minutes')
"""
ALL = """select id, meta, revision from pyworker.live_jobs
    union all select id, meta, revision from pyworker.finished_jobs"""
STATE = f"""
    select jsonb_build_object(
        'jobs', (select jsonb_agg(x.r order by x.r) from (
            select {JOB} as r from pyworker.live_jobs j
            union all select {JOB} from pyworker.finished_jobs j) x),
        'errors', (select jsonb_agg(x.r order by x.r) from (
            select jsonb_build_array(coalesce(j.meta ->> 'by', e.job_id::text), e.error, least(e.run, 2)) r
            from pyworker.errors e
            left join ({ALL}) j on j.id = e.job_id) x),
        'halts', (select jsonb_agg(x.r order by x.r) from (
            select jsonb_build_array(h.sequence_key, coalesce(j.meta ->> 'by', h.job_id::text)) r
            from pyworker.sequence_halts h
            left join ({ALL}) j on j.id = h.job_id) x),
        'edges', (select jsonb_agg(x.r order by x.r) from (
            select jsonb_build_array(coalesce(j.meta ->> 'by', j.id::text),
                coalesce(p.meta ->> 'by', e.parent_id::text), e.ref, e.condition, e.cancels,
                -- Only some ends are written down: dependencies/edges.
                case when not exists (
                    select from pyworker._open_edges(e.child_id, e.revision, e.parent_id) o
                    where o.parent_id = e.parent_id and o.condition = e.condition)
                    then coalesce(e.met, pyworker._ended_as(e.parent_id)) end) r
            from pyworker.edges e join ({ALL}) j on j.id = e.child_id and j.revision = e.revision
            left join ({ALL}) p on p.id = e.parent_id) x),
        'steps', (select jsonb_agg(x.r order by x.r) from (
            select jsonb_build_array(s.job_id, s.name, s.is_wait, s.at is null, s.result) r
            from pyworker.steps s join ({ALL}) j on j.id = s.job_id and j.revision = s.revision) x),
        'signals', (select jsonb_agg(x.r order by x.r) from ( -- the first of each name counts
            select distinct on (s.job_id, s.name) jsonb_build_array(s.job_id, s.name, s.payload) r
            from pyworker.signals s order by s.job_id, s.name, s.id) x),
        'queues', (select jsonb_agg(x.r order by x.r) from (
            select to_jsonb(q) - '{{updated_at,changed}}'::text[] r from pyworker.queues q) x),
        'unique', (select count(*) from pyworker.unique_keys),
        'schedules', (select jsonb_agg(s.next_at > pyworker.clock()) from pyworker.schedule_entries s))::text
"""
# The same with what is not yet settled, to know a state again.
RAW = f"""
    select jsonb_build_object(
        'state', ({STATE.replace(",parked,slot", "")}),
        'waits', (select jsonb_agg(x.r order by x.r) from (
            select jsonb_build_array(
                coalesce(j.meta ->> 'by', j.id::text), j.ready_at is null, j.due_at is null,
                j.ready_at < pyworker.clock() - interval '1 second', j.slot is null,
                j.slot = any (array(select q.changed from pyworker.queues q)),
                rank() over (order by j.id), rank() over (order by j.ready_at)) r
            from pyworker.live_jobs j) x),
        'requests', (select jsonb_agg(x.r order by x.r) from (
            select distinct jsonb_build_array(
                w.lane, w.at is null, coalesce(j.meta ->> 'by', w.job_id::text)) r
            from pyworker.promotion_requests w left join ({ALL}) j on j.id = w.job_id) x),
        'workers', (select jsonb_agg(to_jsonb(w) - '{{expires_at,started_at,info,last_claim_at}}'::text[]
                                     order by w.id) from pyworker.workers w),
        'starts', (select jsonb_agg(x.r order by x.r) from (
            select jsonb_build_array(s.queue_name, s.jobs, s.total) r from pyworker.starts s) x),
        'held', (select jsonb_agg(jsonb_build_array(h.queue_name, h.seen_by = '0') order by 1)
                 from pyworker.held_settings h),
        'aside', (select jsonb_agg(a.queue_name || a.task_identifier order by 1) from pyworker.set_aside a),
        'claims', (select jsonb_agg(x.r order by x.r) from (
            -- An invariant goes by which changes of queues a claim has seen.
            select jsonb_build_array(c.worker_id, c.job_ids, array(
                select q.queue_name from pyworker.queues q where c.seen > q.changed order by 1)) r
            from pyworker.claims c) x))::text
"""
# When nothing is left to run, no request is left either: a worker would come again and again.
REQUESTS = "select distinct w.lane from pyworker.promotion_requests w where w.at is null order by 1"
# What another session had locked, or did not take, is looked at again.
LATER = """
    with aside as (update pyworker.set_aside set until = pyworker.clock())
    update pyworker.promotion_requests set at = pyworker.clock()
    where at < pyworker.clock() + interval '10 seconds'
"""
CLAIM = "select coalesce(meta ->> 'by', id::text) from pyworker.claim_jobs(2, 50)"
FINISH = """
    select pyworker.finish_jobs(array_agg(j.id order by j.id), array_agg(j.run order by j.id))
    from pyworker.live_jobs j where j.state = 'running' and j.worker_id in (2, 3) having count(*) > 0
"""
# What halts a sequence or pauses a queue must not have stranded what waits behind it.
RESUME = "select pyworker.resume_queue('q'), pyworker.resume_sequence('s')"
STAGES = ("when all runs", "when all has ended", "when resumed")
KEYS_LEFT = re.compile(r'\\"unique\\": \d+, ')
SOON = 0.5  # seconds
KEPT = 4000  # outcomes that are known

# Exceptions, whose states are compared with no serial order: a claim passes over a job that the other
# call has locked already, and takes one that it has not.
SKIPS = {verb.name for verb in VERBS.values() if verb.claims or verb.claims_then} - {"promote"}


class Fault(AssertionError):
    """A schedule came to what no serial order comes to, or a call raised what it must not."""


@dataclass(frozen=True)
class Outcome:
    claimable: Counter[str]  # the jobs that a worker could claim at once
    states: str  # when all that can run runs, when it has ended, and after resuming


def drain(conn: Any) -> str:
    """Claims and finishes until nothing moves; returns the state, and the requests that are left."""
    for _ in range(20):
        finished = conn.execute(FINISH).fetchall()
        conn.execute(LATER)
        conn.execute("select pyworker.promote_jobs()")
        if not conn.execute(CLAIM).fetchall() and not finished:
            break
    check_invariants(conn)
    requests = [lane for (lane,) in conn.execute(REQUESTS).fetchall()]
    return json.dumps({**json.loads(conn.execute(STATE).fetchone()[0]), "requests": requests})


def settle(conn: Any, verbs: tuple[str, ...]) -> Outcome:
    """Lets run what can run, as live workers do: they claim, sweep, and run schedules."""
    claimable: Counter[str] = Counter()
    while rows := conn.execute(CLAIM).fetchall():
        claimable.update(job for (job,) in rows)
    conn.execute("select pyworker.sweep_workers(), pyworker.run_schedules()")
    if "maintain" in verbs:
        conn.execute("select pyworker.maintain()")
    for _ in range(20):
        conn.execute(LATER)
        if not conn.execute(CLAIM).fetchall():
            break
    states = [conn.execute(STATE).fetchone()[0], drain(conn)]
    conn.execute(RESUME)
    return Outcome(claimable, json.dumps([*states, drain(conn)]))


def check_invariants(conn: Any) -> None:
    if violations := conn.execute("select * from pyworker._invariants()").fetchall():
        raise Fault(f"invariants: {violations}")


Unit = tuple[int, int | None]  # a session, and a part of its call, or all of it, or THEN
THEN = -1  # its second transaction
Came = tuple[list[Any], str]  # what the calls answered, and the state then
Spans = list[list[tuple[int, float]]]  # of each session's transactions: their begin and end


def orders(lists: list[list[Unit]], spans: Spans) -> Iterator[tuple[Unit, ...]]:
    """All ways to merge these lists, but what was committed before another one began comes before it."""
    if not any(lists):
        yield ()
    for n, units in enumerate(lists):
        if units and not any(is_before(unit, units[0], spans) for other in lists for unit in other):
            for order in orders([*lists[:n], units[1:], *lists[n + 1 :]], spans):
                yield (units[0], *order)


def spans_of(run: Run, names: tuple[str, ...]) -> Spans:
    """Claims and sweeps pass over what others have locked: they may count as ones that came later."""
    found: Spans = []
    for n, name in enumerate(names):
        passes = VERBS[name].claims or name in SWEEPS, VERBS[name].claims_then
        found.append([(begin, inf if passes[m] else end) for m, (begin, end) in enumerate(run.spans(n))])
    return found


def is_before(a: Unit, b: Unit, spans: Spans) -> bool:
    """Was this unit committed before the other one began?"""
    (_, end), (begin, _) = (spans[n][1 if part == THEN else 0] for n, part in (a, b))
    return end < begin


def told(verb: Verb, answer: Answer) -> Any:
    """What a call answered: its rows, or its SQLSTATE."""
    return (verb.stale if answer.sqlstate == "PW004" else None) or answer.sqlstate or answer.rows


# What differs if of two jobs of a limited queue the other one runs.
TURN = ("state", "run", "attempts", "worker_id", "later", "claimed_at")


SWEEPS = {"beat", "maintain", "sweep"}


def blurred(came: Came) -> Any:
    """The same, but of the jobs of one queue it does not tell which ones run, only how many."""
    stages = []
    for text in json.loads(came[1]):
        state = json.loads(text)
        turns = sorted([row["queue_name"], row["state"]] for row in state["jobs"] or [] if row["queue_name"])
        rows = [
            {n: v for n, v in row.items() if not (row["queue_name"] and n in TURN)}
            for row in state["jobs"] or []
        ]
        rows.sort(key=lambda row: json.dumps(row, sort_keys=True))
        stages.append({**state, "jobs": rows, "turns": turns})
    return came[0], stages


class Outcomes:
    """What comes of the states of one stage. The work is done once for each state."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.settled: dict[tuple[str, bool, bytes], Outcome] = {}
        self.serial: dict[tuple[tuple[str, ...], str, tuple[Unit, ...], str, bool], Came] = {}

    def outcome(self, verbs: tuple[str, ...], start: str) -> Outcome:
        conn = self.stage.conn
        raw = conn.execute(RAW).fetchone()[0]
        state = start, "maintain" in verbs, sha256(raw.encode()).digest()
        if state not in self.settled:
            if len(self.settled) > KEPT:
                self.settled.clear()
            try:
                check_invariants(conn)
                self.settled[state] = settle(conn, verbs)
            except psycopg.Error as error:
                raise Fault(f"what runs then fails: {error}") from error
        return self.settled[state]

    def serially(
        self, verbs: tuple[str, ...], start: str, order: tuple[Unit, ...], level: str, looks: bool
    ) -> Came:
        """What these calls answer one after the other, each committed, and the state then. `looks`: after
        each of them a worker lets in what may run."""
        key = verbs, start, order, level, looks
        if key not in self.serial:
            if len(self.serial) > KEPT:
                self.serial.clear()
            self.stage.restore(start)
            said: list[Any] = [None] * len(verbs)
            for n, part in order:
                if looks:
                    self.stage.conn.execute(PROMOTE)
                actor, verb = self.stage.actor(n, verbs[n], level, "commit"), VERBS[verbs[n]]
                if part == THEN:
                    actor.session.run(verb.then.replace("%by", "ABC"[n]))
                    continue
                actor.session.run(f"begin isolation level {actor.level}")
                answer = actor.session.run(actor.script[0] if part is None else verb.parts[part])
                actor.session.run("commit")
                said[n] = (
                    told(verb, answer) if part is None else answer.sqlstate or (said[n] or []) + answer.rows
                )
            self.serial[key] = said, self.outcome(verbs, start).states
        return self.serial[key]


class Oracle:
    """Judges the schedules of some verbs from one state. `right` has the SQL without mutants: what its serial
    orders come to is right."""

    def __init__(
        self, here: Outcomes, verbs: tuple[str, ...], start: str, right: Outcomes | None = None
    ) -> None:
        self.here, self.right, self.verbs, self.start = here, right or here, verbs, start
        self.skips = "complete" in verbs and bool(SKIPS & {*verbs})
        # A snapshot may be too old to release a unique key, or a session that fails or is rolled back has it
        # locked: then maintain() finds it later.
        self.leaves_keys = False

    def serially(self, order: tuple[Unit, ...], level: str = "rc", looks: bool = False) -> Came:
        return self.seen(self.right.serially(self.verbs, self.start, order, level, looks))

    def seen(self, came: Came) -> Came:
        return (came[0], KEYS_LEFT.sub("", came[1])) if self.leaves_keys else came

    def is_serial(self, found: Came, units: list[list[Unit]], spans: Spans, level: str) -> bool:
        """Is it what a serial order comes to? A call for many jobs may count as one for each of them."""
        came = [
            self.serially(order, level, looks) for looks in (False, True) for order in orders(units, spans)
        ]
        # Who lets in what may run passes over a job that another session has locked, and takes the next one
        # of its queue; worker 3 does so when it is notified.
        if found in came or blurred(found) in map(blurred, came):
            return True
        parts = [len(VERBS[verb].parts) for verb in self.verbs]
        if not any(parts[n] for done in units for n, _ in done):
            return False
        divided = [
            [
                (n, part)
                for n, whole in done
                for part in (range(parts[n]) if parts[n] and whole is None else [whole])
            ]
            for done in units
        ]
        return any(found == self.serially(order, level) for order in orders(divided, spans))

    def judge(self, run: Run, level: str, hows: tuple[str, ...]) -> None:
        for fault in broken(run, self.verbs, level):
            raise Fault(fault)
        said: list[Any] = [None] * len(self.verbs)
        units: list[list[Unit]] = []
        spans = spans_of(run, self.verbs)
        for n, answers in enumerate(run.answers):
            states = [answer.sqlstate for answer in answers[:2] if answer.sqlstate]
            done: list[Unit] = []
            if hows[n] == "commit" and not (states and not states[0].startswith("PW")):
                said[n] = told(VERBS[self.verbs[n]], answers[0])
                done.append((n, None))
            if VERBS[self.verbs[n]].then and not any(answer.sqlstate for answer in answers[2:]):
                done.append((n, THEN))
            units.append(done)
        outcome = self.here.outcome(self.verbs, self.start)
        old = level != "rc"
        failed = any(answer.sqlstate for answers in run.answers for answer in answers)
        self.leaves_keys = old or failed or "rollback" in hows
        found = self.seen((said, outcome.states))
        # A call with an old snapshot may leave a promotion to later ones, and claims nothing of named queues.
        # So what serial orders at the same level come to is right, too.
        levels = dict.fromkeys(["rc", level])
        if not self.skips and not any(self.is_serial(found, units, spans, at) for at in levels):
            nearest = difference(found, [self.serially(order) for order in orders(units, spans)])
            raise Fault(f"no serial order comes to this:\n{nearest}")
        if "idle" not in self.verbs or units[self.verbs.index("idle")]:
            # A worker whose claim was rolled back claims again.
            self.judge_notifications(run, outcome.claimable)

    def judge_notifications(self, run: Run, claimable: Counter[str]) -> None:
        """Worker 3 listens. It must not sleep while it could claim."""
        if claimable <= run.taken or self.start not in IDLE:
            return
        if "idle" in self.verbs and not (answers := run.answers[self.verbs.index("idle")])[0].sqlstate:
            due = answers[-1].rows[0][0]
        else:
            due = run.told
        if not run.notified and (due is None or float(due) > SOON):
            raise Fault(
                f"worker 3 can claim {sorted(claimable.elements())}, was not notified, and was told {due}"
            )


def difference(found: Came, allowed: list[Came]) -> str:
    """In what the state differs from the nearest serial one, column by column."""
    answers = [f"said {found[0]}, serially {' or '.join(str(said) for said, _ in allowed)}"]
    nearest: list[str] | None = None
    alike = [came for came in allowed if came[0] == found[0]]
    for _, state in alike or allowed:
        lines = []
        for when, ours, theirs in zip(STAGES, json.loads(found[1]), json.loads(state), strict=True):
            a, b = json.loads(ours), json.loads(theirs)
            lines += [f"{when}: {line}" for part in a for line in unlike(part, a[part], b[part])]
        if nearest is None or len(lines) < len(nearest):
            nearest = lines
    return "\n".join(answers + (nearest or []))


def unlike(part: str, ours: Any, theirs: Any) -> list[str]:
    if ours == theirs:
        return []
    if not isinstance(ours, list) or not isinstance(theirs, list):
        return [f"{part} {ours}, serially {theirs}"]
    lines = []
    left = [row for row in theirs if row not in ours]
    for row in (row for row in ours if row not in theirs):
        named = isinstance(row, dict) and "job" in row
        twin = next((x for x in left if named and x["job"] == row["job"]), None)
        if twin:
            left.remove(twin)
            changed = {n: f"{row[n]}, serially {twin[n]}" for n in row if row[n] != twin[n]}
            lines.append(f"{part} {row['job']}: {changed}")
        else:
            lines.append(f"{part} only here: {row}")
    return lines + [f"{part} only serially: {row}" for row in left]
