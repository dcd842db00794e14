"""Memory that a child shares with its parent.

The parent reads what the child is running and when its loop last turned, even after the child was
killed or while C code blocks it. The child reads until when it may start jobs, even while the
parent stands still."""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol

COUNTED = ("done", "fail", "discard", "cancel", "snooze")  # how reports end a run
_STAMPS = struct.Struct("ddd")  # turned, answered, lease
_COUNTS = struct.Struct("q" * len(COUNTED))
_BATCH = struct.Struct("q")  # jobs of a call at most
_HEAD_SIZE = _STAMPS.size + _COUNTS.size + _BATCH.size
_TIME = struct.Struct("d")
_SLOT = struct.Struct("qqdq")  # id, run, deadline, and how many more jobs its call has
_RUN = struct.Struct("qq")  # id, run
# Seconds, including the time that the machine slept: the database's clock went on during it.
boottime = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Held(Protocol):
    """A job in the child."""

    id: int
    run: int


class Running(NamedTuple):
    job_id: int
    run: int
    deadline: float  # by time.monotonic(), which all processes of a machine share; 0: none
    slot: int  # of its call


class Slots:
    """A slot for each handler that may run, with the job of its call.

    The other jobs of a batch are in the file behind all slots, and then the names of the tasks. Only the
    child knows how large batches are, once it has loaded its tasks."""

    def __init__(self, fd: int, count: int) -> None:
        self.fd = fd
        self._count = count
        self._counting = threading.Lock()
        self._memory = mmap.mmap(fd, _HEAD_SIZE + count * _SLOT.size)

    @classmethod
    def create(cls, count: int) -> Slots:
        fd = _anonymous_file()
        os.truncate(fd, _HEAD_SIZE + count * _SLOT.size)
        os.set_inheritable(fd, True)
        slots = cls(fd, count)
        slots.turned()
        slots.prolong(math.inf)
        return slots

    def close(self) -> None:
        self._memory.close()
        os.close(self.fd)

    def turned(self) -> None:
        """Called by the child at each turn of its loop."""
        _TIME.pack_into(self._memory, 0, time.monotonic())

    def answered(self) -> None:
        """Called by the child when the database has answered."""
        _TIME.pack_into(self._memory, 8, time.monotonic())

    def refused(self) -> None:
        """Called by the child when the database has refused a statement."""
        _TIME.pack_into(self._memory, 8, -1.0)

    def stamps(self) -> tuple[float, float]:
        """When the child's loop last turned, and when the database last answered it.

        The times are those of time.monotonic(). For the latter 0 means not yet, and -1 that the
        database refuses.
        """
        turned, answered, _ = _STAMPS.unpack_from(self._memory)
        return turned, answered

    def count(self, **ended: int) -> None:
        """Called by the child when jobs have ended; handlers' threads call it, too."""
        with self._counting:
            counts = self.counts()
            counts.update({name: counts[name] + more for name, more in ended.items()})
            _COUNTS.pack_into(self._memory, _STAMPS.size, *counts.values())

    def counts(self) -> dict[str, int]:
        return dict(zip(COUNTED, _COUNTS.unpack_from(self._memory, _STAMPS.size), strict=True))

    def know(self, tasks: Iterable[str], batch: int = 1) -> None:
        """Called by the child: the tasks that it has loaded, and how many jobs a call of theirs may have."""
        _BATCH.pack_into(self._memory, _HEAD_SIZE - _BATCH.size, batch)
        os.pwrite(self.fd, json.dumps([*tasks]).encode(), self._others_of(self._count))

    def known(self) -> list[str]:
        begin = self._others_of(self._count)
        return json.loads(os.pread(self.fd, os.fstat(self.fd).st_size - begin, begin) or b"[]")

    def _others_of(self, slot: int) -> int:
        """Where in the file the jobs of a slot's batch are, but for the first one."""
        (batch,) = _BATCH.unpack_from(self._memory, _HEAD_SIZE - _BATCH.size)
        return len(self._memory) + slot * max(batch - 1, 0) * _RUN.size

    def prolong(self, until: float) -> None:
        """Called by the parent: the lease lasts until this boottime()."""
        _TIME.pack_into(self._memory, 16, until)

    def expired(self) -> bool:
        """Called by the child: true if other workers may have been given its jobs."""
        return boottime() > self.lease()

    def lease(self) -> float:
        """Until which boottime() no other worker may be given the child's jobs."""
        return _TIME.unpack_from(self._memory, 16)[0]

    def set(self, slot: int, jobs: Sequence[Held], deadline: float = 0.0) -> None:
        """Set the slot of a call with these jobs."""
        others, first = len(jobs) - 1, jobs[0]
        if others:  # first, as they are read only once the slot says how many there are
            os.pwrite(
                self.fd, b"".join(_RUN.pack(job.id, job.run) for job in jobs[1:]), self._others_of(slot)
            )
        _SLOT.pack_into(self._memory, _HEAD_SIZE + slot * _SLOT.size, first.id, first.run, deadline, others)

    def clear(self, slot: int) -> None:
        _SLOT.pack_into(self._memory, _HEAD_SIZE + slot * _SLOT.size, 0, 0, 0.0, 0)

    def blame(self, calls: Iterable[tuple[int, Sequence[Held]]]) -> None:
        """Called by the child before it ends: only these calls are to blame, by slot and jobs."""
        size = len(self._memory) - _HEAD_SIZE
        self._memory[_HEAD_SIZE:] = bytes(size)
        for slot, jobs in calls:
            self.set(slot, jobs)

    def running(self) -> list[Running]:
        """Every job that runs, those of a batch included."""
        found: list[Running] = []
        for slot, (job_id, run, deadline, more) in enumerate(_SLOT.iter_unpack(self._memory[_HEAD_SIZE:])):
            if not job_id:
                continue
            others = os.pread(self.fd, more * _RUN.size, self._others_of(slot)) if more else b""
            now = _SLOT.unpack_from(self._memory, _HEAD_SIZE + slot * _SLOT.size)
            if not others or now[:2] == (job_id, run):  # else they may be those of the slot's next call
                found.append(Running(job_id, run, deadline, slot))
                found += [Running(other[0], other[1], deadline, slot) for other in _RUN.iter_unpack(others)]
        return found


def _anonymous_file() -> int:
    """A file in memory where the system supports it.

    So a worker needs no writable directory.
    """
    with suppress(AttributeError, OSError):
        return os.memfd_create("pyworker")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
