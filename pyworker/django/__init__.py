"""Django: migrations, jobs in the request's transaction, and a backend for Django's tasks.

    INSTALLED_APPS = [..., "pyworker.django"]                # its migration installs the schema
    TASKS = {"default": {"BACKEND": "pyworker.django.TasksBackend"}}

See docs/django.md. No other part of pyworker imports Django.
"""

# pyright: basic, reportUnsupportedDunderAll=false
from __future__ import annotations

from typing import Any

from .._distribution import pip_install

__all__ = ["RunPyworker", "TasksBackend"]


def __getattr__(name: str) -> Any:  # lazy: settings.py may import this before apps are loaded
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        if name == "RunPyworker":
            from ._operations import RunPyworker

            return RunPyworker
        from ._tasks import TasksBackend

        return TasksBackend
    except ModuleNotFoundError as error:
        if error.name == "django_tasks":
            raise ImportError(
                "Django has tasks of its own from version 6 on; before: pip install django-tasks"
            ) from error
        raise ImportError(f"pyworker.django: {error}; {pip_install('django')}") from error
