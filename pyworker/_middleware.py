"""Middleware: functions of the application that surround its handlers; the only such hook."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, TypeVar

from ._escape import shown
from ._texts import first_line, summary_of
from .errors import TaskError
from .job import AsyncJob, Job, Outcome, agreed

log = logging.getLogger("pyworker.middleware")

Middleware = Callable[[Job | AsyncJob], Generator[None, Any, Any]]
M = TypeVar("M", bound=Callable[..., Generator[None, Any, Any]])

registered: list[Middleware] = []  # the first is the outermost


def middleware(function: M) -> M:
    """Make a generator function with one `yield` surround every handler, sync or async.

        @middleware
        def timed(job):
            began = time.monotonic()
            try:
                result = yield
            finally:
                statsd.timing(job.task_identifier, time.monotonic() - began)

    It gets the job. `yield` returns what the handler returned, or raises what the handler raised:
    an exception, or an outcome (Snooze, Cancel, Discard, NotStarted, Failed), whether the handler
    raised or returned it. The first middleware to be registered is the outermost. It runs in the
    handler's thread or on the event loop, where it must not block.

    Middleware cannot change how the job ends by swallowing or raising an exception; its own
    exceptions are logged. Only an outcome that it raises counts, as from a handler. A worker uses
    the middleware of the modules that it has loaded.
    """
    if not inspect.isgeneratorfunction(function):
        raise TaskError(
            f"{function!r}: a middleware is a function with one `yield`, without async:"
            " it surrounds both kinds of handler"
        )
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise TaskError(f"{function!r}: a middleware takes one argument, the job: {error}") from None
    names = [(known.__module__, known.__qualname__) for known in registered]
    if (name := (function.__module__, function.__qualname__)) in names:  # its module was reloaded
        registered[names.index(name)] = function
    else:
        registered.append(function)
    return function


class MiddlewareStack:
    """Surrounds the handler of one job with the middlewares.

    It starts them in order, and ends them in reverse with the handler's result or exception.
    """

    __slots__ = ("_begun", "_job", "result")

    def __init__(self, job: Job | AsyncJob) -> None:
        self._job = job
        self._begun: list[Generator[None, Any, Any]] = []
        self.result: Any = None

    def __enter__(self) -> MiddlewareStack:
        for middleware in registered:
            try:
                generator = middleware(self._job)
                next(generator)
            except Outcome as outcome:
                self._end(outcome)
                raise
            except StopIteration:
                self._log(middleware, "has not come to its yield")
            except BaseException as error:
                self._log(middleware, "failed before its yield", error)
            else:
                self._begun.append(generator)
        return self

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        self._end(error and agreed(error))

    def _end(self, error: BaseException | None) -> None:
        now = error
        for generator in reversed(self._begun):
            traceback = now.__traceback__ if now else None
            try:
                if now is None:
                    generator.send(self.result)
                else:
                    generator.throw(now)
            except StopIteration:
                pass
            except Outcome as outcome:
                now = outcome
            except BaseException as own:
                if own is not now and not (isinstance(now, StopIteration) and own.__cause__ is now):
                    self._log(generator, "failed after its yield", own)
            else:
                self._log(generator, "has more than one yield")
                generator.close()
            if now:
                now.__traceback__ = traceback if now is error else now.__traceback__
        if now is not None and now is not error:
            raise now from None

    def _log(self, middleware: Any, what: str, error: BaseException | None = None) -> None:
        log.error(
            "middleware %s %s%s; the job goes on without it",
            middleware.__qualname__, what, f": {shown(first_line(summary_of(error)))}" if error else "",
            extra={"job_id": self._job.id, "task": self._job.task_identifier},
        )  # fmt: skip
