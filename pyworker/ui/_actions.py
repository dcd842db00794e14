"""The actions that the dashboard offers, and the requests for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import FormData, QueryParams

from ._request import FILTERS, Problem, number_of, search_of

JOB_ACTIONS = ("retry", "cancel", "force_cancel", "delete")
LIMITS = ("concurrency", "rate_limit", "rate_period", "fair")  # of set_queue; SQL checks the values
MOST = 1000  # targets that may be selected one by one

# The label of a button, its effect, and whether that is irreversible.
ACTIONS: dict[str, tuple[str, str, bool]] = {
    "retry": ("Retry", "Runs a finished job again, or a waiting job now.", False),
    "cancel": ("Cancel", "Cancels a waiting job; asks a running job to stop.", False),
    "force_cancel": (
        "Force cancel",
        "Cancels the job at once, even while it is running. Later reports of its worker are refused.",
        True,
    ),
    "delete": ("Delete", "Deletes the job and its errors. This cannot be undone.", True),
    "pause_queue": (
        "Pause queue",
        "Starts no further job of the queue. Running jobs finish, and jobs can be added.",
        False,
    ),
    "resume_queue": ("Resume queue", "Starts jobs of the queue again.", False),
    "set_queue": (
        "Set limits",
        "Sets how many jobs of the queue may run at once, and how many may start in which time."
        " Without a number there is no limit.",
        False,
    ),
    "resume_sequence": (
        "Resume sequence",
        "Continues the sequence with its next job. The job that halted it does not change.",
        False,
    ),
    "run_schedule": ("Run now", "Fires the schedule now, as at one of its ticks.", False),
    "pause_schedule": ("Pause schedule", "Stops the schedule until you resume it.", False),
    "resume_schedule": (
        "Resume schedule",
        "Resumes the schedule at its next tick. Ticks during the pause are skipped.",
        False,
    ),
}
LABELS = {name: label for name, (label, _, _) in ACTIONS.items()}


@dataclass(frozen=True)
class Asked:
    """An action on chosen targets, or on all jobs that a list shows (filters)."""

    action: str
    targets: list[str]
    back: str  # the page to go back to
    filters: dict[str, str] | None = None
    last_id: int | None = None  # no job that was added later
    after: int | None = None  # where the next chunk begins
    audit: tuple[int, int] | None = None  # what was recorded so far
    options: dict[str, str | None] = field(default_factory=dict[str, str | None])

    def fields(self) -> Iterator[tuple[str, str]]:
        """The hidden fields of a form that asks for it again."""
        yield from (("action", self.action), ("back", self.back))
        yield from (("target", target) for target in self.targets)
        if self.filters is not None:
            yield ("all", "1")
            yield from self.filters.items()
        for name, value in (("last_id", self.last_id), ("after", self.after)):
            if value is not None:
                yield (name, str(value))
        if self.audit:
            yield ("done", f"{self.audit[0]}-{self.audit[1]}")
        for name, value in self.options.items():
            yield (name, value or "")


def asked(given: FormData | QueryParams, root: str) -> Asked:
    """Raises Problem if the request makes no sense."""
    action = str(given.get("action", ""))
    targets = [str(target) for target in given.getlist("target")]
    words = {name: str(value) for name, value in given.items() if isinstance(value, str)}
    all_that_match = words.get("all") == "1"
    if action not in ACTIONS or (all_that_match and action not in JOB_ACTIONS):
        raise Problem(400, "No such action", f"There is no action {action!r}.")
    if not (targets or all_that_match):
        raise Problem(400, "Nothing selected", "Select jobs first, then choose an action.")
    back = words.get("back", "")
    # Only go back to a page of this dashboard.
    ours = back.startswith(f"{root}/") and not back.startswith(("//", "/\\")) and back.isprintable()
    return Asked(
        action,
        [] if all_that_match else targets,
        without_notice(back) if ours else f"{root}/",
        {name: words[name] for name in FILTERS if words.get(name)} if all_that_match else None,
        number_of(words, "last_id"),
        number_of(words, "after"),
        audit_of(words),
        {name: words[name].strip() or None for name in LIMITS if name in words}
        if action == "set_queue"
        else {"lost": "true"}
        if action == "retry" and words.get("lost") == "true"
        else {},
    )


def audit_of(given: Mapping[str, str]) -> tuple[int, int] | None:
    """The rows of the audit that `done=FIRST-LAST` names."""
    if not given.get("done"):
        return None
    first, _, last = given["done"].partition("-")
    return number_of({"done": first}, "done") or 0, number_of({"done": last}, "done") or 0


def filters_of(asked: Asked) -> dict[str, Any]:
    return search_of(asked.filters or {})


def without_notice(path: str) -> str:
    base, _, query = path.partition("?")
    rest = [(name, value) for name, value in parse_qsl(query, keep_blank_values=True) if name != "done"]
    return f"{base}?{urlencode(rest)}" if rest else base


def with_notice(path: str, audit: tuple[int, int]) -> str:
    return f"{path}{'&' if '?' in path else '?'}done={audit[0]}-{audit[1]}"
