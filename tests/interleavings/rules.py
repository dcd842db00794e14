"""What no schedule may do, however it ends: for what a session may wait, and when it may be refused."""

from __future__ import annotations

from collections.abc import Iterator

from tests.interleavings.schedule import Entry, Run
from tests.interleavings.verbs import VERBS, Verb

# A call may raise these at a level; they mean "not done, try again".
AGAIN = {"rc": {"55P03"}, "rr": {"40001", "55P03"}, "ssi": {"40001", "55P03"}}
# Rows that many jobs share, or that belong to one job.
SHARED = {"unique_keys", "promotion_requests", "starts", "set_aside", "held_settings", "gate"}
JOBS = {"live_jobs", "finished_jobs"}


def broken(run: Run, names: tuple[str, ...], level: str) -> Iterator[str]:
    """What a schedule has done that it must not."""
    verbs = [VERBS[name] for name in names]
    if run.knot:
        yield f"waiting for each other: {', '.join(run.knot)}"
    for entry in run.trace:
        if entry.blocked:
            yield from waits(entry, verbs)
    for n, answers in enumerate(run.answers):
        for answer in answers:
            if answer.sqlstate and not answer.sqlstate.startswith("PW"):
                if answer.sqlstate not in AGAIN[level]:
                    yield f"{'ABC'[n]} raised {answer.sqlstate}: {answer.message}"
                elif answer.sqlstate == "40001" and level == "rr" and not may_be_refused(run, n, verbs[n]):
                    yield f"{'ABC'[n]} was refused, though no job that it names was changed: {answer.message}"


def waits(entry: Entry, verbs: list[Verb]) -> Iterator[str]:
    who, verb = "ABC"[entry.session], verbs[entry.session]
    where = f"{who} waits at {entry.name}"
    if not verb.waits:
        yield where
    if verb.reports and any(verbs[n].claims for n in entry.behind):
        yield f"{where} for a claim"
    # Of more transactions, one may have changed a row that another one has locked: SKIP LOCKED waits there.
    if entry.awaits and verb.names and len(verbs) == 2 and not any(v.then for v in verbs):
        table, job = entry.awaits
        if table in SHARED or (table in JOBS and job not in verb.names):
            yield f"{where} for {table} {job or ''}, which it does not name"


def may_be_refused(run: Run, n: int, verb: Verb) -> bool:
    """At REPEATABLE READ: has another session changed what this one must change?"""
    if not verb.names or run.moved & {*verb.names}:
        return True
    for entry in run.trace:
        if entry.session != n:
            for _, table, old, new in entry.changes:
                if table not in SHARED | JOBS or (table in JOBS and (new or old)["id"] in verb.names):
                    return True
    return False
