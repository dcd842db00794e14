"""The Django application: the migrations that install pyworker, and what surrounds handlers."""

# pyright: basic
from django.apps import AppConfig


class PyworkerConfig(AppConfig):
    name = "pyworker.django"
    label = "pyworker"
    verbose_name = "pyworker"

    def ready(self) -> None:
        from ._connections import around_handlers

        around_handlers()
