"""Django: pyworker installed by migrations, jobs added in the request's transaction, a backend for Django's own tasks.

    INSTALLED_APPS = [..., "pyworker.django"]                # its migration installs the schema
    TASKS = {"default": {"BACKEND": "pyworker.django.TasksBackend"}}

docs/django.md tells the rest. Nothing of pyworker outside this package imports Django.
"""

# pyright: basic, reportUnsupportedDunderAll=false
from __future__ import annotations

from typing import Any

from .._distribution import pip_install

__all__ = ["RunPyworker", "TasksBackend"]


def __getattr__(name: str) -> Any:  # settings.py may import this before there are apps
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
