"""What processes have used: CPU and memory, read from /proc."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def _stat(pid: int) -> tuple[int, float, float] | None:
    """Parent, CPU seconds of its own, CPU seconds of children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    own, ended = (sum(map(int, fields[start : start + 2])) / TICKS for start in (11, 13))
    return int(fields[1]), own, ended


def family(root: int) -> list[int]:
    """A process and its living descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (found := _stat(int(entry))):
            children.setdefault(found[0], []).append(int(entry))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def cpu(root: int, *, without: int = 0) -> float:
    """CPU seconds of a process and its descendants, living or ended."""
    while True:
        pids = family(root)
        used = [_stat(pid) for pid in pids if pid != without]
        # A process that ended meanwhile is counted neither by itself nor by its parent, or by both.
        if all(used) and family(root) == pids:
            return sum(stat[1] + stat[2] for stat in used if stat)


def stolen(since: tuple[float, float] = (0.0, 0.0)) -> tuple[float, float]:
    """CPU seconds that the host gave to other machines while this one wanted them, and those that this
    one had. Where there is no /proc/stat: none."""
    with suppress(FileNotFoundError):
        total = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        user, nice, system, _idle, _iowait, irq, softirq, steal, *_ = (int(ticks) / TICKS for ticks in total)
        return steal - since[0], user + nice + system + irq + softirq - since[1]
    return 0.0, 1.0


def memory(pid: int) -> float:
    """Resident MB, shared libraries included."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / 1e6


@dataclass
class Reading:
    client: float
    server: float
    wal: int

    def __sub__(self, other: Reading) -> Reading:
        return Reading(self.client - other.client, self.server - other.server, self.wal - other.wal)


def postmaster_of(conn: psycopg.Connection[tuple[int]]) -> int:
    """The server's first process; 0 when it is on another machine."""
    pid = conn.info.backend_pid
    command = Path(f"/proc/{pid}/cmdline")
    stat = _stat(pid)
    return stat[0] if stat and b"postgres" in command.read_bytes() else 0
