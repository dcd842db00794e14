"""Access control of the dashboard: host names, passwords, headers and forms."""

from __future__ import annotations

import base64
import hmac
import secrets
from collections.abc import Mapping, Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "pyworker_csrf"
MAX_BODY = 2**20  # bytes of a request; a form with 1,000 ids has 40,000
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Guard:
    """Checks the Host header, the size and who asks, and sets response headers.

    A user gives name and password (HTTP Basic), or a proxy has authenticated the user and gives the
    name in a header. Without passwords the Host check is essential: otherwise another site could
    point its name to 127.0.0.1 and reach the dashboard (DNS rebinding).
    """

    def __init__(
        self,
        app: ASGIApp,
        users: Mapping[str, str],
        hosts: Sequence[str] | None,
        user_header: str | None = None,
        proxies: Sequence[str] = (),
    ) -> None:
        self.app, self.users, self.hosts = app, users, hosts
        self.user_header, self.proxies = user_header, proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self.hosts is not None and _name_of(host) not in self.hosts:
            refusal = PlainTextResponse(f"this dashboard does not answer to the name {host!a}", 421)
            await refusal(scope, receive, send_with_headers)
            return
        if _is_too_long(headers.get("content-length", "")):
            await PlainTextResponse(_TOO_LONG, 413)(scope, receive, send_with_headers)
            return
        if self.user_header:
            named = headers.getlist(self.user_header)
            user = named[0].strip() if len(named) == 1 else ""  # of two, one may be the client's
            if not (user and (scope.get("client") or ("",))[0] in self.proxies):
                await PlainTextResponse("only the proxy that authenticates users may ask here", 401)(
                    scope, receive, send_with_headers
                )
                return
            scope = {**scope, "pyworker.user": user[:200]}
        elif self.users:
            user = self._user(headers.get("authorization", ""))
            if user is None:
                realm = {"WWW-Authenticate": 'Basic realm="pyworker", charset="UTF-8"'}
                await PlainTextResponse("name and password, please", 401, realm)(
                    scope, receive, send_with_headers
                )
                return
            scope = {**scope, "pyworker.user": user}
        # Before a Mount in the dashboard adds to it.
        scope = {**scope, "pyworker.root": scope.get("root_path", "").rstrip("/")}
        await self.app(scope, _limited(receive), send_with_headers)

    def _user(self, authorization: str) -> str | None:
        kind, _, value = authorization.partition(" ")
        try:
            name, _, password = base64.b64decode(value, validate=True).decode().partition(":")
        except ValueError:  # not ASCII, no base64, or not UTF-8
            return None
        # Make every comparison, each in constant time, so that the time reveals no name.
        matches = [
            hmac.compare_digest(known.encode(), name.encode())
            & hmac.compare_digest(secret.encode(), password.encode())
            for known, secret in self.users.items()
        ]
        return name if kind.lower() == "basic" and any(matches) else None


def _name_of(host: str) -> str:
    name, bracket, _ = host.partition("]")
    return name + bracket if host.startswith("[") else host.partition(":")[0]


_TOO_LONG = f"a request may have {MAX_BODY:,} bytes"


def _is_too_long(length: str) -> bool:
    return length.isascii() and length.isdecimal() and (len(length) > 9 or int(length) > MAX_BODY)


def _limited(receive: Receive) -> Receive:
    """The same without the rest of a body that is too long, however it is sent."""
    left = MAX_BODY

    async def receive_some() -> Message:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        if left < 0:
            raise HTTPException(413, _TOO_LONG)
        return message

    return receive_some


def csrf_token(request: Request) -> str:
    """The token that a form must send: the value of the cookie.

    Other sites cannot read it, and they cannot make a browser send it, as it is SameSite=Strict.
    """
    return request.cookies.get(COOKIE) or secrets.token_urlsafe(24)


def is_own_form(request: Request, token: str) -> bool:
    cookie = request.cookies.get(COOKIE, "")
    site = request.headers.get("sec-fetch-site", "same-origin")
    origin = request.headers.get("origin")
    return (
        len(cookie) >= 32
        and hmac.compare_digest(cookie.encode(), token.encode())
        and site in ("same-origin", "none")
        and (origin is None or origin.partition("://")[2] == request.headers.get("host"))
    )
