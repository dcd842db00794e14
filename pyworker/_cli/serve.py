"""`pyworker ui`: serve the dashboard on this machine; to other machines only with passwords."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import socket
import time
from pathlib import Path
from typing import Any

import click

from .._dev.url import resolved
from .._distribution import pip_install
from .._files import text_of
from .options import CliError, PortOption, common, database

SLOW = 10.0  # seconds that a client may take to send a request
MOST = 500  # connections at once; a process may open some 1,000 files


@click.command()
@common
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. Other than this machine's own require names and passwords.",
)
@click.option("--port", cls=PortOption, default=8686, show_default=True, type=click.IntRange(0, 65535))
@click.option(
    "--auth-file",
    type=click.Path(exists=True, dir_okay=False),
    help="Names and passwords, NAME:PASSWORD on each line; or one in PYWORKER_UI_AUTH.",
)
@click.option(
    "--auth-header",
    metavar="NAME",
    help="The header in which a proxy names the user that it has authenticated: X-Forwarded-User.",
)
@click.option(
    "--proxy", "proxies", multiple=True, default=["127.0.0.1", "::1"], show_default=True, metavar="ADDRESS",
    help="With --auth-header: the address of the proxy. Others are refused. Can be repeated.",
)  # fmt: skip
@click.option(
    "--allow-host", "hosts", multiple=True, metavar="NAME",
    help="Also answer requests for this name: the one that users type. Can be repeated.",
)  # fmt: skip
@click.option(
    "--operator", "operators", multiple=True, metavar="NAME",
    help="Only this user may act, the others look. Can be repeated. Default: all users may act.",
)  # fmt: skip
@click.option("--read-only", is_flag=True, help="Disable all actions.")
@click.option("--show-payloads", is_flag=True, help="Show payloads and results of jobs; they may be secret.")
def ui(
    dsn: str, schema: str, host: str, port: int, auth_file: str | None, auth_header: str | None,
    proxies: tuple[str, ...], hosts: tuple[str, ...], operators: tuple[str, ...], read_only: bool,
    show_payloads: bool,
) -> None:  # fmt: skip
    """Serve the dashboard, to view and change jobs, queues, sequences, schedules and workers.

    It listens on this machine only. Another --host requires names and passwords, from --auth-file
    or the variable PYWORKER_UI_AUTH, or a proxy that authenticates users (--auth-header). Let a
    proxy with TLS stand in front of it.
    """
    users = _users(auth_file)
    _check_access(host, users, auth_header, operators)
    try:
        import uvicorn

        from ..ui import create_app
    except ImportError as error:
        missing = error.name or str(error)
        raise CliError(f"the dashboard needs {missing.split('.')[0]}: {pip_install('web')}") from None
    with database(dsn, schema) as db:
        db.list_queues(None, 1)  # report a problem with the database now, not on the first page
    with resolved(dsn) as url:
        # Without passwords, accept only this machine's own names in the Host header.
        own = ["localhost", "[::1]", host if ":" not in host else f"[{host}]", "127.0.0.1", *hosts]
        app = create_app(
            url, schema, users=users, hosts=None if users else own, read_only=read_only,
            show_payloads=show_payloads, operators=operators or None, user_header=auth_header,
            proxies=proxies,
        )  # fmt: skip
        sockets = _listening(host, port)
        # With --auth-header the address of the proxy counts, not the one that it reports.
        config = uvicorn.Config(
            app, log_level="warning", server_header=False, proxy_headers=auth_header is None,
            http="h11", ws="none", limit_concurrency=MOST,
        )  # fmt: skip
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_serve(uvicorn.Server(config), sockets))


def _check_access(
    host: str, users: dict[str, str], auth_header: str | None, operators: tuple[str, ...]
) -> None:
    if users and auth_header:
        raise CliError("give either names and passwords or --auth-header: one of them says who asks", 2)
    if not (users or auth_header or _is_this_machine(host)):
        raise CliError(
            f"--host {host} is reachable from other machines without a password."
            " Give names and passwords: --auth-file FILE, with a line NAME:PASSWORD for each,"
            " or PYWORKER_UI_AUTH=NAME:PASSWORD; or let a proxy authenticate users: --auth-header NAME",
            2,
        )
    if operators and not (users or auth_header):
        raise CliError("--operator needs users: --auth-file, PYWORKER_UI_AUTH or --auth-header", 2)
    if users and (unknown := [name for name in operators if name not in users]):
        raise CliError(f"--operator {unknown[0]!r} has no password: add the user to --auth-file", 2)


def _listening(host: str, port: int) -> list[socket.socket]:
    """A listening socket for each address of the host.

    uvicorn would end with a traceback if none can be opened.
    """
    made: list[socket.socket] = []
    refused: OSError | None = None
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        addresses, refused = [], error
    for family, kind, protocol, _, address in addresses:
        try:
            one = socket.socket(family, kind, protocol)
            made.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind(address)
            one.listen()
        except OSError as error:
            refused = error
    if refused is None or (
        # `localhost` has an IPv6 address even on a machine without IPv6.
        refused.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
        and (made := [one for one in made if _is_bound(one)])
    ):
        return made
    raise CliError(f"cannot listen on {host}, port {port}: {refused.strerror}")


def _is_bound(one: socket.socket) -> bool:
    return bool(one.getsockname()[1])


async def _serve(server: Any, sockets: list[socket.socket]) -> None:
    """Serve, and print the URL when the server accepts connections."""
    task = asyncio.create_task(server.serve(sockets=sockets))
    while not (server.started or task.done()):
        await asyncio.sleep(0.05)
    listeners: list[Any] = server.servers if server.started else []
    for listener in listeners:
        for one in listener.sockets:
            name, port = one.getsockname()[:2]
            click.echo(
                f"the dashboard is at http://{f'[{name}]' if ':' in name else name}:{port}/ (Ctrl-C ends it)"
            )
    dropping = asyncio.create_task(_drop_slow(server))
    await task
    dropping.cancel()


async def _drop_slow(server: Any) -> None:
    """Close connections whose request does not come to its end: uvicorn waits for it for ever."""
    since: dict[tuple[Any, Any], float] = {}
    while True:
        await asyncio.sleep(0.5)
        now = time.monotonic()
        connections = [(one, one.cycle) for one in server.server_state.connections]
        unsent = [(one, cycle) for one, cycle in connections if _is_unsent(cycle)]
        since = {key: since.get(key, now) for key in unsent}
        for (one, _), began in since.items():
            if now - began > SLOW:
                one.transport.abort()


def _is_unsent(cycle: Any) -> bool:
    """True if the next request, or the rest of this one, is still to come."""
    return cycle is None or cycle.response_complete or cycle.more_body


def _users(auth_file: str | None) -> dict[str, str]:
    lines = text_of(Path(auth_file)).splitlines() if auth_file else []
    if given := os.environ.get("PYWORKER_UI_AUTH"):
        lines.append(given)
    users: dict[str, str] = {}
    for line in lines:
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, password = line.partition(":")
        if not (name and colon and password):
            raise CliError(
                "a line with a name and a password must look like NAME:PASSWORD (it is not shown here)", 2
            )
        users[name] = password
    if auth_file and not users:
        raise CliError(f"there is no NAME:PASSWORD in {auth_file}", 2)
    return users


def _is_this_machine(host: str) -> bool:
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False
