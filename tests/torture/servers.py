"""Servers in a world of their own: on a small disk, and with a clock that jumps."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from pyworker._dev import postgres
from tests.support.servers import Postgres

SIZE = 256 << 20  # bytes of a small disk: an empty database takes a fifth of it
WAL = {"max_wal_size": "64MB", "min_wal_size": "32MB"}
FAKETIME = ("/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib*/faketime/libfaketime.so.1")


@contextmanager
def small_disk(size: int = SIZE) -> Iterator[Path]:
    """A file system of its own; skips the test where it may not be mounted."""
    place = Path(tempfile.mkdtemp(prefix="pyworker-disk-", dir="/tmp"))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0711", "tmpfs", str(place)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True)
    except FileNotFoundError:
        done = subprocess.CompletedProcess(mount, 1, "", "there is no mount here")
    if done.returncode:
        place.rmdir()
        pytest.skip(f"a small file system cannot be mounted: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
        place.rmdir()


class OnSmallDisk(Postgres):
    """Its data are on a disk that can be filled; with `log_elsewhere`, its write-ahead log is not. Where the
    log is full, PostgreSQL crashes; where a table is, a statement fails."""

    log_elsewhere = False

    def __init__(self, stack: ExitStack, **settings: str) -> None:
        self._disk = stack.enter_context(small_disk())  # before the server, so that it is there after it
        super().__init__(stack, **WAL | settings)
        self.stop_cleanly()
        data, place = Path(self.server.host), self._disk / "data"
        subprocess.run(["cp", "-a", str(data), str(place)], check=True)
        if self.log_elsewhere:
            log = self._home / "log files"
            subprocess.run(["cp", "-a", str(place / "pg_wal"), str(log)], check=True)
            shutil.rmtree(place / "pg_wal")
            (place / "pg_wal").symlink_to(log)
        shutil.rmtree(data)
        data.symlink_to(place)
        self.start()

    @property
    def _ballast(self) -> Path:
        return self._disk / "ballast"

    def fill(self) -> None:
        """Up to the last block."""
        with self._ballast.open("wb") as file:
            for chunk in (1 << 20, 4096):
                block = b"\0" * chunk
                with suppress(OSError):
                    while True:
                        os.write(file.fileno(), block)

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def revive(self, patience: float = 5.0) -> bool:
        """Starts the server again if it has given up. True if it had."""
        until = time.monotonic() + patience
        while time.monotonic() < until:
            if select.select([self._process], [], [], 0.1)[0]:
                self.start()
                return True
            if postgres._answers(self.server):
                return False
        self.stop_immediately()
        self.start()
        return True


class LogElsewhere(OnSmallDisk):
    log_elsewhere = True


def faketime() -> str:
    """The library that lies to a program about the time; skips the test where it is not."""
    for pattern in FAKETIME:
        for found in Path("/").glob(pattern[1:]):
            return str(found)
    pytest.skip("there is no libfaketime here (Debian's package: libfaketime)")


class WithJumpingClock(Postgres):
    """All its processes read the time by way of libfaketime, which adds what a file says."""

    def __init__(self, stack: ExitStack, **settings: str) -> None:
        library = faketime()
        self._place = Path(tempfile.mkdtemp(prefix="pyworker-clock-", dir="/tmp"))
        stack.callback(shutil.rmtree, self._place)
        self._place.chmod(0o755)
        self.offset = self.furthest = 0.0
        self.jump_to(0.0)
        bindir, _ = stack.enter_context(postgres._runnable(postgres.find_bindir(), postgres._account()))
        environment = (
            f"LD_PRELOAD={library} FAKETIME_TIMESTAMP_FILE={self._place}/offset FAKETIME_NO_CACHE=1 "
            "FAKETIME_DISABLE_SHM=1 DONT_FAKE_MONOTONIC=1 FAKETIME_DONT_FAKE_MONOTONIC=1"
        )
        for name, first in (("postgres", f"env {environment} "), ("initdb", "")):
            script = self._place / name
            script.write_text(f'#!/bin/sh\nexec {first}{bindir / name} "$@"\n')
            script.chmod(0o755)
        super().__init__(stack, **settings)

    def start(self) -> None:
        self.server.bindir = self._place
        super().start()

    def jump_to(self, offset: float) -> None:
        """From now on the server's clock is so many seconds before the real one, for all its processes at
        once."""
        new = self._place / "new"
        new.write_text(f"{offset:+.3f}\n")
        new.chmod(0o644)
        new.rename(self._place / "offset")
        self.offset, self.furthest = offset, max(self.furthest, offset)
