"""A backend for Django's own tasks, which turns them into pyworker jobs.

Django's tasks are django.tasks of Django 6, or the django-tasks package.

The job's identifier is the function's dotted path, and its payload is {"args": […], "kwargs": {…}}.
In Django a larger priority runs first, in pyworker a smaller one, so the sign changes. Django's
queue "default" means no queue.
"""

# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false
from __future__ import annotations

import os
import re
import socket
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from inspect import iscoroutinefunction
from typing import Any

from django.db import connections
from django.utils import timezone

from .. import _client, tasks
from .._db.database import Database
from .._db.rows import job_row
from ..job import AsyncJob, Job

try:
    from django.tasks import TaskContext, TaskResult, TaskResultStatus
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import TaskError
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
except ImportError:  # Django 5.2
    from django_tasks import TaskContext, TaskResult, TaskResultStatus
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import TaskError
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started

STATUS = {"running": TaskResultStatus.RUNNING, "completed": TaskResultStatus.SUCCESSFUL} | dict.fromkeys(
    ("cancelled", "discarded"), TaskResultStatus.FAILED
)


class TasksBackend(BaseTaskBackend):
    """The backend to name in settings.TASKS.

    TASKS = {"default": {"BACKEND": "pyworker.django.TasksBackend", "QUEUES": [...], "OPTIONS": {}}}

    OPTIONS: `database`, the alias of the database with pyworker in it ("default"); `schema`; all
    others are arguments of add_job for every job of this backend, such as max_attempts.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        options = dict(self.options)
        self.database = options.pop("database", "default")
        self.schema = options.pop("schema", None) or _client.default_schema()
        self.job_options = options

    def validate_task(self, task: Any) -> None:
        super().validate_task(task)
        self._register(task)  # Django calls this when a task is defined

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Add the job in the open transaction of the database's connection."""
        self.validate_task(task)
        options = {
            **self.job_options,
            "priority": -task.priority,
            "queue_name": task.queue_name,
            "run_at": task.run_after,
        }
        payload = {"args": list(args), "kwargs": kwargs}
        job = _client.add_job(
            connections[self.database], task.module_path, payload, schema=self.schema, **options
        )
        result = self._result(task, job, [])
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """The state and result of the task with this id, as long as the job's retention lasts."""
        is_ours = re.fullmatch(r"[0-9]{1,18}", str(result_id))
        rows = self._rows(Database.get_job.statement(self.schema), result_id) if is_ours else []
        job = job_row(rows[0]) if rows else None
        task = job and self._task_of(job.task_identifier)
        if not task:
            raise TaskResultDoesNotExist(result_id)
        errors = self._rows(Database.job_errors.statement(self.schema), result_id)
        return self._result(task, job, [row[1:] for row in errors])

    def _rows(self, statement: str, result_id: str) -> list[tuple[Any, ...]]:
        with connections[self.database].cursor() as cursor:
            cursor.execute(statement, [int(result_id)])
            return cursor.fetchall()

    def _task_of(self, identifier: str) -> Any:
        from django.utils.module_loading import import_string

        try:
            task = import_string(identifier)
        except ImportError:
            return None
        return task if hasattr(task, "enqueue") else None

    def _result(self, task: Any, job: Any, errors: list[tuple[Any, ...]]) -> Any:
        last = job.locked_at or (errors[-1][0] if errors else None)
        status = STATUS.get(job.state, TaskResultStatus.READY)
        workers = [worker or "" for _, worker, _ in errors] + [job.locked_by or ""] * job.attempts
        result = self._made(
            task, job,
            status=status,
            started_at=errors[0][0] if errors else job.locked_at,
            finished_at=job.finished_at or (last if status == TaskResultStatus.FAILED else None),
            last_attempted_at=last,
            errors=[
                TaskError(exception_class_path=_exception_in(text), traceback=text) for _, _, text in errors
            ],
            worker_ids=workers[: job.attempts],  # Django counts them as attempts
        )  # fmt: skip
        object.__setattr__(result, "_return_value", job.result)
        return result

    def _made(self, task: Any, job: Any, **fields: Any) -> Any:
        """Of a job's row, or of the job that a handler gets."""
        args, kwargs = job.payload["args"], job.payload["kwargs"]
        return TaskResult(
            task=task, id=str(job.id), enqueued_at=job.created_at, args=args, kwargs=kwargs,
            backend=self.alias, **fields,
        )  # fmt: skip

    # -- in the worker: no extra query; a task that needs no database opens no connection ----------

    def _register(self, task: Any) -> None:
        def run(payload: Any, job: Job) -> Any:
            with self._running(task, job) as (args, answer):
                answer.append(task.func(*args, **payload["kwargs"]))
            return answer[0]

        async def run_async(payload: Any, job: AsyncJob) -> Any:
            with self._running(task, job) as (args, answer):
                answer.append(await task.func(*args, **payload["kwargs"]))
            return answer[0]

        handler: Any = run_async if iscoroutinefunction(task.func) else run
        tasks.task(name=task.module_path, result=True)(handler)

    @contextmanager
    def _running(self, task: Any, job: Any) -> Generator[tuple[list[Any], list[Any]]]:
        """The arguments of the function, and where to put what it returns. Django's signals are sent."""
        now = timezone.now()
        result = self._made(
            task, job, status=TaskResultStatus.RUNNING, started_at=now, finished_at=None,
            last_attempted_at=now, errors=[],
            worker_ids=[f"{socket.gethostname()}:{os.getpid()}"] * job.attempts,
        )  # fmt: skip
        task_started.send(type(self), task_result=result)
        context = [TaskContext(task_result=result)] if task.takes_context else []
        answer: list[Any] = []
        changes: dict[str, Any] = {"status": TaskResultStatus.SUCCESSFUL}
        try:
            yield [*context, *job.payload["args"]], answer
            changes["_return_value"] = answer[0]
        except BaseException as error:
            name = f"{type(error).__module__}.{type(error).__qualname__}"
            text = "".join(traceback.format_exception(error))
            failed = TaskError(exception_class_path=name, traceback=text)
            changes = {"status": TaskResultStatus.FAILED, "_return_value": None, "errors": [failed]}
            raise
        finally:
            for field, content in {**changes, "finished_at": timezone.now()}.items():
                object.__setattr__(result, field, content)
            task_finished.send(type(self), task_result=result)


def _exception_in(text: str) -> str:
    """The class of the exception at the end of a traceback."""
    names = re.findall(r"(?m)^([A-Za-z_][\w.]*)(?::|$)", text)
    name = names[-1] if names else "Exception"
    return name if "." in name else f"builtins.{name}"
