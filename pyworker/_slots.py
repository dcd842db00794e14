"""What a child is running, in memory that its parent sees, too: even of a child that was killed, or that a handler holds up in C."""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import time
from typing import NamedTuple

_SLOT = struct.Struct("qqd")
_STAMPS = struct.Struct("dd")  # of time.monotonic(), which all processes of a machine share


class Running(NamedTuple):
    job_id: int
    run: int
    deadline: float  # of time.monotonic(); 0: none


class Slots:
    def __init__(self, fd: int, count: int) -> None:
        self.fd = fd
        self._memory = mmap.mmap(fd, _STAMPS.size + count * _SLOT.size)
        self._count = count

    @classmethod
    def create(cls, count: int) -> Slots:
        with tempfile.TemporaryFile() as file:
            file.truncate(_STAMPS.size + count * _SLOT.size)
            fd = os.dup(file.fileno())
        os.set_inheritable(fd, True)
        slots = cls(fd, count)
        slots.turned()
        return slots

    def close(self) -> None:
        self._memory.close()
        os.close(self.fd)

    def turned(self) -> None:
        """The child's loop is at work."""
        struct.pack_into("d", self._memory, 0, time.monotonic())

    def answered(self) -> None:
        """… and the database has answered it."""
        struct.pack_into("d", self._memory, 8, time.monotonic())

    def stamps(self) -> tuple[float, float]:
        """When the child's loop last turned, and when the database last answered it; 0: not yet."""
        return _STAMPS.unpack_from(self._memory)

    def set(self, slot: int, job_id: int, run: int, deadline: float = 0.0) -> None:
        _SLOT.pack_into(self._memory, _STAMPS.size + slot * _SLOT.size, job_id, run, deadline)

    def clear(self, slot: int) -> None:
        self.set(slot, 0, 0)

    def running(self) -> list[Running]:
        return [job for job in map(Running._make, _SLOT.iter_unpack(self._memory[_STAMPS.size :])) if job.job_id]
