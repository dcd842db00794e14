"""What happens after a crash: workers of before report again, and a new one runs all that is left."""

from __future__ import annotations

import json
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.types.json import Jsonb

from tests.crashpoints.crash import Known, Run
from tests.crashpoints.script import SIGNAL, TICK

if TYPE_CHECKING:
    from tests.crashpoints.judge import Verdict

WORK = "select kind, id, run, task_identifier, delivery from pyworker.work(%s, %s, %s, %s, %s, %s)"
WORDS = [
    "select pyworker.once(%s, %s, 'a mark')",
    "select pyworker.save_step(%s, %s, 'a step')",
    "select pyworker.set_progress(%s, %s, 0.9)",
    "select pyworker.wait_for_signal(%s, %s, 'other', '1 s')",
    "select pyworker.snooze_job(%s, %s, '1 s')",
    "select pyworker.finish_job(%s, %s)",
]
JOBS = """
    select id, state, reason, run, delivery, task_identifier from pyworker.jobs
    union all select id, state, reason, run, delivery, task_identifier from pyworker.history
"""
ROUNDS = 40  # of the new worker; an hour passes after each that finds nothing
OWN_TRANSACTIONS = {"book", "last"}
# The reasons for which a job may end without having run to its end.
REASONS = {"expired", "unmet", "cancelled", "lost", "superseded", "replaced", "removed",
           "worker lost on the last attempt"}  # fmt: skip


