"""Three PostgreSQL servers under Patroni, and the etcd that says which of them leads. All of it is in one
temporary directory, on free ports, and runs as an account that may run PostgreSQL."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg

from pyworker._dev import postgres
from tests.support.pooler import free_port
from tests.support.workers import Queue, ends_of

TTL = 10  # seconds after which the key of a leader that does not renew it is free
DEADLINE = 120.0  # seconds that a cluster may take to be whole again
SCOPE = "jobs"
PARAMETERS = {
    "wal_level": "logical", "wal_keep_size": "256MB", "max_connections": 200, "shared_buffers": "32MB",
    "hot_standby": "on", "wal_log_hints": "on", "jit": "off", "log_min_messages": "warning",
}  # fmt: skip


def programs() -> Path:
    """Those that Patroni is tested with: the system's, unless PYWORKER_PG_BIN names others."""
    if chosen := os.environ.get("PYWORKER_PG_BIN"):
        return Path(chosen)
    found = sorted(postgres.SYSTEM.glob("*/bin/pg_rewind"))
    return found[-1].parent if found else postgres.find_bindir()


def missing() -> str | None:
    """Why there can be no cluster here."""
    gone = [name for name in ("patroni", "patronictl", "etcd") if not shutil.which(name)]
    if gone:
        return f"there is no {' and no '.join(gone)} (apt-get install patroni etcd-server)"
    return None if (programs() / "pg_rewind").exists() else f"there is no pg_rewind in {programs()}"


def called(parent: int, word: bytes) -> list[int]:
    """The child processes that call themselves so."""
    found = []
    for pid in Queue.ps("pid", parent):
        with suppress(FileNotFoundError):
            if word in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
    return found


class Node:
    """A server and its Patroni."""

    def __init__(self, cluster: Cluster, name: str, tags: dict[str, bool]) -> None:
        self.name, self._cluster = name, cluster
        self.home = cluster.directory(name)
        self.port, self.api = free_port(), free_port()
        self.config = self.home / "patroni.json"
        self.config.write_text(json.dumps(cluster.config_of(self, tags)))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres connect_timeout=5"

    def start(self) -> None:
        self._process = self._cluster.run("patroni", str(self.config), log=self.home / "patroni.log")

    def postmaster(self) -> int | None:
        with suppress(FileNotFoundError, IndexError, ValueError):
            pid = int((self.home / "data" / "postmaster.pid").read_text().split()[0])
            if Path(f"/proc/{pid}/exe").resolve().name == "postgres":
                return pid
        return None

    def server_processes(self) -> list[int]:
        pid = self.postmaster()
        return [] if pid is None else [pid, *map(int, Queue.ps("pid", pid))]

    def processes(self) -> list[int]:
        """Patroni first: it starts no server again."""
        assert self._process is not None
        return [self._process.pid, *self.server_processes()]

    def signal(self, number: signal.Signals, pids: list[int]) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self, pids: list[int]) -> None:
        with ends_of(pids):
            self.signal(signal.SIGKILL, pids)
            if self._process is not None and self._process.pid in pids:
                self._process.wait()

    def senders(self) -> list[int]:
        """The processes that send the log to the standbys."""
        pid = self.postmaster()
        return [] if pid is None else called(pid, b"walsender")

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.signal(signal.SIGCONT, self.processes())
            pids = self.processes()
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
            self.kill([pid for pid in pids if Path(f"/proc/{pid}").exists()])

    def log(self, lines: int = 15) -> str:
        path = self.home / "patroni.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""


