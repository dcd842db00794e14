"""The HTTP probes of `pyworker run`: /live and /ready.

They use only the state of the process, so an unreachable database kills no worker."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from ..errors import PyworkerError

if TYPE_CHECKING:
    from .parent import Parent

SILENT = 15.0  # seconds without an answer; beats are due every 2, a child with full slots asks every 10
PLAIN = "text/plain; charset=utf-8"

MOST = 50  # connections at once; for one more, the oldest is closed
SLOW = 10.0  # seconds that a client may take to send its request

Route = Callable[[], tuple[int, str, str]]  # status, content type, text


def problems(parent: Parent, ready: bool) -> list[str]:
    """The reasons why this worker is not live, or not ready."""
    now = time.monotonic()
    children = [child for child in list(parent.family.children.values()) if not child.killed]
    found: list[str] = []
    if now - parent.turned > parent.config.stuck_after and not parent.control.connecting:
        found.append(f"the loop of process {parent.pid} has not turned for {now - parent.turned:.0f} s")
    stamps: dict[int, tuple[float, float]] = {}
    for child in children:
        with suppress(ValueError):  # its memory is already closed
            stamps[child.process.pid] = child.slots.stamps()
    for pid, (turned, _) in stamps.items():
        if now - turned > parent.config.stuck_after:
            found.append(f"the loop of process {pid} has not turned for {now - turned:.0f} s")
    if not ready or found:
        return found
    if parent.signals:
        return ["it is stopping"]
    if any(answered < 0 for _, answered in stamps.values()) or parent.control.refused:
        return ["the database refuses its claims (see the log)"]
    if parent.control.db is None or not any(now - answered < SILENT for _, answered in stamps.values()):
        away = any(answered for _, answered in stamps.values())
        return [f"the database does not answer (or not within {SILENT:.0f} s)" if away else "it is starting"]
    return []


def in_flight(parent: Parent) -> int:
    """How many handlers are running."""
    count = 0
    for child in list(parent.family.children.values()):
        with suppress(ValueError):
            count += len({job.slot for job in child.slots.running()})
    return count


def _verdict(parent: Parent, ready: bool) -> tuple[int, str, str]:
    found = problems(parent, ready)
    text = "\n".join(found) or ("ready" if ready else "live")
    return 503 if found else 200, PLAIN, text + "\n"


def of_worker(parent: Parent) -> dict[str, Route]:
    return {"/live": lambda: _verdict(parent, False), "/ready": lambda: _verdict(parent, True)}


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, host: str, port: int, routes: Mapping[str, Route]) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = SLOW  # of each read and write; service_actions limits all reads together
            server_version = "pyworker"
            sys_version = ""

            def do_GET(self) -> None:
                self._answer(True)

            def do_HEAD(self) -> None:
                self._answer(False)

            def _answer(self, body: bool) -> None:
                route = routes.get(self.path.partition("?")[0])
                if route is None:
                    status, kind, text = 404, PLAIN, " ".join(routes) + "\n"
                else:
                    status, kind, text = route()
                data = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if body:
                    self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                """Probes come every few seconds; log none."""

        self._open: dict[socket.socket, float] = {}  # since when, the oldest first
        super().__init__((host, port), Handler, bind_and_activate=False)
        self.socket.close()
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        both = host == "::" and socket.has_dualstack_ipv6()
        self.socket = socket.create_server(address[:2], family=family, dualstack_ipv6=both)

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self._open) >= MOST:
            oldest = next(iter(list(self._open)))
            self._open.pop(oldest, None)
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)
        self._open[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Called twice a second: ends the wait for requests that come too slowly."""
        for request, since in list(self._open.items()):
            if time.monotonic() - since > SLOW:
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RD)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone, or was closed, is nothing to log."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


@contextmanager
def serving(host: str, ports: Iterable[int], routes: Mapping[str, Route]) -> Iterator[list[int]]:
    """Serve the routes on each of these ports of an address.

    0 takes a free port. Gives the ports.
    """
    servers: list[_Server] = []
    try:
        for port in dict.fromkeys(ports):
            try:
                servers.append(_Server(host, port, routes))
            except OSError as error:
                raise PyworkerError(f"cannot listen on {host}, port {port}: {error.strerror}") from error
        for server in servers:
            threading.Thread(target=server.serve_forever, daemon=True, name="http").start()
        yield [server.socket.getsockname()[1] for server in servers]
    finally:
        for server in servers:
            server.server_close()
