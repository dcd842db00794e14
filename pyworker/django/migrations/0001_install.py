"""Installs pyworker. Migrations that call its functions depend on ("pyworker", "0001_install")."""

# pyright: basic
from django.db import migrations

from pyworker.django import RunPyworker


class Migration(migrations.Migration):
    operations = [RunPyworker()]  # noqa: RUF012 - Django's own form
