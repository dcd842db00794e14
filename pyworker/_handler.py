"""How a worker calls a handler: which of payload and job it takes, and the payload's type."""

from __future__ import annotations

import collections.abc
import functools
import inspect
import json
import types
import typing
from collections.abc import Callable
from typing import Any, cast

from . import _payload
from .errors import InvalidArgument, TaskError
from .job import AsyncJob, Job

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
LISTS = (list, collections.abc.Sequence, collections.abc.Collection, collections.abc.Iterable)
JOBS = (Job, AsyncJob)


class Handler:
    """The function of a task. Errors name the task."""

    def __init__(self, function: Callable[..., Any], task: object, batch: int | None = None) -> None:
        self._function = function
        self._task = task
        self._batch = batch

    def encoded(self, payload: Any) -> Any:
        """The payload as JSON values that a worker reads as it was given. Raises InvalidArgument."""
        codec = self._codec_if_any
        if isinstance(payload, _payload.JsonText) or (codec is None and payload is not None):
            return payload
        try:
            if payload is not None and codec is not None:
                return codec.encode(payload)
            if self._takes_null:
                return _payload.JsonText("null")
            if codec:
                codec.refuse_unreadable({}, "none is given, and a worker could not read {}")
        except _payload.Refused as error:
            raise InvalidArgument(f"{self._task!r}: payload{error.path}: {error}") from error.__cause__
        return None

    def scheduled(self, payload: Any) -> Any:
        """The payload of a schedule as JSON values. To an object, each of its jobs adds a member `_cron`."""
        omitted = payload is None and not self._takes_null  # {} needs the member to fit, perhaps
        sent = dict[str, Any]() if omitted else self.encoded(payload)
        value = json.loads(_payload.payload_json(sent, "payload"))
        if isinstance(value, dict) and (codec := self._codec_if_any):
            tick = {"_cron": {"ts": "2026-01-01T00:00:00.000Z", "backfilled": False}}
            ticked = {**cast("dict[str, Any]", value), **tick}
            try:
                codec.refuse_unreadable(ticked, "with the member _cron, a worker could not read it")
            except _payload.Refused as error:
                raise InvalidArgument(f"{self._task!r}: payload{error.path}: {error}") from None
        return cast("Any", value)

    def invocation(self) -> Callable[[Any], Any]:
        """The function as the worker calls it with a job.

        It converts the payload, and passes payload and job if the handler takes them. A batch handler is
        called with the list of its jobs, whose payloads `convert` has converted.
        """
        takes_payload, job_name = self._taken()
        called = called_by(self._function)
        if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
            raise TaskError(f"{self._task!r}: a handler that yields would not be run to its end")
        codec = self._codec() if takes_payload else None
        function = self._function
        if self._batch is not None:
            if not takes_payload:
                raise TaskError(
                    f"{self._task!r}: a batch handler takes the list of its jobs,"
                    " such as jobs: list[Job]; this one takes no argument for it"
                )
            return function

        def invoke(job: Any) -> Any:
            args = () if not takes_payload else (job.payload if codec is None else codec.decode(job.payload),)
            return function(*args, **({job_name: job} if job_name else {}))

        return invoke

    def conversion(self) -> Callable[[Any], Any] | None:
        """Makes of a JSON payload the type in `list[Job[Type]]` of a batch handler, if that needs it."""
        codec = self._codec() if self._batch is not None else None
        return codec and codec.decode

    def _taken(self) -> tuple[bool, str | None]:
        """Whether it takes the payload, and the name of the parameter that takes the job."""
        takes_payload, job_name = False, None
        for position, parameter in enumerate(self._parameters):
            if self._is_job(parameter):
                job_name = parameter.name
            elif not takes_payload and parameter.kind in (*POSITIONAL, inspect.Parameter.VAR_POSITIONAL):
                takes_payload = True
                if position > 0:
                    raise TaskError(f"{self._task!r}: the payload must be its first parameter")
            elif parameter.default is parameter.empty and parameter.kind not in VARIADIC:
                takes = "payload and job" if self._batch is None else "the list of its jobs"
                raise TaskError(
                    f"{self._task!r}: parameter {parameter.name!r} has nothing to fill it;"
                    f" a {'' if self._batch is None else 'batch '}handler takes {takes}"
                )
        return takes_payload, job_name

    def _codec(self) -> _payload.Codec | None:
        try:
            return _payload.codec_of(self._payload_hint)
        except TaskError as error:
            raise type(error)(f"{self._task!r}: {error}") from None
        except Exception as error:
            raise TaskError(
                f"{self._task!r}: payloads cannot be converted to its annotation: {error}"
            ) from error

    @functools.cached_property
    def _takes_null(self) -> bool:
        """Without a payload a job has {}, but null if the handler's annotation allows None."""
        codec = self._codec_if_any
        return codec.takes(None) if codec else _payload.takes_null(self._payload_hint)

    @functools.cached_property
    def _codec_if_any(self) -> _payload.Codec | None:
        """The codec; None also if its library is not installed, as a producer need not have it."""
        try:
            return self._codec()
        except _payload.MissingLibrary:
            return None

    @functools.cached_property
    def _payload_hint(self) -> Any:
        """The annotation of the payload; Any if there is no payload or no annotation."""
        first = next(iter(self._parameters), None)
        if first is None or self._is_job(first) or first.kind not in POSITIONAL:
            return Any
        hint = self._hints.get(first.name, Any)
        return hint if self._batch is None else self._hint_within(first.name, hint)

    def _hint_within(self, name: str, hint: Any) -> Any:
        """Type of list[Job[Type]]; Any of list[Job], and without an annotation."""
        hint = _bare(hint)
        if hint is Any or hint in LISTS:
            return Any
        (job,) = typing.get_args(hint) if typing.get_origin(hint) in LISTS else (None,)
        if job is Any or job in JOBS:
            return Any
        if typing.get_origin(job) in JOBS:
            return typing.get_args(job)[0]
        raise TaskError(
            f"{self._task!r}: parameter {name!r} of a batch handler gets a list of jobs:"
            f" annotate it list[Job], or list[Job[Type]] for payloads of a type, not {hint!r}"
        )

    def _is_job(self, parameter: inspect.Parameter) -> bool:
        if self._batch is not None:
            return False
        hint = _bare(self._hints.get(parameter.name))
        if typing.get_origin(hint) in JOBS:
            raise TaskError(
                f"{self._task!r}: parameter {parameter.name!r} is annotated {hint!r}, which is for the"
                " jobs of a batch; annotate the payload with its type, and the job Job or AsyncJob"
            )
        return parameter.name == "job" or hint in JOBS

    @functools.cached_property
    def _hints(self) -> dict[str, Any]:
        try:
            annotations = {p.name: p.annotation for p in self._parameters if p.annotation is not p.empty}
            bare = types.SimpleNamespace(__annotations__=annotations)  # without the return type
            names = getattr(inspect.unwrap(called_by(self._function)), "__globals__", {})
            return typing.get_type_hints(bare, globalns=names, include_extras=True)
        except Exception as error:
            raise TaskError(f"{self._task!r}: its annotations cannot be resolved: {error}") from error

    @functools.cached_property
    def _parameters(self) -> list[inspect.Parameter]:
        try:
            own = inspect.signature(self._function, follow_wrapped=False).parameters.values()
            if any(parameter.kind in VARIADIC for parameter in own):  # a decorator that passes all on
                own = inspect.signature(self._function).parameters.values()
            return list(own)
        except (TypeError, ValueError) as error:
            raise TaskError(f"{self._task!r}: its parameters cannot be found out: {error}") from error


def _bare(hint: Any) -> Any:
    """Without the metadata of Annotated."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint


def named_by(function: Any) -> Any:
    """What carries the name: the function of a partial, or the class of another callable."""
    while isinstance(function, functools.partial):
        function = cast("Any", function).func
    return function if hasattr(function, "__qualname__") else cast("Any", type(function))


def called_by(function: Any) -> Any:
    """The function that runs: `__call__` for a callable object."""
    origin = named_by(function)
    return origin.__call__ if inspect.isclass(origin) else origin
