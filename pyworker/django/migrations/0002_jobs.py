"""Tells Django's migrations of the models Job and EndedJob, which are views: it makes no table."""

# pyright: basic, reportMissingImports=false
from django.db import migrations, models

from pyworker.django.models import table_of


def _fields():
    return [
        ("id", models.BigIntegerField(primary_key=True, serialize=False)),
        ("queue_name", models.TextField(null=True, verbose_name="queue")),
        ("task_identifier", models.TextField(verbose_name="task")),
        ("priority", models.SmallIntegerField()),
        ("run_at", models.DateTimeField()),
        ("attempts", models.SmallIntegerField()),
        ("max_attempts", models.SmallIntegerField()),
        ("last_error", models.TextField(null=True)),
        ("created_at", models.DateTimeField(verbose_name="created")),
        ("updated_at", models.DateTimeField(verbose_name="updated")),
        ("key", models.TextField(null=True)),
        ("locked_at", models.DateTimeField(null=True, verbose_name="begun")),
        ("locked_by", models.TextField(null=True, verbose_name="worker")),
        ("revision", models.IntegerField()),
        ("flags", models.JSONField(null=True)),
        ("state", models.TextField()),
        ("delivery", models.TextField()),
        ("unique_key", models.TextField(null=True)),
        ("sequence_key", models.TextField(null=True, verbose_name="sequence")),
        ("meta", models.JSONField(null=True)),
        ("run", models.BigIntegerField()),
        ("reason", models.TextField(null=True)),
        ("finished_at", models.DateTimeField(null=True, verbose_name="ended")),
    ]


def _options(view, **more):
    return {
        "db_table": table_of(view),
        "ordering": ("-id",),
        "abstract": False,
        "managed": False,
        "default_permissions": ("view",),
        **more,
    }


class Migration(migrations.Migration):
    dependencies = [("pyworker", "0001_install")]  # noqa: RUF012 - Django's own form
    operations = [  # noqa: RUF012
        migrations.CreateModel("EndedJob", _fields(), _options("history")),
        migrations.CreateModel(
            "Job", _fields(), _options("jobs", permissions=(("operate_job", "Can retry and cancel jobs"),))
        ),
    ]
