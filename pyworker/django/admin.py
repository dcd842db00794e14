"""Jobs in Django's admin: to look at, to retry and to cancel.

Django's permissions view_job and view_endedjob let a user look, operate_job retry and cancel. Each action is
recorded with the user's name in pyworker's view `audit`.
"""

# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false
from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.core.paginator import Paginator
from django.db import connections
from django.utils.functional import cached_property
from django.utils.html import format_html, format_html_join

from .. import _client
from .._db.database import Database
from .models import EndedJob, Job, _Job

COUNTED = 10_000  # jobs at most: with more, the last page is not the last one
AT_ONCE = 1000  # targets of perform_action


class _Pages(Paginator):
    @cached_property
    def count(self) -> int:
        return self.object_list.order_by()[:COUNTED].count()  # type: ignore[attr-defined]


class _JobAdmin(admin.ModelAdmin):
    list_display = (
        "id", "task_identifier", "state", "queue_name", "attempt", "run_at", "created_at", "finished_at",
        "key",
    )  # fmt: skip
    list_filter = ("state",)
    search_fields = ("=id", "task_identifier", "key", "queue_name")
    search_help_text = "an id, or a part of a task, a key or a queue"
    show_full_result_count = False
    paginator = _Pages
    actions = ("retry",)

    def has_add_permission(self, request: Any) -> bool:
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def has_operate_permission(self, request: Any) -> bool:
        return request.user.has_perm("pyworker.operate_job")

    @admin.display(description="attempts", ordering="attempts")
    def attempt(self, job: _Job) -> str:
        return f"{job.attempts} of {job.max_attempts}"

    @admin.action(description="Run again, or now", permissions=["operate"])
    def retry(self, request: Any, queryset: Any) -> None:
        self._perform("retry", request, queryset)

    def _perform(self, action: str, request: Any, queryset: Any) -> None:
        """Perform it on each job, and tell what became of which."""
        ids = [str(pk) for pk in queryset.order_by("pk").values_list("pk", flat=True)]
        actor = request.user.get_username()[:200]
        done: list[str] = []
        statement = Database.perform_action.statement(_client.default_schema())
        for begin in range(0, len(ids), AT_ONCE):
            rows = self._rows(queryset.db, statement, action, ids[begin : begin + AT_ONCE], actor, "{}")
            done += [f"{target} {outcome}" for target, ok, outcome, _ in rows if ok]
            for target, _, outcome, _ in (row for row in rows if not row[1]):
                self.message_user(request, f"job {target}: {outcome}", messages.WARNING)
        if done:
            shown = ", ".join(done[:20]) + (f" and {len(done) - 20} more" if len(done) > 20 else "")
            self.message_user(request, f"{len(done)} job{'s' * (len(done) > 1)}: {shown}", messages.SUCCESS)

    def _rows(self, alias: str, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        with connections[alias].cursor() as cursor:
            cursor.execute(statement, arguments)
            return cursor.fetchall()

    def _ask(self, job: _Job, call: Any) -> list[tuple[Any, ...]]:
        return self._rows(job._state.db or "default", call.statement(_client.default_schema()), job.pk)

    @admin.display(description="errors of the attempts")
    def errors(self, job: _Job) -> Any:
        rows = self._ask(job, Database.job_errors)
        return format_html_join("", "<p>{1}, worker {2}:</p><pre>{3}</pre>", rows) or "none"

    @admin.display(description="log")
    def log(self, job: _Job) -> Any:
        rows = self._ask(job, Database.job_log)
        lines = format_html_join("", "<li>{2}, attempt {1}, {3}: {4}</li>", rows)
        return format_html("<ul>{}</ul>", lines) if rows else "empty"

    def get_readonly_fields(self, request: Any, obj: Any = None) -> tuple[str, ...]:
        return (*(field.name for field in self.model._meta.fields), "errors", "log")


@admin.register(Job)
class JobAdmin(_JobAdmin):
    """Jobs that have not ended, and discarded ones."""

    actions = ("retry", "cancel")

    @admin.action(description="Cancel", permissions=["operate"])
    def cancel(self, request: Any, queryset: Any) -> None:
        self._perform("cancel", request, queryset)

    @admin.display(description="why it is not running")
    def why(self, job: _Job) -> Any:
        rows = self._ask(job, Database.explain_job)
        return format_html_join("", "<p><strong>{0}</strong>: {1}</p>", rows)

    def get_readonly_fields(self, request: Any, obj: Any = None) -> tuple[str, ...]:
        return ("why", *super().get_readonly_fields(request, obj))


@admin.register(EndedJob)
class EndedJobAdmin(_JobAdmin):
    """Completed and cancelled jobs."""
