"""The Django application. It has no models, only the migration that installs pyworker."""

# pyright: basic
from django.apps import AppConfig


class PyworkerConfig(AppConfig):
    name = "pyworker.django"
    label = "pyworker"
    verbose_name = "pyworker"
