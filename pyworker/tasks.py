"""The @task decorator: a name for a function, its defaults, and how it is to be called."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import pkgutil
import sys
import types
import typing
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

from . import _client, _sql
from .errors import TaskError
from .job import AsyncJob, Job

P = ParamSpec("P")
R = TypeVar("R")

_registry: dict[str, Task[..., Any]] = {}


class Task(Generic[P, R]):
    """A handler with its name and defaults. Calling it calls the plain function, as in a unit test."""

    def __init__(self, function: Callable[P, R], name: str, options: dict[str, Any], result: bool) -> None:
        self.function = function
        self.name = name
        self.options = options
        self.result = result
        self.schedules: list[dict[str, Any]] = []
        self.is_async = inspect.iscoroutinefunction(function)
        functools.update_wrapper(cast("Any", self), function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<task {self.name} ({self.function.__module__}.{self.function.__qualname__})>"

    def add(self, conn: Any, payload: Any = None, **options: Any) -> Any:
        """Add a job of this task in the caller's transaction: pyworker.add_job(conn, this task's name, …)."""
        return _client.add_job(conn, self.name, payload, **options)

    @functools.cached_property
    def invoke(self) -> Callable[[Any], Any]:
        """The function as the worker calls it, with a job: payload converted, and the job passed, where it asks for them."""
        try:
            parameters = list(inspect.signature(self.function).parameters.values())
            annotations = {p.name: p.annotation for p in parameters if p.annotation is not p.empty}
            bare = types.SimpleNamespace(__annotations__=annotations)  # the return type is nobody's business
            hints = typing.get_type_hints(bare, globalns=getattr(inspect.unwrap(self.function), "__globals__", {}))
        except Exception as error:
            raise TaskError(f"{self!r}: its annotations cannot be resolved: {error}") from error
        takes_payload, job_name = False, None
        for parameter in parameters:
            if parameter.name == "job" or hints.get(parameter.name) in (Job, AsyncJob):
                job_name = parameter.name
            elif not takes_payload and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                takes_payload = True
                if parameter is not parameters[0]:
                    raise TaskError(f"{self!r}: the payload must be its first parameter")
            elif parameter.default is parameter.empty and parameter.kind not in (
                parameter.VAR_POSITIONAL,
                parameter.VAR_KEYWORD,
            ):
                raise TaskError(
                    f"{self!r}: parameter {parameter.name!r} has nothing to fill it; a handler takes payload and job"
                )
        if inspect.isgeneratorfunction(self.function) or inspect.isasyncgenfunction(self.function):
            raise TaskError(f"{self!r}: a handler that yields would not be run to its end")
        try:
            convert = self._converter(hints.get(parameters[0].name)) if takes_payload else None
        except TaskError:
            raise
        except Exception as error:
            raise TaskError(f"{self!r}: payloads cannot be converted to its annotation: {error}") from error
        function = cast("Callable[..., Any]", self.function)

        def invoke(job: Any) -> Any:
            args = () if not takes_payload else (job.payload if convert is None else convert(job.payload),)
            return function(*args, **({job_name: job} if job_name else {}))

        return invoke

    def _converter(self, hint: Any) -> Callable[[Any], Any] | None:
        """How to make the annotated type of a JSON value, and check it; None for plain JSON types."""
        records = _records(hint, set())
        if not records:
            return None
        if any(hasattr(record, "__pydantic_validator__") for record in records) or not _importable("msgspec"):
            if not _importable("pydantic"):
                raise TaskError(f"{self!r}: to convert payloads to {hint!r}, pip install 'pyworker[types]'")
            from pydantic import TypeAdapter, ValidationError

            adapter = TypeAdapter(hint)

            def by_pydantic(payload: Any) -> Any:
                try:
                    return adapter.validate_python(payload)
                except ValidationError as error:
                    # Without the input: a payload is not to be seen in errors and logs.
                    problems = "; ".join(
                        f"{e['msg']} - at `{'.'.join(str(part) for part in e['loc'])}`"
                        for e in error.errors(include_input=False)
                    )
                    raise ValueError(f"the payload does not fit {hint!r}: {problems}") from None

            return by_pydantic
        import msgspec

        msgspec.json.Decoder(hint)  # looks at the type, now

        def by_msgspec(payload: Any) -> Any:
            try:
                return msgspec.convert(payload, hint)
            except msgspec.ValidationError as error:
                raise ValueError(f"the payload does not fit {hint!r}: {error}") from None

        return by_msgspec


def _records(hint: Any, found: set[Any]) -> set[Any]:
    """The classes with fields that a type is made of: dataclasses, TypedDicts, msgspec structs, pydantic models."""
    for argument in typing.get_args(hint):
        _records(argument, found)
    if inspect.isclass(hint) and hint not in found:
        marks = ("__dataclass_fields__", "__struct_fields__", "__pydantic_validator__")
        if typing.is_typeddict(hint) or any(hasattr(hint, mark) for mark in marks):
            found.add(hint)
            for field in typing.get_type_hints(hint).values():
                _records(field, found)
    return found


def _importable(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


@overload
def task(function: Callable[P, R], /) -> Task[P, R]: ...
@overload
def task(
    *,
    name: str | None = ...,
    max_attempts: int | None = ...,
    priority: int | None = ...,
    queue_name: str | None = ...,
    unique: dict[str, Any] | None = ...,
    sequence: dict[str, Any] | None = ...,
    delivery: str | None = ...,
    timeout: timedelta | float | None = ...,
    backoff: list[Any] | dict[str, Any] | None = ...,
    retention: timedelta | float | None = ...,
    result: bool = ...,
) -> Callable[[Callable[P, R]], Task[P, R]]: ...
def task(
    function: Any = None,
    /,
    *,
    name: str | None = None,
    result: bool = False,
    unique: dict[str, Any] | None = None,
    sequence: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Make a function, sync or async, the handler of the jobs of its name.

    name: the identifier in add_job, by default the function's name. result: keep what it returns with the finished job.
    unique: the unique_policy of its jobs, in River's or the Open Job Spec's terms (docs/unique-jobs.md). sequence: their
    sequence_policy, such as {"by_args": ["customer_id"]}: one at a time, in order, per customer (docs/sequences-and-queues.md).
    The rest are the defaults of define_task, written to the database when a worker starts, so that a bare
    SELECT add_job(…) inherits them; timeout and retention are timedeltas or seconds. A task that gives none leaves the
    database's definition alone.
    """
    plain = _sql.TASK_OPTIONS - {"unique_policy", "sequence_policy"}
    if unknown := options.keys() - plain:
        known = ", ".join(["name", "result", "unique", "sequence", *sorted(plain)])
        raise TypeError(f"task has no option {sorted(unknown)[0]!r} (known: {known})")
    options |= {"unique_policy": unique, "sequence_policy": sequence}
    for key in ("timeout", "retention"):
        if isinstance(options.get(key), int | float):
            options[key] = timedelta(seconds=options[key])

    def decorate(function: Callable[P, R]) -> Task[P, R]:
        made = Task(function, name or function.__name__, {k: v for k, v in options.items() if v is not None}, result)
        other = _registry.get(made.name)
        if other and (other.function.__module__, other.function.__qualname__) != (
            function.__module__,
            function.__qualname__,
        ):
            raise TaskError(f"two tasks are named {made.name!r}: {other!r} and {made!r}; give one of them name=…")
        _registry[made.name] = made
        return made

    return decorate if function is None else decorate(function)