class Cluster:
    """`synchronous`: one standby confirms each commit, and only that one may be promoted."""

    def __init__(self, stack: ExitStack, synchronous: bool) -> None:
        self.synchronous = synchronous
        self._account = postgres._account()
        parent = postgres._parents(self._account, in_memory=True)[0]
        self._home, _ = stack.enter_context(postgres._own_directory(parent, self._account))
        self._stack = stack
        self._etcd = free_port()
        self._answered: Node | None = None  # the one that was asked last
        self._start_etcd()
        third = {"nosync": True, "nofailover": True} if synchronous else {}
        self.nodes = [Node(self, name, third if name == "c" else {}) for name in "abc"]
        for node in self.nodes:
            stack.callback(node.stop)
            node.start()
            if node.name == "a":
                self.until("there is a leader", lambda: self.leader() is not None)
        self.until_whole()

    def directory(self, name: str) -> Path:
        made = self._home / name
        made.mkdir(mode=0o700)
        if self._account:
            os.chown(made, self._account.pw_uid, self._account.pw_gid)
        return made

    def run(self, program: str, *arguments: str, log: Path) -> subprocess.Popen[bytes]:
        found = shutil.which(program)
        assert found is not None
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "PATRONI", "ETCD", "PYTHON"))}
        with log.open("ab") as output:
            return subprocess.Popen(
                postgres._command(self._account, Path(found), *arguments), cwd=log.parent,
                env=env | {"LC_ALL": "C.UTF-8", "HOME": str(log.parent)},
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip

    def _start_etcd(self) -> None:
        home, peers = self.directory("etcd"), free_port()
        client, peer = f"http://127.0.0.1:{self._etcd}", f"http://127.0.0.1:{peers}"
        process = self.run(
            "etcd", "--data-dir", str(home / "data"), "--listen-client-urls", client,
            "--advertise-client-urls", client, "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}", "--enable-v2",
            log=home / "log",
        )  # fmt: skip

        def end() -> None:
            process.kill()
            process.wait()

        self._stack.callback(end)

    def config_of(self, node: Node, tags: dict[str, bool]) -> dict[str, Any]:
        trusted = ["local all all trust", "host all all 127.0.0.1/32 trust"]
        trusted.append("host replication all 127.0.0.1/32 trust")
        account = {"username": "postgres", "password": "unused"}
        mode = {"synchronous_mode": self.synchronous, "synchronous_mode_strict": self.synchronous}
        return {
            "scope": SCOPE, "name": node.name, "tags": tags,
            "restapi": {"listen": f"127.0.0.1:{node.api}", "connect_address": f"127.0.0.1:{node.api}"},
            "etcd": {"hosts": f"127.0.0.1:{self._etcd}"},  # not etcd3: see docs/failover.md
            "bootstrap": {
                "dcs": {
                    "ttl": TTL, "loop_wait": 1, "retry_timeout": 3, "primary_start_timeout": 0, **mode,
                    "maximum_lag_on_failover": 64 << 20,
                    "postgresql": {"use_pg_rewind": True, "use_slots": True, "parameters": PARAMETERS},
                },
                "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, {"auth": "trust"}],
                "pg_hba": trusted,
            },
            "postgresql": {
                "listen": f"127.0.0.1:{node.port}", "connect_address": f"127.0.0.1:{node.port}",
                "data_dir": str(node.home / "data"), "bin_dir": str(programs()), "pg_hba": trusted,
                "pgpass": str(node.home / "pgpass"),
                "authentication": {"superuser": account, "replication": account, "rewind": account},
                "parameters": {"unix_socket_directories": str(node.home)},
            },
        }  # fmt: skip

    # -- what there is -----------------------------------------------------------------------------

    @property
    def dsn(self) -> str:
        """As an application has it: all servers, the one that accepts writes."""
        hosts = ",".join("127.0.0.1" for _ in self.nodes)
        ports = ",".join(str(node.port) for node in self.nodes)
        return f"host={hosts} port={ports} user=postgres dbname=postgres target_session_attrs=read-write"

    def ask(self, path: str) -> Any:
        """What a Patroni says that answers."""
        for node in sorted(self.nodes, key=lambda node: node is not self._answered):
            with suppress(OSError, ValueError, urllib.error.URLError):
                with urllib.request.urlopen(f"http://127.0.0.1:{node.api}{path}", timeout=2) as answer:
                    self._answered = node
                    return json.load(answer)
        return None

    def members(self) -> dict[str, dict[str, Any]]:
        told = self.ask("/cluster") or {}
        return {member["name"]: member for member in told.get("members", [])}

    def _named(self, *roles: str) -> Node | None:
        names = [name for name, member in self.members().items() if member["role"] in roles]
        return next((node for node in self.nodes if node.name in names), None)

    def leader(self) -> Node | None:
        """The one that accepts writes, by its own word."""
        node = self._named("leader")
        if node is not None:
            with suppress(psycopg.Error), psycopg.connect(node.url) as conn:
                if not conn.execute("select pg_is_in_recovery()").fetchall()[0][0]:
                    return node
        return None

    def leads(self) -> Node:
        node = self.leader()
        assert node is not None, self.report()
        return node

    def is_whole(self) -> bool:
        """One leads and all others follow it; one of them synchronously, where that was asked for."""
        members = self.members().values()
        roles = sorted(member["role"] for member in members if member["state"] in ("running", "streaming"))
        wanted = ["leader", "replica", "sync_standby" if self.synchronous else "replica"]
        if roles != wanted or (leader := self.leader()) is None:
            return False
        with suppress(psycopg.Error), psycopg.connect(leader.url) as conn:
            states = conn.execute("select sync_state from pg_stat_replication where state = 'streaming'")
            found = sorted(row[0] for row in states.fetchall())
            return found == (["async", "sync"] if self.synchronous else ["async", "async"])
        return False

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Patroni decides once a second; it has no event that could be awaited."""
        end = time.monotonic() + DEADLINE
        while not condition():
            assert time.monotonic() < end, f"never came true: {what}\n{self.report()}"
            time.sleep(0.2)

    def until_whole(self) -> None:
        self.until("the cluster is whole", self.is_whole)

    def until_led_by_another(self, than: Node) -> Node:
        self.until(f"another one than {than.name} leads", lambda: self.leader() not in (None, than))
        return self.leads()

    def report(self) -> str:
        return "\n".join([str(self.members()), *(f"{node.name}:\n{node.log()}" for node in self.nodes)])

    # -- what happens to it ------------------------------------------------------------------------

    def switch_over(self) -> None:
        old = self.leads()
        new = self._named("sync_standby" if self.synchronous else "replica")
        assert new is not None, self.report()
        command = ["patronictl", "-c", str(old.config), "switchover", SCOPE, "--force"]
        command += ["--leader", old.name, "--candidate", new.name]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stdout + done.stderr
        self.until_led_by_another(old)

    def history(self) -> list[list[Any]]:
        """The ends of the timelines: number, place in the log, reason, …"""
        return self.ask("/history") or []


@contextmanager
def running_cluster(synchronous: bool) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(stack, synchronous)
