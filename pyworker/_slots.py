"""What a child is running, in memory that its parent sees, too: even of a child that was killed, or that a handler holds up in C."""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from typing import NamedTuple

_SLOT = struct.Struct("qqd")


class Running(NamedTuple):
    job_id: int
    run: int
    deadline: float  # of time.monotonic(), which all processes of a machine share; 0: none


class Slots:
    def __init__(self, fd: int, count: int) -> None:
        self.fd = fd
        self._memory = mmap.mmap(fd, count * _SLOT.size)
        self._count = count

    @classmethod
    def create(cls, count: int) -> Slots:
        with tempfile.TemporaryFile() as file:
            file.truncate(count * _SLOT.size)
            fd = os.dup(file.fileno())
        os.set_inheritable(fd, True)
        return cls(fd, count)

    def close(self) -> None:
        self._memory.close()
        os.close(self.fd)

    def set(self, slot: int, job_id: int, run: int, deadline: float = 0.0) -> None:
        _SLOT.pack_into(self._memory, slot * _SLOT.size, job_id, run, deadline)

    def clear(self, slot: int) -> None:
        _SLOT.pack_into(self._memory, slot * _SLOT.size, 0, 0, 0.0)

    def running(self) -> list[Running]:
        return [job for job in map(Running._make, _SLOT.iter_unpack(self._memory)) if job.job_id]
