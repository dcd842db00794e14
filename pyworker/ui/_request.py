"""Strict parsing of requests, and the problem page for those that cannot be answered."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request


class Problem(Exception):
    """An error page instead of the requested one."""

    def __init__(self, status: int, title: str, text: str) -> None:
        super().__init__(text)
        self.status, self.title, self.text = status, title, text


def actor_of(request: Request) -> str:
    """The user name that the dashboard, or the application that mounts it, has authenticated."""
    user = request.scope.get("pyworker.user") or getattr(request.scope.get("user"), "display_name", None)
    return str(user or f"{request.client.host if request.client else 'unknown'}, without a name")


def link(**query: Any) -> str:
    return "?" + urlencode(query)


def number_of(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and int(text) < 2**63):
        raise Problem(400, "No such page", f"{name} must be the id of a job, got {text!r}.")
    return int(text)


def time_of(given: Mapping[str, str], name: str) -> datetime | None:
    """A time as the browser sends it, taken for UTC, unless it has a time zone."""
    if name not in given:
        return None
    try:
        at = datetime.fromisoformat(given[name])
        return at if at.tzinfo else at.replace(tzinfo=UTC)
    except ValueError:
        raise Problem(
            400, "No such time", f"{name} must be a time such as 2026-12-24T18:00, got {given[name]!r}."
        ) from None
