"""Actions: confirmed first, then performed, chunk by chunk if they are for all jobs of a list."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from .._db.database import Database
from . import _guard
from ._actions import JOB_ACTIONS, Asked, asked, filters_of, with_notice
from ._request import Problem, is_id, root_of

ONE_REQUEST = 5.0  # seconds after which a request says how far it has come
Rows = tuple[int, int]  # of the audit: the first and the last
NOTHING = (0, 0)  # no rows of the audit: no job matched any more


class Actions:
    """The two pages of an action, for Dashboard."""

    actor: Callable[[Request], str]
    database: Callable[[], AbstractContextManager[Database]]
    may_act: Callable[[Request], bool]
    read_only: bool
    page: Callable[..., Response]

    def confirm(self, request: Request) -> Response:
        wanted = self._asked(request, request.query_params)
        counts: dict[str, dict[str, Any]] = {}
        with self.database() as db:
            if wanted.filters is not None:
                search = filters_of(wanted)
                newest, _ = db.job_page(**search, max_jobs=1)
                states, others = search.pop("states"), search
                counts = db.count_listed_jobs(**others)
                counts = {name: c for name, c in counts.items() if states is None or name in states}
                newest_id = max((job["id"] for job in db.job_page(max_jobs=1)[0]), default=0)
                wanted = replace(wanted, last_id=newest_id if newest else 0)
            lost = self._lost(db, wanted)
            ids = [int(target) for target in wanted.targets if is_id(target)]
            names = db.tasks_of(ids) if wanted.action in JOB_ACTIONS else {}
            statements = [
                db.action_sql(wanted.action, target, wanted.options) for target in wanted.targets[:20]
            ]
        return self.page(
            request, "confirm.html", now=datetime.now(UTC), wanted=wanted, counts=counts,
            matching=sum(count["jobs"] for count in counts.values()),
            exact=all(count["exact"] for count in counts.values()), lost=lost,
            names=names,
            statements=[statement for statement in statements if statement],
        )  # fmt: skip

    @staticmethod
    def _lost(db: Database, wanted: Asked) -> bool:
        """True if some of the jobs to retry were lost: they may have been done."""
        if wanted.action != "retry":
            return False
        if wanted.filters is not None:
            return bool(db.lost_jobs(1))
        return bool(db.lost_among([int(target) for target in wanted.targets if is_id(target)]))

    async def act(self, request: Request) -> Response:
        form = await request.form(max_files=0, max_fields=1100)
        return await run_in_threadpool(self._act, request, form)

    def _act(self, request: Request, form: FormData) -> Response:
        if not _guard.is_own_form(request, str(form.get("csrf", ""))):
            raise Problem(
                403,
                "Refused",
                "This form is not from this dashboard, or it has expired."
                " Go back, reload the page, and try again.",
            )
        wanted, actor = self._asked(request, form), self.actor(request)[:200]
        wanted, told_by = (self._chosen if wanted.filters is None else self._chunks)(wanted, actor)
        if wanted.after is not None and told_by:  # there are more chunks
            with self.database() as db:
                told = db.action_outcomes(*told_by, actor)
            return self.page(
                request, "going.html", now=datetime.now(UTC), wanted=wanted, told=told,
                stop=with_notice(wanted.back, told_by),
            )  # fmt: skip
        back = wanted.back
        if wanted.action == "delete" and "/jobs/" in back and len(wanted.targets) == 1:
            back = back.partition("/jobs/")[0] + "/jobs"  # its own page is gone
        return RedirectResponse(with_notice(back, told_by or NOTHING), 303)

    # Each returns how to go on, if `after` is not None, and the rows of the audit that tell what was done.

    def _chosen(self, wanted: Asked, actor: str) -> tuple[Asked, Rows]:
        with self.database() as db:
            rows = db.perform_action(wanted.action, wanted.targets, actor, wanted.options)
        ids = [row["audit_id"] for row in rows]
        return wanted, (min(ids), max(ids))

    def _chunks(self, wanted: Asked, actor: str) -> tuple[Asked, Rows | None]:
        """Each chunk is a transaction of its own: what was done stays done if a later one fails."""
        began, after, audit = time.monotonic(), wanted.after, wanted.audit
        while True:
            with self.database() as db:
                told = db.perform_on_listed(
                    wanted.action, actor, **filters_of(wanted), last_id=wanted.last_id, after_id=after,
                    lost="lost" in wanted.options,
                )  # fmt: skip
            after = told["next_id"]
            if told["first_audit"]:
                audit = (audit[0] if audit else told["first_audit"], told["last_audit"])
            if after is None or (audit and time.monotonic() - began > ONE_REQUEST):
                return replace(wanted, after=after, audit=audit), audit

    def _asked(self, request: Request, given: Any) -> Asked:
        if self.read_only:
            raise Problem(
                403, "Read-only", "This dashboard was started with --read-only, so actions are disabled."
            )
        if not self.may_act(request):
            raise Problem(403, "Read-only", "You may look, but not act: ask an operator of this dashboard.")
        return asked(given, root_of(request))