def cron(expression: str, /, **options: Any) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Have jobs of a task added by the clock: @cron("0 4 * * *", timezone="Europe/Berlin") above its @task.

    The schedule is written to the database when a worker starts, and goes when one starts whose code has it no longer
    (docs/schedules.md). name: by default the task's; a second @cron needs one. timezone: "UTC" by default. backfill: for how long
    a missed tick is made up for, a timedelta or seconds. The rest are add_job's: payload, queue_name, priority … unique and
    sequence are as in @task.
    """
    renamed = {"unique": "unique_policy", "sequence": "sequence_policy"}
    known = _sql.SCHEDULE_OPTIONS - set(renamed.values()) | set(renamed)
    if unknown := options.keys() - known:
        raise TypeError(f"cron has no option {sorted(unknown)[0]!r} (known: {', '.join(sorted(known))})")
    options = {renamed.get(name, name): value for name, value in options.items() if value is not None}
    if isinstance(backfill := options.get("backfill"), timedelta):
        options["backfill"] = f"{backfill.total_seconds()} seconds"
    elif isinstance(backfill, int | float):
        options["backfill"] = f"{backfill} seconds"

    def decorate(function: Callable[P, R]) -> Task[P, R]:
        made = cast("Task[P, R]", function if isinstance(function, Task) else task(function))
        schedule = {"name": made.name, "cron": expression, "identifier": made.name, **options}
        if any(schedule["name"] == other["name"] for each in _registry.values() for other in each.schedules):
            raise TaskError(f"{made!r}: another schedule is named {schedule['name']!r}; give one of them name=…")
        made.schedules.append({**schedule, "origin": f"code:{made.function.__module__}"})
        return made

    return decorate


def schedules(modules: Iterable[str]) -> tuple[list[str], list[dict[str, Any]]]:
    """For whom these modules speak, with all below them that were loaded, and what they want to be scheduled."""
    wanted = [schedule for each in _registry.values() for schedule in each.schedules]
    roots = tuple(modules)
    loaded = {name for name in sys.modules for root in roots if name == root or name.startswith(root + ".")}
    return sorted({f"code:{name}" for name in loaded} | {schedule["origin"] for schedule in wanted}), wanted


def load(modules: Iterable[str]) -> dict[str, Task[..., Any]]:
    """Import the modules, packages with all their submodules, and return every task that is then known."""
    for name in modules:
        try:
            module = importlib.import_module(name)
            for found in pkgutil.walk_packages(getattr(module, "__path__", []), name + "."):
                if not found.name.endswith("__main__"):
                    importlib.import_module(found.name)
        except TaskError:
            raise
        except (Exception, SystemExit) as error:
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            if missing and (name == missing or name.startswith(missing + ".")):
                raise TaskError(
                    f"there is no module {name!r} to load tasks from (looked in the current directory and in Python's path)"
                ) from None
            raise TaskError(f"module {name!r} cannot be imported: {type(error).__name__}: {error}") from error
    if not _registry:
        raise TaskError(f"no function with @task was found in {', '.join(modules)}")
    return registered()


def registered() -> dict[str, Task[..., Any]]:
    """Every task of the modules that were imported."""
    for known in _registry.values():
        known.invoke  # noqa: B018 - signatures are checked now, not with the first job
    return dict(_registry)
