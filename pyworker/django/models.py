"""Jobs as Django models, for the admin and for queries: read-only, on the views jobs and history.

Django makes no table for them. `Job` has every job that has not ended, and discarded ones; `EndedJob` has
completed and cancelled jobs, until their retention is over. Payloads are in neither.
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

from django.db import models

from .._client import default_schema
from .._db.text import as_identifier


def table_of(view: str) -> str:
    """Django takes a name in quotation marks as it is, with its schema."""
    return f"{as_identifier(default_schema())}.{as_identifier(view)}".replace("%", "%%")


class _Job(models.Model):
    id = models.BigIntegerField(primary_key=True)
    queue_name = models.TextField("queue", null=True)
    task_identifier = models.TextField("task")
    priority = models.SmallIntegerField()
    run_at = models.DateTimeField()
    attempts = models.SmallIntegerField()
    max_attempts = models.SmallIntegerField()
    last_error = models.TextField(null=True)
    created_at = models.DateTimeField("created")
    updated_at = models.DateTimeField("updated")
    key = models.TextField(null=True)
    locked_at = models.DateTimeField("begun", null=True)
    locked_by = models.TextField("worker", null=True)
    revision = models.IntegerField()
    flags = models.JSONField(null=True)
    state = models.TextField()
    delivery = models.TextField()
    unique_key = models.TextField(null=True)
    sequence_key = models.TextField("sequence", null=True)
    meta = models.JSONField(null=True)
    run = models.BigIntegerField()
    reason = models.TextField(null=True)
    finished_at = models.DateTimeField("ended", null=True)

    class Meta:
        abstract = True
        managed = False
        default_permissions = ("view",)
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"{self.task_identifier} {self.pk}"


class Job(_Job):
    """A job that has not ended, or was discarded."""

    class Meta(_Job.Meta):
        db_table = table_of("jobs")
        permissions = (("operate_job", "Can retry and cancel jobs"),)


class EndedJob(_Job):
    """A completed or cancelled job."""

    class Meta(_Job.Meta):
        db_table = table_of("history")
