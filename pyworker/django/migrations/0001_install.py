"""Installs pyworker. Whoever's migrations call its functions depends on ("pyworker", "0001_install")."""

# pyright: basic
from django.db import migrations

from pyworker.django import RunPyworker


class Migration(migrations.Migration):
    operations = [RunPyworker()]  # noqa: RUF012 - Django's own form
