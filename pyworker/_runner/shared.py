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
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

COUNTED = ("done", "fail", "discard", "cancel", "snooze")  # how reports end a run
_STAMPS = struct.Struct("ddd")  # turned, answered, lease
_COUNTS = struct.Struct("q" * len(COUNTED))
_HEAD_SIZE = _STAMPS.size + _COUNTS.size
_TIME = struct.Struct("d")
_SLOT = struct.Struct("qqd")
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Running(NamedTuple):
    job_id: int
    run: int
    deadline: float  # by time.monotonic(), which all processes of a machine share; 0: none


class Slots:
    def __init__(self, fd: int, count: int) -> None:
        self.fd = fd
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

    def know(self, tasks: Iterable[str]) -> None:
        """Called by the child: the tasks that it has loaded. They stand behind the slots."""
        os.pwrite(self.fd, json.dumps([*tasks]).encode(), len(self._memory))

    def known(self) -> list[str]:
        size = os.fstat(self.fd).st_size - len(self._memory)
        return json.loads(os.pread(self.fd, size, len(self._memory)) or b"[]")

    def prolong(self, until: float) -> None:
        """Called by the parent: the lease lasts until this boottime()."""
        _TIME.pack_into(self._memory, 16, until)

    def expired(self) -> bool:
        """Called by the child: true if other workers may have been given its jobs."""
        return time.clock_gettime(_BOOTTIME) > _TIME.unpack_from(self._memory, 16)[0]

    def set(self, slot: int, job_id: int, run: int, deadline: float = 0.0) -> None:
        _SLOT.pack_into(self._memory, _HEAD_SIZE + slot * _SLOT.size, job_id, run, deadline)

    def clear(self, slot: int) -> None:
        _SLOT.pack_into(self._memory, _HEAD_SIZE + slot * _SLOT.size, 0, 0, 0.0)

    def blame(self, jobs: Iterable[tuple[int, int, int]]) -> None:
        """Called by the child before it ends: only these (slot, id, run) are to blame."""
        size = len(self._memory) - _HEAD_SIZE
        self._memory[_HEAD_SIZE:] = bytes(size)
        for slot, job_id, run in jobs:
            self.set(slot, job_id, run)

    def running(self) -> list[Running]:
        return [job for job in map(Running._make, _SLOT.iter_unpack(self._memory[_HEAD_SIZE:])) if job.job_id]


def _anonymous_file() -> int:
    """A file in memory where the system supports it.

    So a worker needs no writable directory.
    """
    with suppress(AttributeError, OSError):
        return os.memfd_create("pyworker")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def boottime() -> float:
    """Seconds, including the time that the machine slept.

    The database's clock went on during it.
    """
    return time.clock_gettime(_BOOTTIME)
