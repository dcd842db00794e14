"""A database with stepped functions, the sessions on it, and the states from which schedules begin."""

from __future__ import annotations

from collections import Counter
from typing import Any

import psycopg

from tests.interleavings import rewrite
from tests.interleavings.schedule import Actor, Run, Switches, play
from tests.interleavings.sessions import Controller, Session
from tests.interleavings.states import MAKE, MARKED, SET
from tests.interleavings.verbs import LEVELS, VERBS

TABLES = [
    "live_jobs", "finished_jobs", "unique_keys", "errors", "promotion_requests", "workers", "claims",
    "sequence_halts", "queues", "held_settings", "starts", "set_aside", "schedule_entries", "edges",
    "watches", "steps", "signals", "vanished_parents", "audit_log",
]  # fmt: skip
REGISTERS = [
    "listening_until", "polled_until", "fleet_size", "silent_before", "swept_at", "maintain_at",
    "due_told_at", "waited_until",
]  # fmt: skip
# Worker 3 listens. In every state worker 2 and 3 are live, and worker 1 unless it is dead.
RESTORE = """
    create or replace function pyworker_steps.restore_{start}() returns void language plpgsql as $$
    begin
        {deletes}
        {inserts}
        update pyworker.gate set floor = '0', floor_at = null;
        update pyworker.workers
        set expires_at = pyworker.clock()
                         + case when id = 1 and '{start}' = 'dead' then interval '-1 s' else '20 s' end;
        perform setval('pyworker.job_ids', 10), setval('pyworker.promotion_requests_id_seq', 1000),
            {registers}, setval('pyworker.coordination_used', 0, '{start}' = 'graph'),
            setval('pyworker.settings_used', 1000000, {settings}),
            setval('pyworker.listening_until', (extract(epoch from clock_timestamp()) * 1000)::bigint + 5000),
            setval('pyworker.swept_at', (extract(epoch from clock_timestamp()) * 1000)::bigint);
        if {marked} then
            begin
                perform from pyworker.live_jobs for update;
                raise sqlstate 'PW099';
            exception when sqlstate 'PW099' then
                null;
            end;
        end if;
    end
    $$
"""

PROMOTE = "select pyworker.promote_jobs()"
PLACES = "select id, parked, ready_at from pyworker.live_jobs"
# A job is known by who added it: its id depends on the schedule.
LOOK = "select coalesce(meta ->> 'by', id::text) from pyworker.claim_jobs(3, 10)"


class Stage:
    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.conn = psycopg.connect(dsn, autocommit=True)
        self.steps = rewrite.rewrite(self.conn)
        self.made: set[str] = set()
        self.controller = Controller(dsn)
        self.sessions = [Session(dsn, n, self.controller) for n in (0, 1, 2)]
        self.listener = psycopg.connect(dsn, autocommit=True)
        self.listener.execute("listen pyworker; set statement_timeout = '3s'")
        self.restored = 0

    def make(self, start: str, sql: str) -> None:
        """Makes a state by pyworker's own functions, and keeps a copy of its rows."""
        names = ", ".join(f"pyworker.{table}" for table in TABLES)
        self.conn.execute(f"truncate {names} restart identity; alter sequence pyworker.job_ids restart")
        self.conn.execute("select pyworker.maintain()")
        self.conn.execute(f"create schema keep_{start}")
        for statement in filter(str.strip, sql.split(";")):
            self.conn.execute(statement)  # each in a transaction of its own: only such let jobs in
        for table in TABLES:
            self.conn.execute(f"create table keep_{start}.{table} as table pyworker.{table}")
        deletes = "\n".join(f"delete from pyworker.{table};" for table in TABLES)
        inserts = "\n".join(
            f"insert into pyworker.{table} overriding system value table keep_{start}.{table};"
            for table in TABLES
        )
        registers = ", ".join(f"setval('pyworker.{name}', 0)" for name in REGISTERS)
        self.conn.execute(
            RESTORE.format(
                start=start,
                deletes=deletes,
                inserts=inserts,
                registers=registers,
                marked=start in MARKED,
                settings=start in SET,
            )
        )

    def restore(self, start: str) -> None:
        if start not in self.made:
            self.make(start, MAKE[start])
            self.made.add(start)
        if self.restored % 100 == 0:
            self.conn.execute("vacuum analyze " + ", ".join(f"pyworker.{t}" for t in TABLES[:-2]))
        self.restored += 1
        self.conn.execute(f"select pyworker_steps.restore_{start}()")
        self.conn.execute("reset all")
        self.notified()

    def notified(self) -> set[int]:
        """The other sessions that have notified worker 3 since the last call."""
        self.listener.execute("select 1")
        return {notify.pid for notify in self.listener.notifies(timeout=0)} - {self.listener.info.backend_pid}

    def let_in(self, conn: psycopg.Connection[Any], run: Run) -> None:
        """What a worker does in its turn before it claims."""
        before = conn.execute(PLACES).fetchall()
        conn.execute(PROMOTE)
        run.moved |= {job for job, _, _ in {*before} ^ {*conn.execute(PLACES).fetchall()}}

    def look(self, run: Run, idle: int | None) -> None:
        """What worker 3 does when a transaction has ended: if it is notified, it claims again.

        It takes nothing, so that the state stays what the two sessions have made of it: only what
        it lets in counts, and what it is told, when to look again. If it is itself one of the two
        (`idle`), it looks when its schedule says; what notified it before that does not count.
        """
        by = self.notified()
        if idle is not None:
            if all(entry.session != idle for entry in run.trace):
                return
            run.notified = run.notified or bool(by)
        elif by:
            try:
                self.let_in(self.listener, run)
                self.listener.execute("begin")
                taken = self.listener.execute(LOOK).fetchall()
            except psycopg.errors.QueryCanceled:
                run.knot = ["worker 3 at its claim"]
                return
            finally:
                self.listener.execute("rollback")
            row = self.listener.execute("select pyworker.seconds_until_due()").fetchone()
            run.taken, run.told = Counter(job for (job,) in taken), row and row[0]
            run.notified = False

    def actor(self, n: int, verb: str, level: str, how: str) -> Actor:
        v = VERBS[verb]
        script = [v.sql.replace("%by", "ABC"[n]), how]
        ends: tuple[int, ...] = (1,)
        if v.after:
            script.append(v.after)
        elif v.then:
            script += ["begin", v.then.replace("%by", "ABC"[n]), "commit"]
            ends = (1, 4)
        self.sessions[n].run("reset all")
        return Actor(self.sessions[n], LEVELS[level], script, ends)

    def play(
        self,
        verbs: tuple[str, ...],
        start: str,
        level: str,
        hows: tuple[str, ...],
        first: int,
        switches: Switches,
    ) -> Run:
        self.restore(start)
        actors = [self.actor(n, verbs[n], level, hows[n]) for n in range(len(verbs))]
        idle = verbs.index("idle") if "idle" in verbs else None
        if idle is not None:  # it begins to listen in its schedule; nobody does before
            self.conn.execute("select setval('pyworker.listening_until', 0)")

        def ended(run: Run) -> None:
            if VERBS[verbs[run.trace[-1].session]].reports:  # who has reported takes its next turn at once
                self.let_in(self.conn, run)
            if any(not actor.done for actor in actors) or idle is not None:
                self.look(run, idle)

        run = play(actors, self.steps, first, switches, ended)
        run.notified = run.notified or bool(self.notified())
        return run

    def close(self) -> None:
        for session in self.sessions:
            session.close()
        for conn in (self.conn, self.listener, self.controller.conn):
            conn.close()
