"""Plays a script on a server, and notes after each statement what was answered and what is on disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from pyworker._db.migrations import migrate
from tests.crashpoints import wal
from tests.support.servers import Postgres

# Lost at a crash, by design: hints (sql/README.md). All other tables must be as the commits made them.
UNLOGGED = {"waiters"}
SETTINGS = {
    "full_page_writes": "on", "wal_level": "replica", "checkpoint_timeout": "1d", "max_wal_size": "10GB",
    "autovacuum": "off", "max_connections": "30", "max_prepared_transactions": "4",
    # Nothing but a commit that waits for the disk writes the log: so an asynchronous one is lost as late
    # as can be.
    "wal_writer_delay": "10s", "wal_writer_flush_after": "1GB", "bgwriter_lru_maxpages": "0",
}  # fmt: skip
LSN = "select pg_wal_lsn_diff(pg_current_wal_{}(), '0/0')::bigint"
State = dict[str, str]  # of each table: a digest of its rows

# When the commit of a statement is on disk as it is answered: always; unless synchronous_commit is off;
# never, as docs/delivery.md and docs/protocol.md say.
ALWAYS, USUALLY, NEVER = "always", "usually", "never"


class Fact(NamedTuple):
    """What a client knows from an answer: ("started", job), ("claimed", worker, job, run) …"""

    kind: str
    values: tuple[Any, ...]


Spoil = Callable[[psycopg.Connection[Any]], None]
Learn = Callable[[list[Any]], Sequence[Fact]]


@dataclass
class Step:
    name: str
    session: str
    sql: str
    answer: list[Any] | str  # rows, or an SQLSTATE
    durable: str
    began: int  # places in the log: before it,
    ended: int  # after it,
    acked: int  # and what was on disk when it was answered
    facts: list[Fact]
    state: State
    commits: list[wal.Record] = field(default_factory=list[wal.Record])
    # Runs of which it says, answered or not, that their handler has done nothing: they may be tried again.
    undone: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])


@dataclass(frozen=True)
class Point:
    """A crash that leaves the log up to this record."""

    name: str  # finish-own.3: the third record of the step finish-own
    number: int
    record: wal.Record
    step: Step


class Recorder:
    def __init__(self, server: Postgres) -> None:
        self.server, self.steps = server, list[Step]()
        self._sessions: dict[str, psycopg.Connection[Any]] = {}
        self._watch = psycopg.connect(server.url, autocommit=True)
        self.before = state_of(self._watch)
        self.start = self._lsn("insert_lsn")

    def _lsn(self, which: str) -> int:
        return self._watch.execute(LSN.format(which)).fetchone()[0]  # type: ignore[arg-type, index]

    def session(self, name: str) -> psycopg.Connection[Any]:
        if name not in self._sessions:
            self._sessions[name] = psycopg.connect(self.server.url, autocommit=True)
        return self._sessions[name]

    def step(
        self,
        name: str,
        statement: str,
        parameters: Sequence[Any] = (),
        on: str = "app",
        durable: str = USUALLY,
        learns: Learn | None = None,
    ) -> list[Any]:
        """One statement of one session. `learns`: what its client knows once it is answered."""
        conn = self.session(on)
        taken = sum(step.name.split("~")[0] == name for step in self.steps)
        name = f"{name}~{taken + 1}" if taken else name
        began = self._lsn("insert_lsn")
        cursor = psycopg.ClientCursor(conn)
        text = cursor.mogrify(statement, parameters) if parameters else statement
        answer: list[Any] | str
        try:
            cursor.execute(text)  # type: ignore[arg-type]
            answer = cursor.fetchall() if cursor.description else []
        except psycopg.Error as e:
            answer = e.sqlstate or "lost"
        acked, ended = self._lsn("flush_lsn"), self._lsn("insert_lsn")
        rows = answer if isinstance(answer, list) else []
        facts = list(learns(rows)) if learns and isinstance(answer, list) else []
        self.steps.append(
            Step(name, on, " ".join(text.split()), answer, durable, began, ended, acked, facts,
                 state_of(self._watch))
        )  # fmt: skip
        return rows

    def relations(self) -> dict[int, str]:
        rows = self._watch.execute("select pg_relation_filenode(oid), relname from pg_class").fetchall()
        return {node: name for node, name in rows if node}

    def close(self) -> None:
        for conn in (*self._sessions.values(), self._watch):
            conn.close()


def state_of(conn: psycopg.Connection[Any]) -> State:
    """A digest of the rows of each table: of pyworker's, but the unlogged ones, and the application's."""
    tables = conn.execute(
        "select n.nspname, c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace "
        "where n.nspname in ('pyworker', 'app') and c.relkind = 'r' and c.relname <> all (%s) order by 1, 2",
        [list(UNLOGGED)],
    ).fetchall()
    each = [
        sql.SQL("select {}, md5(string_agg(t::text, chr(10) order by t::text)) from {} t").format(
            name, sql.Identifier(schema, name)
        )
        for schema, name in tables
    ]
    return {name: digest or "" for name, digest in conn.execute(sql.SQL(" union all ").join(each)).fetchall()}


@dataclass
class Recording:
    """The data at the start, the log of what followed, and what each statement was answered."""

    base: Path
    log: Path
    bindir: Path
    steps: list[Step]
    points: list[Point]
    before: State
    start: int
    synchronous: bool  # synchronous_commit is on for all sessions that do not set it

    def point(self, name: str) -> Point:
        for point in self.points:
            if name in (point.name, wal.shown(point.record.end)):
                return point
        raise SystemExit(f"there is no crash point {name!r}: --list shows all")


def install(server: Postgres, spoil: Spoil | None) -> None:
    with psycopg.connect(server.url, autocommit=True) as conn:
        migrate(conn, movable_clock=True)
        conn.execute("create schema app; create table app.payments (job bigint primary key, amount numeric)")
        if spoil:
            spoil(conn)


@contextmanager
def recorded(
    script: Callable[[Recorder], None], synchronous: bool = True, spoil: Spoil | None = None
) -> Iterator[Recording]:
    """Plays the script; the recording is kept as long as the block lasts. `spoil` breaks something first."""
    settings = SETTINGS | {"synchronous_commit": "on" if synchronous else "off"}
    with ExitStack() as stack:
        server = Postgres(stack, **settings)
        install(server, spoil)
        server.stop_cleanly()
        data = Path(server.server.host)
        base, log = data.with_name("base"), data.with_name("log_of_all")
        shutil.copytree(data, base)
        server.start()
        # It says now that it runs: with the file of the stopped server, no crash would be recovered from.
        shutil.copy2(data / "global/pg_control", base / "global/pg_control")
        recorder = Recorder(server)
        script(recorder)
        last = recorder.session("app")
        last.execute("set synchronous_commit = on; select pg_logical_emit_message(true, 'the end', '')")
        last.execute("select pg_logical_emit_message(true, 'a record after the end', '')")
        relations = recorder.relations()
        recorder.close()
        server.stop_immediately()
        shutil.copytree(data / "pg_wal", log)
        shutil.rmtree(data, ignore_errors=True)
        bindir = server.server.bindir
        found = wal.records(bindir, log, recorder.start, relations)
        points = points_of(recorder.steps, found)
        yield Recording(
            base, log, bindir, recorder.steps, points, recorder.before, recorder.start, synchronous
        )


def points_of(steps: list[Step], found: list[wal.Record]) -> list[Point]:
    points = list[Point]()
    number, within = 0, 0
    for record in found:
        while number + 1 < len(steps) and record.lsn >= steps[number + 1].began:
            number, within = number + 1, 0
        step = steps[number]
        if number + 1 == len(steps) and record.lsn >= step.ended:
            break
        within += 1
        if record.commits:
            step.commits.append(record)
        points.append(Point(f"{step.name}.{within}", len(points), record, step))
    return points
