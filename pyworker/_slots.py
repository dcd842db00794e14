"""What a child is running, in memory that its parent sees, too: even of a child that was killed, or that a handler holds up in C; and,
the other way, until when the child may begin what it holds: even if its parent stands still."""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import time
from typing import NamedTuple

_LEASE = struct.Struct("d")
_SLOT = struct.Struct("qqd")


class Running(NamedTuple):
    job_id: int
    run: int
    deadline: float  # of time.monotonic(), which all processes of a machine share; 0: none


class Slots:
    def __init__(self, fd: int, count: int) -> None:
        self.fd = fd
        self._memory = mmap.mmap(fd, _LEASE.size + count * _SLOT.size)

    @classmethod
    def create(cls, count: int) -> Slots:
        with tempfile.TemporaryFile() as file:
            file.truncate(_LEASE.size + count * _SLOT.size)
            fd = os.dup(file.fileno())
        os.set_inheritable(fd, True)
        return cls(fd, count)

    def close(self) -> None:
        self._memory.close()
        os.close(self.fd)

    def set(self, slot: int, job_id: int, run: int, deadline: float = 0.0) -> None:
        _SLOT.pack_into(self._memory, _LEASE.size + slot * _SLOT.size, job_id, run, deadline)

    def clear(self, slot: int) -> None:
        _SLOT.pack_into(self._memory, _LEASE.size + slot * _SLOT.size, 0, 0, 0.0)

    def running(self) -> list[Running]:
        return [job for job in map(Running._make, _SLOT.iter_unpack(self._memory[_LEASE.size :])) if job.job_id]

    def prolong(self, until: float) -> None:
        _LEASE.pack_into(self._memory, 0, until)

    def expired(self) -> bool:
        """Has boottime() come to where `prolong` has put it? Others may have been given our jobs, then."""
        return boottime() > _LEASE.unpack_from(self._memory)[0]


def boottime() -> float:
    """Seconds, those included in which the machine slept: the database's clock did not."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
