"""Strict parsing of requests, and the problem page for those that cannot be answered."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import psycopg
from starlette.requests import Request

from ..errors import NotFound, PyworkerError

STATEMENT_TIMEOUT = 15  # seconds that a page's statement may take
FILTERS = ("state", "search", "task", "queue", "key", "from", "before")  # of the list of jobs


class Problem(Exception):
    """An error page instead of the requested one."""

    def __init__(self, status: int, title: str, text: str) -> None:
        super().__init__(text)
        self.status, self.title, self.text = status, title, text


def problem_of(error: Exception, role: str) -> Problem:
    """What to tell of an exception of a page, which needs this role."""
    match error:
        case Problem():
            return error
        case NotFound():
            return Problem(404, "Not found", str(error))
        case PyworkerError():
            return Problem(400, "Not possible", str(error))
        case psycopg.errors.QueryCanceled():
            return Problem(
                503, "Too slow", f"The database did not answer within {STATEMENT_TIMEOUT} seconds."
            )
        case psycopg.DataError():
            return Problem(400, "Not possible", str(error).split("\n")[0])
        case psycopg.errors.InsufficientPrivilege():
            needs = f"This needs the role {role}, which the role of this dashboard's connection does not have"
            return Problem(403, "Not allowed", f"{needs} ({str(error).splitlines()[0]}).")
        case (
            psycopg.errors.UndefinedTable()
            | psycopg.errors.UndefinedFunction()
            | psycopg.errors.InvalidSchemaName()
        ):
            text = "There is no pyworker in this schema, or an older one. Run: pyworker migrate"
            return Problem(503, "Not installed", text)
        case _:
            return Problem(503, "No database", "The database cannot be reached at the moment.")


def actor_of(request: Request) -> str:
    """The user name that the dashboard, or the application that mounts it, has authenticated."""
    user = request.scope.get("pyworker.user") or getattr(request.scope.get("user"), "display_name", None)
    return str(user or f"{request.client.host if request.client else 'unknown'}, without a name")


def root_of(request: Request) -> str:
    """The path at which the dashboard is mounted, without a slash at its end."""
    return str(request.scope["pyworker.root"])


def link(**query: Any) -> str:
    return "?" + urlencode(query)


def is_id(text: str) -> bool:
    """True for a bigint that is not negative."""
    return text.isascii() and text.isdigit() and len(text) <= 19 and int(text) < 2**63


def number_of(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name, "")
    if not text:
        return None
    if not is_id(text):
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


def filters_of(given: Mapping[str, str]) -> dict[str, str]:
    return {name: given[name].strip() for name in FILTERS if given.get(name, "").strip()}


def search_of(filters: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of list_jobs for these filters."""
    return {
        "states": [filters["state"]] if "state" in filters else None,
        "tasks": [filters["task"]] if "task" in filters else None,
        "queues": [filters["queue"]] if "queue" in filters else None,
        "job_key": filters.get("key"),
        "search": filters.get("search"),
        "created_from": time_of(filters, "from"),
        "created_before": time_of(filters, "before"),
    }
