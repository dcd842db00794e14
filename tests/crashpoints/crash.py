"""A server that has crashed at a point of a recording, and what its clients know."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pyworker._dev import postgres
from tests.crashpoints import wal
from tests.crashpoints.recording import ALWAYS, SETTINGS, UNLOGGED, Point, Recording, State, Step

Run = tuple[int, int]


class Wreck:
    """One data directory, used for one crash after the other."""

    def __init__(self, stack: ExitStack, recording: Recording) -> None:
        self.recording = recording
        self._account = postgres._account()
        parent = postgres._parents(self._account, in_memory=True)[0]
        home, self._lock = stack.enter_context(postgres._own_directory(parent, self._account))
        self._server = postgres.Server(str(home / "data"), recording.bindir)

    @contextmanager
    def crashed(self, point: Point, torn: int) -> Iterator[postgres.Server]:
        """Starts a server on what is left: the data of the beginning, and the log up to the point."""
        data = Path(self._server.host)
        self._restore(self.recording.base, data)
        wal.cut(self.recording.log, data / "pg_wal", self.recording.start, point.record.end, torn)
        for segment in (data / "pg_wal").glob("0*"):
            self._give(segment)
        settings = SETTINGS | {"synchronous_commit": "on"}
        with postgres._running(self._server, self._lock, self._account, signal.SIGQUIT, settings) as server:
            yield server

    def _restore(self, base: Path, data: Path) -> None:
        """Copies what the last server has changed, and removes what it has added."""
        if not data.exists():
            data.mkdir(mode=0o700)
            self._give(data)
        kept = {entry.name: entry for entry in os.scandir(base)}
        for entry in os.scandir(data):
            if entry.name not in kept:
                path = Path(entry.path)
                shutil.rmtree(path) if entry.is_dir(follow_symlinks=False) else path.unlink()
        for name, entry in kept.items():
            target = data / name
            if entry.is_dir():
                self._restore(Path(entry.path), target)
            elif not target.exists() or _print(entry.stat()) != _print(target.stat()):
                shutil.copy2(entry.path, target)
                self._give(target)

    def _give(self, path: Path) -> None:
        if self._account:
            os.chown(path, self._account.pw_uid, self._account.pw_gid)


def _print(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_size, stat.st_mtime_ns


# What is no promise where the commit is lost; that a run was claimed, its worker knows all the same.
FORGOTTEN = ("added", "accepted", "sent", "closed")
FORGOTTEN_BY_A_STANDBY = (*FORGOTTEN, "started", "once", "prepared")


@dataclass
class Known:
    """What the clients of before the crash have been told by then."""

    workers: list[int] = field(default_factory=list[int])
    closed: set[int] = field(default_factory=set[int])
    added: set[int] = field(default_factory=set[int])
    claimed: dict[Run, int] = field(default_factory=dict[Run, int])  # by which worker
    accepted: set[Run] = field(default_factory=set[Run])
    started: set[Run] = field(default_factory=set[Run])  # handlers with delivery at_most_once have begun
    once: set[str] = field(default_factory=set[str])
    sent: dict[int, str] = field(default_factory=dict[int, str])
    prepared: set[str] = field(default_factory=set[str])  # two-phase commits
    asked: dict[Run, str] = field(default_factory=dict[Run, str])  # ended in this transaction, perhaps

    def held(self, worker: int) -> list[Run]:
        """The runs that it would report now."""
        return [run for run, by in self.claimed.items() if by == worker and run not in self.accepted]

    def learn(self, step: Step, but: tuple[str, ...]) -> None:
        for kind, values in step.facts:
            if kind in but:
                continue
            match kind:
                case "worker":
                    self.workers.append(values[0])
                case "closed":
                    self.closed.add(values[0])
                case "added":
                    self.added.add(values[0])
                case "claimed":
                    self.claimed[values[1:]] = values[0]
                case "accepted":
                    self.accepted.add(values)  # type: ignore[arg-type]
                case "started":
                    self.started.add(values)  # type: ignore[arg-type]
                case "once":
                    self.once.add(values[0])
                case "prepared":
                    self.prepared.add(values[0])
                case "sent":
                    self.sent.setdefault(*values)
                case "asked":
                    self.asked[values[:2]] = values[2]
                case _:
                    raise ValueError(f"no fact is called {kind}")


def answered(recording: Recording, point: Point, behind: int = 0) -> list[Step]:
    """The statements whose answers may have arrived by then: the crash has lost no log that was on disk as
    they were answered. Those that do not wait for the disk are among them: their commits may be lost.

    `behind`: so many more were answered by a server whose standby had not received their log yet."""
    count = sum(step.acked <= point.record.end for step in recording.steps)
    return recording.steps[: count + behind]


def lost(step: Step, point: Point) -> bool:
    return any(record.end > point.record.end for record in step.commits)


def known(recording: Recording, point: Point, behind: int = 0) -> Known:
    it, forgotten = Known(), False
    for step in answered(recording, point, behind):
        gone = lost(step, point) or step.acked > point.record.end
        forgotten = forgotten or gone  # so are all that follow: they are behind it in the log
        it.learn(step, (FORGOTTEN_BY_A_STANDBY if behind else FORGOTTEN) if forgotten else ())
    for step in recording.steps:
        if step.began <= point.record.end:
            it.started.difference_update(step.undone)
    return it


def expected(recording: Recording, point: Point) -> tuple[State, Step | None]:
    """The rows of the last transaction that the log commits, and its step."""
    state, last = recording.before, None
    for step in recording.steps:
        if any(record.end <= point.record.end for record in step.commits):
            state, last = step.state, step
    return state, last


def must_be_kept(recording: Recording, step: Step) -> bool:
    return step.durable == ALWAYS or (recording.synchronous and step.durable != "never")


__all__ = ["UNLOGGED", "Known", "Run", "Wreck", "answered", "expected", "known", "must_be_kept"]