class Aftermath:
    def __init__(
        self,
        conn: psycopg.Connection[Any],
        known: Known,
        verdict: Verdict,
        random: Random,
        standby: bool,
    ) -> None:
        self.conn, self.known, self.verdict, self.random = conn, known, verdict, random
        self.standby = standby  # it was behind: it may give out ids of before
        self.jobs = {row[0]: row[1:] for row in conn.execute(JOBS).fetchall()}
        self.reported = set[Run]()  # by workers of before, and accepted after the crash
        self.begun = {id for id, _ in known.started}

    def value(self, statement: str, *parameters: Any) -> Any:
        row = self.conn.execute(statement, parameters).fetchone()  # type: ignore[arg-type]
        return row and row[0]

    def live_through(self) -> None:
        self.prepared()
        self.transactions()
        early = {worker for worker in self.known.workers if self.random.random() < 0.5}
        for worker in early:
            self.come_back(worker)
        self.worker = self.value("select (pyworker.open_worker() ->> 'worker')::bigint")
        if self.worker in self.known.workers and not self.standby:
            self.verdict.fault(f"worker {self.worker} has the id of a worker of before")
        self.ids_are_new()
        self.bury()
        for worker in self.known.workers:
            if worker not in early:
                self.come_back(worker)
        self.late_reports()
        self.drain()
        self.ends()
        self.marks()

    def prepared(self) -> None:
        """Transactions that were prepared are there, and can be committed."""
        there = [row[0] for row in self.conn.execute("select gid from pg_prepared_xacts").fetchall()]
        for id in there:
            self.conn.execute(f"commit prepared '{id}'")  # type: ignore[arg-type]
        tasks = {row[0] for row in self.conn.execute("select task_identifier from pyworker.jobs").fetchall()}
        if missing := self.known.prepared - set(there) - tasks:
            self.verdict.fault(f"prepared transactions are lost: {missing}")
        self.jobs = {row[0]: row[1:] for row in self.conn.execute(JOBS).fetchall()}

    def transactions(self) -> None:
        """A worker whose COMMIT was not answered asks about it, perhaps late: other transactions come first,
        and get the ids of those that were lost."""
        for (job, run), id in self.known.asked.items():
            if job not in self.jobs:  # its add is lost, too, since synchronous_commit is off
                continue
            while int(self.value("select pg_current_xact_id()::text")) <= int(id):
                pass
            answer = self.value("select pyworker.was_finished(%s, %s, %s::xid8)", job, run, id)
            written = self.value("select count(*) from app.payments where job = %s", job) == 1
            if answer is not written:
                self.verdict.fault(
                    f"was_finished says {answer} of job {job}; that its writes are there, is {written}"
                )

    def come_back(self, worker: int) -> None:
        """A worker of before finds its connection lost. It names the runs that it holds, and reports them."""
        held = self.known.held(worker)
        ids, runs = [id for id, _ in held], [run for _, run in held]
        alive = self.value(
            "select kind from pyworker.beat(%s, %s, %s, lost_answer => true) where kind <> 'stop'",
            worker, ids, runs,
        )  # fmt: skip
        for id, run in held:
            if (id, run) in self.known.started and self.value("select pyworker.start_job(%s, %s)", id, run):
                self.verdict.fault(f"job {id} is started twice in run {run}")
        again = [run for run, by in self.known.claimed.items() if by == worker and run in self.known.accepted]
        self.report(worker, again, set())
        running = {
            (id, run)
            for id, run in held
            if self.value("select run from pyworker.get_job(%s) where state = 'running'", id) == run
        }
        self.verdict.tell(f"worker {worker} comes back, {alive}: reports {held}, holds {sorted(running)}")
        if running and alive != "alive":
            self.verdict.fault(f"worker {worker} was declared dead, and its runs {running} are not freed")
        for id, run in held:
            if (id, run) not in running:
                self.is_refused(self.random.choice(WORDS), id, run)
        self.report(worker, held, running if alive == "alive" else set())
        self.report(worker, held, set())

    def is_refused(self, statement: str, id: int, run: int) -> None:
        """A handler whose claim was lost goes on until it is told."""
        try:
            self.conn.execute(statement, [id, run])  # type: ignore[arg-type]
        except psycopg.Error as e:
            if e.sqlstate == "PW002":
                return
            raise
        self.verdict.fault(f"run {run} of job {id} was lost, and may do this: {statement}")

    def report(self, worker: int, runs: list[Run], right: set[Run]) -> None:
        """Reports success: the runs in `right` must be accepted, and no others."""
        try:
            rows = self.conn.execute(
                WORK, [worker, [id for id, _ in runs], [run for _, run in runs], None, None, 0]
            ).fetchall()
        except psycopg.Error as e:
            if e.sqlstate != "PW004":
                raise
            rows = [("refused", *run) for run in runs]
        accepted = set(runs) - {(row[1], row[2]) for row in rows if row[0] == "refused"}
        if accepted - right:
            self.verdict.fault(
                f"a report of worker {worker} is accepted that must not be: {accepted - right}"
            )
        if right - accepted:
            self.verdict.fault(f"a report of worker {worker} is refused: {right - accepted}")
        self.reported |= accepted

    def ids_are_new(self) -> None:
        job = self.value("select id from pyworker.add_job('plain')")
        if job in self.known.added or job in self.jobs:
            self.verdict.fault(f"a new job gets the id {job}, which another job has")
        self.jobs[job] = ("available", None, 0, "at_least_once", "plain")

    def bury(self) -> None:
        """The leases of the workers of before run out, and a sweep finds it."""
        for _ in range(5):
            self.value("select pyworker.advance_clock('15 s')")
            self.value("select kind from pyworker.beat(%s)", self.worker)
            self.value("select pyworker.sweep_workers()")
        alive = self.value("select array_agg(id) from pyworker.live_workers where id <> %s", self.worker)
        if alive:
            self.verdict.fault(f"workers {alive} have not been declared dead")

    def late_reports(self) -> None:
        """Not even by a way round the worker is a lost claim accepted."""
        runs = [run for run in self.known.claimed if run not in self.reported]
        ids = self.value("select pyworker.finish_jobs(%s, %s)", [id for id, _ in runs], [r for _, r in runs])
        if ids:
            self.verdict.fault(f"reports of runs that were lost are accepted: jobs {ids}")

    def drain(self) -> None:
        """The new worker runs all that can run."""
        for statement in (
            "select pyworker.resume_queue(q.queue_name) from pyworker.queue_stats q where q.paused",
            "select pyworker.run_schedules()",
            "select pyworker.pause_schedule(s.name) from pyworker.schedules s where not s.paused",
        ):
            self.conn.execute(statement)  # type: ignore[arg-type]
        done, parked = list[tuple[Run, str | None]](), list[Run]()
        for _ in range(ROUNDS):
            claimed = self.turn(done, parked)
            done, parked = [], []
            for id, run, task, delivery in claimed:
                self.claim_is_new(id, run)
                if delivery == "at_most_once":
                    self.begin(id, run)
                if task in OWN_TRANSACTIONS:
                    self.book(id, run)
                elif task != SIGNAL:
                    done.append(((id, run), None))
                elif (answer := self.wait(id, run)) is not None:
                    done.append(((id, run), answer))
                else:
                    parked.append((id, run))
            if not claimed:
                if not self.value("select count(*) from pyworker.jobs where state <> 'discarded'"):
                    return
                self.value("select pyworker.resume_sequence(s.sequence_key) from pyworker.sequences s")
                self.value("select pyworker.advance_clock('1 hour')")
                self.value("select kind from pyworker.beat(%s)", self.worker)
        left = self.conn.execute("select id, state from pyworker.jobs where state <> 'discarded'").fetchall()
        self.verdict.fault(f"jobs do not come to an end: {left}")

    def turn(self, done: list[tuple[Run, str | None]], parked: list[Run]) -> list[Any]:
        """Reports and claims; returns the claimed jobs."""
        ids, runs = [run[0] for run, _ in done], [run[1] for run, _ in done]
        rows = self.conn.execute(
            WORK,
            [self.worker, ids, runs, [result for _, result in done],
             Jsonb([{"id": id, "run": run, "do": "release"} for id, run in parked]), 50],
        ).fetchall()  # fmt: skip
        if refused := [row[1] for row in rows if row[0] == "refused" and row[1] in ids]:
            self.verdict.fault(f"reports of the new worker are refused: {refused}")
        return [row[1:] for row in rows if row[0] == "job"]

    def wait(self, id: int, run: int) -> str | None:
        """The signal as JSON text; None if the job waits."""
        answer = self.value("select pyworker.wait_for_signal(%s, %s, 'go', '1 hour')::text", id, run)
        sent = self.known.sent.get(id)
        if sent is not None and answer != json.dumps(sent):
            self.verdict.fault(f"job {id} has got {answer} instead of the signal {sent!r}")
        return answer

    def book(self, id: int, run: int) -> None:
        """The handler's writes and the end of its job, in one transaction."""
        try:
            with self.conn.transaction():
                self.conn.execute("insert into app.payments values (%s, 1)", [id])
                self.conn.execute("select pyworker.finish_job(%s, %s)", [id, run])
        except psycopg.errors.UniqueViolation:
            self.verdict.fault(f"job {id} runs again, and its writes are there")

    def claim_is_new(self, id: int, run: int) -> None:
        before = [known for job, known in self.known.claimed if job == id]
        if before and run <= max(before):
            self.verdict.fault(f"job {id} gets run {run}, which is not above those of before: {before}")

    def begin(self, id: int, run: int) -> None:
        if id in self.begun:
            self.verdict.fault(f"job {id}, which may run at most once, is claimed again after its start")
        if not self.value("select pyworker.start_job(%s, %s)", id, run):
            self.verdict.fault(f"job {id} cannot be started")
        self.begun.add(id)

    def ends(self) -> None:
        """Each job is where it should be."""
        found = {row[0]: row[1:] for row in self.conn.execute(JOBS).fetchall()}
        for id, before in self.jobs.items():
            if id not in found and before[4] != "fleeting":
                self.verdict.fault(f"job {id} has vanished; it was {before[0]} after the crash")
        started = {id for id, _ in self.known.started}
        reported = {id for id, _ in self.reported | self.known.accepted}
        for id, (state, reason, _, _, task) in found.items():
            if id in started - reported and (state, reason) != ("discarded", "lost"):
                self.verdict.fault(f"job {id} was started before the crash, and is {state}, {reason}")
            ended = id in self.jobs and self.jobs[id][0] in ("discarded", "cancelled", "completed")
            if not ended and state != "completed" and reason not in REASONS:
                self.verdict.fault(f"job {id} ({task}) has not run to its end: it is {state}, {reason}")

    def marks(self) -> None:
        """What was marked is marked; ticks are neither lost nor doubled."""
        for key in self.known.once:
            if self.value("select pyworker._once(%s)", key):
                self.verdict.fault(f"once({key!r}) is true again")
        ticks = self.conn.execute(
            "select (payload -> '_cron' ->> 'ts')::timestamptz from "
            "(select id from pyworker.jobs union all select id from pyworker.history) i, "
            "pyworker.get_job(i.id) where task_identifier = %s and payload -> '_cron' ->> 'backfilled' "
            "is not null and extract(second from (payload -> '_cron' ->> 'ts')::timestamptz) = 0 order by 1",
            [TICK],
        ).fetchall()
        gaps = {(b[0] - a[0]).total_seconds() for a, b in pairwise(ticks)}
        if gaps - {60.0}:
            self.verdict.fault(f"ticks are lost or doubled: {[tick[0] for tick in ticks]}")
