"""A network that fails on purpose: a TCP proxy before the server that knows where each message of
PostgreSQL's protocol begins and ends."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

from psycopg.conninfo import conninfo_to_dict, make_conninfo

SYNC = None  # stands among what the server has yet to answer


@dataclass
class Message:
    """What is about to be passed on. `about`: the statement that it is part of, or an answer to."""

    link: Link
    up: bool  # from the client to the server
    raw: bytes
    about: str

    @property
    def kind(self) -> bytes:
        return self.raw[:1]


# Sees each message first; only if it returns true is the message passed on.
Fault = Callable[[Message], bool]


class Link:
    """One client's connection, and ours to the server for it."""

    def __init__(self, proxy: Proxy, client: socket.socket) -> None:
        self.proxy, self.client = proxy, client
        self.server = proxy.reach()
        self.silent = proxy.silent == "from the start"
        self.said: set[str] = set()  # every statement that it was asked
        self._statements: dict[bytes, str] = {}
        self._asked: deque[str | None] = deque()
        self._ends = 2
        self._lock = threading.Lock()
        for up in (True, False):
            threading.Thread(target=self._pump, args=(up,), daemon=True).start()

    def cut(self, *ends: socket.socket) -> None:
        """As when a router forgets it: both sides, or those given, are told with a reset."""
        for end in ends or (self.client, self.server):
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RDWR)

    def hang_up(self) -> None:
        """Both sides are told in good order; what was sent before arrives."""
        for end in (self.client, self.server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _pump(self, up: bool) -> None:
        source, target = (self.client, self.server) if up else (self.server, self.client)
        with suppress(OSError, ValueError), source.makefile("rb") as incoming:
            kind = not up  # the client's first message has none
            while message := self._read(incoming, kind):
                about = self._follow(up, message) if kind else ""
                if up and about and self.proxy.silent == "once they are up":
                    self.silent = True
                kind = True
                if not self.silent and self.proxy.passes(Message(self, up, message, about)):
                    target.sendall(message)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)
        with self._lock:
            self._ends -= 1
        if self._ends == 0:
            self.proxy.links.discard(self)
            self.client.close()
            self.server.close()

    @staticmethod
    def _read(incoming: BinaryIO, kind: bool) -> bytes:
        head = incoming.read(5 if kind else 4)
        if len(head) < 4:
            return b""
        return head + incoming.read(struct.unpack("!i", head[-4:])[0] - 4)

    def _follow(self, up: bool, message: bytes) -> str:
        """Which statement this message is about."""
        kind, body = message[:1], message[5:]
        with self._lock:
            if not up:
                about = next((sql for sql in self._asked if sql is not SYNC), "")
                if kind in b"CEIs":  # an answer is complete; after an error the rest goes unanswered
                    while self._asked and self._asked[0] is not SYNC and (kind == b"E" or about):
                        self._asked.popleft()
                        if kind != b"E":
                            break
                elif kind == b"Z" and self._asked:
                    self._asked.popleft()
                return about
            if kind == b"Q":
                self._asked.extend((body[:-1].decode() or "?", SYNC))
            elif kind == b"P":
                name, sql = body.split(b"\0")[:2]
                self._statements[name] = sql.decode()
                return sql.decode()
            elif kind == b"B":
                self._asked.append(self._statements.get(body.split(b"\0")[1], "?"))
            about = next((sql for sql in reversed(self._asked) if sql is not SYNC), "")
            if kind == b"S":
                self._asked.append(SYNC)
            self.said.add(about)
            return about


class Proxy:
    def __init__(self, dsn: str) -> None:
        self._to = conninfo_to_dict(dsn)
        self.links: set[Link] = set()
        self.silent = (
            ""  # of new connections: "from the start", or "once they are up" and ask the first thing
        )
        self.fault: Fault | None = None
        self.port = 0
        self.accept()
        self.dsn = make_conninfo(
            dsn, host="127.0.0.1", port=self.port, sslmode="disable", gssencmode="disable"
        )

    def reach(self) -> socket.socket:
        host, port = str(self._to["host"]), int(self._to.get("port") or 5432)
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(f"{host}/.s.PGSQL.{port}")
        except OSError:
            server.close()
            raise
        return server

    def accept(self) -> None:
        """Take connections (again)."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                self.links.add(Link(self, client))
            except OSError:  # the server is away
                client.close()

    def refuse(self) -> None:
        """Nothing listens here any more; what is connected stays so."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def close(self) -> None:
        self.refuse()
        self.cut()

    def cut(self) -> None:
        for link in list(self.links):
            link.cut()

    def hush(self, new: str = "from the start") -> None:
        """From now on it swallows everything and says nothing: on present connections for ever, on
        new ones until `speak`."""
        self.silent = new
        for link in list(self.links):
            link.silent = True

    def speak(self) -> None:
        self.silent = ""

    def asked(self, word: str) -> Iterator[Link]:
        """The connections on which a statement with this word was sent."""
        return (link for link in list(self.links) if any(word in sql for sql in list(link.said)))

    def passes(self, message: Message) -> bool:
        return self.fault is None or self.fault(message)


def once(word: str, up: bool, kinds: bytes, spare: int = 0, after: str = "") -> Any:
    """A fault: the first such message about a statement with this word (after `spare` others) is
    lost, and its connection with it.

    Only on a connection on which a statement with the word `after` was sent before. Its `struck` is
    set when that has happened."""
    lock, left = threading.Lock(), [spare]

    def fault(message: Message) -> bool:
        if message.up != up or message.kind not in kinds or word not in message.about:
            return True
        if not any(after in sql for sql in list(message.link.said)):
            return True
        with lock:
            left[0] -= 1
            if left[0] != -1:
                return True
        message.link.cut()
        fault.struck.set()  # type: ignore[attr-defined]
        return False

    fault.struck = threading.Event()  # type: ignore[attr-defined]
    return fault


class Weather:
    """A fault that strikes again and again at random message boundaries: before a message, after
    it, or in the middle."""

    def __init__(self, seed: str, cuts: int, most: int = 1200) -> None:
        self._rng, self._lock, self._most = random.Random(seed), threading.Lock(), most
        self.left = cuts
        self._next = self._rng.randrange(most)
        self.over = threading.Event()

    def __call__(self, message: Message) -> bool:
        with self._lock:
            self._next -= 1
            if self._next > 0 or self.over.is_set():
                return True
            self._next = self._rng.randrange(self._most)
            self.left -= 1
            if self.left == 0:
                self.over.set()
            how = self._rng.choice(["before", "after", "middle"])
        target = message.link.server if message.up else message.link.client
        with suppress(OSError):
            if how == "after":
                target.sendall(message.raw)
            elif how == "middle":
                target.sendall(message.raw[: len(message.raw) // 2])
        # The end that has just been told something is to hear it: it gets no reset, which would overtake it.
        (message.link.cut if how == "before" else message.link.hang_up)()
        return False


class Narrow(Proxy):
    """A slow network: no connection gets more than `rate` bytes a second through, each way."""

    rate = 500_000

    def _accept(self, listener: socket.socket) -> None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = self.reach()
            for ends in ((client, server), (server, client)):
                threading.Thread(target=self._pour, args=ends, daemon=True).start()

    def _pour(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError), source, target:
            while some := source.recv(self.rate // 50):
                target.sendall(some)
                time.sleep(len(some) / self.rate)
