"""The decorators @task and @cron, and the tasks that they register."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from datetime import timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from . import _client
from ._arguments import AddOptions, CronOptions, TaskOptions
from ._db.either import AsyncConnection, SyncConnection
from ._db.queue import ADD_ARGUMENTS
from ._db.rows import JobRow
from ._handler import Handler, called_by, named_by
from ._modules import import_all, warn_of_others
from ._options import ELSEWHERE, checked_batch, cron_options, task_options
from ._texts import module_meant, project_meant
from .errors import InvalidArgument, TaskError
from .job import AsyncJob, Job

if TYPE_CHECKING:
    from ._db.database import Database

P = ParamSpec("P")
R = TypeVar("R")
Payload = TypeVar("Payload")

_registry: dict[str, Task[..., Any]] = {}


# What handlers are called with. The payload is the first parameter; without parameters, or with a job alone,
# there is none. A batch handler's first parameter is a list of jobs, each with a payload.
_WithoutPayload = (
    Callable[[], Any] | Callable[Concatenate[Job, ...], Any] | Callable[Concatenate[AsyncJob, ...], Any]
)


class _Options(AddOptions, total=False):
    schema: str | None


class Task(Generic[P, R]):
    """A handler with its name and options. Calling it calls the plain function, as in a unit test.

    In Task[P, R], P is the handler's parameters, of which the first is the payload; R is its return
    type.
    """

    def __init__(
        self,
        function: Callable[P, R],
        name: str,
        options: dict[str, Any],
        result: bool,
        batch: int | None = None,
    ) -> None:
        # Attributes of the function must not hide those of Task.
        self.__dict__.update(
            {k: v for k, v in getattr(function, "__dict__", {}).items() if not hasattr(Task, k)}
        )
        functools.update_wrapper(cast("Any", self), function, updated=())
        self.function = function
        self.name = name
        self.options = options
        self.result = result
        self.batch = batch  # the jobs of a call at most; None: the handler takes one payload
        self.schedules: list[dict[str, Any]] = []
        self._handler = Handler(function, self, batch)
        origin = named_by(function)
        self.module, self.qualname = str(origin.__module__), str(origin.__qualname__)
        self.is_async = inspect.iscoroutinefunction(called_by(function))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<task {self.name} ({self.module}.{self.qualname})>"

    if not TYPE_CHECKING:  # a type checker refuses each unknown name

        def __getattr__(self, name):
            """For a verb of another queue, an error that says what to write."""
            advice = f": write {ELSEWHERE[name]}" if name in ELSEWHERE else ""
            raise AttributeError(f"a pyworker task has no attribute {name!r}{advice}")

    @overload
    def add(
        self: _WithoutPayload, conn: AsyncConnection, payload: None = None, **options: Unpack[_Options]
    ) -> Coroutine[Any, Any, JobRow]: ...
    @overload
    def add(
        self: Callable[Concatenate[list[Job[Payload]], ...], Any],
        conn: AsyncConnection,
        payload: Payload,
        **options: Unpack[_Options],
    ) -> Coroutine[Any, Any, JobRow]: ...
    @overload
    def add(
        self: Callable[Concatenate[list[AsyncJob[Payload]], ...], Any],
        conn: AsyncConnection,
        payload: Payload,
        **options: Unpack[_Options],
    ) -> Coroutine[Any, Any, JobRow]: ...
    @overload
    def add(
        self: Callable[Concatenate[Payload, ...], Any],
        conn: AsyncConnection,
        payload: Payload,
        **options: Unpack[_Options],
    ) -> Coroutine[Any, Any, JobRow]: ...
    @overload
    def add(
        self: _WithoutPayload, conn: SyncConnection, payload: None = None, **options: Unpack[_Options]
    ) -> JobRow: ...
    @overload
    def add(
        self: Callable[Concatenate[list[Job[Payload]], ...], Any],
        conn: SyncConnection,
        payload: Payload,
        **options: Unpack[_Options],
    ) -> JobRow: ...
    @overload
    def add(
        self: Callable[Concatenate[list[AsyncJob[Payload]], ...], Any],
        conn: SyncConnection,
        payload: Payload,
        **options: Unpack[_Options],
    ) -> JobRow: ...
    @overload
    def add(
        self: Callable[Concatenate[Payload, ...], Any],
        conn: SyncConnection,
        payload: Payload,
        **options: Unpack[_Options],
    ) -> JobRow: ...
    def add(
        self: Any, conn: Any, payload: Any = None, *, schema: str | None = None, **options: Unpack[AddOptions]
    ) -> Any:
        """Add a job of this task in the caller's transaction: pyworker.add_job(conn, this task, …).

        The task's options apply even before a worker has started with them; the call's options
        override them.
        """
        add: Callable[..., Any] = _client.add_job
        return add(conn, self, payload, schema=schema, **options)

    @property
    def add_options(self) -> dict[str, Any]:
        """The task's options that add_job takes."""
        return {name: value for name, value in self.options.items() if name in ADD_ARGUMENTS}

    def encoded(self, payload: Any) -> Any:
        """The payload as JSON values that a worker reads as it was given. Raises InvalidArgument."""
        return self._handler.encoded(payload)

    def declared(self, schedule: dict[str, Any]) -> dict[str, Any]:
        """A schedule of this task as it is sent. Raises InvalidArgument for a payload that is not read."""
        return {**schedule, "payload": self._handler.scheduled(schedule.get("payload"))}

    @functools.cached_property
    def invoke(self) -> Callable[[Any], Any]:
        """The function as the worker calls it with a job, or with the list of a batch's jobs."""
        return self._handler.invocation()

    @functools.cached_property
    def convert(self) -> Callable[[Any], Any] | None:
        """Converts the payload of a batch's job; None if there is nothing to convert."""
        return self._handler.conversion()


@overload
def task(function: Callable[P, R], /) -> Task[P, R]: ...
@overload
def task(
    function: str | None = None, /, **options: Unpack[TaskOptions]
) -> Callable[[Callable[P, R]], Task[P, R]]: ...
def task(function: Any = None, /, **options: Any) -> Any:
    """Make a sync or async function the handler of a task.

    Write @task, @task("name") or @task(max_attempts=5, …).

    name: the identifier in add_job, by default the function's name. result: store what it returns
    with the finished job. batch=100: call the handler with a list of 1 to 100 jobs; it returns None, or a
    list with an outcome for each job (docs/batches.md). unique_policy: in River's or the Open Job
    Spec's terms (docs/unique-jobs.md). sequence_policy: such as {"by_args": ["customer_id"]}: one at a
    time, in order, per customer (docs/sequences-and-queues.md). The others are those of define_task:
    max_attempts, priority, queue_name, delivery, timeout, backoff, retention; timeout and retention
    are timedeltas or seconds.

    The options apply to every job that Task.add adds. A worker writes them to the database when it
    starts, and so does `pyworker tasks sync`, so that SELECT add_job(…) inherits them. A task
    without options does not change its definition in the database.
    """
    name: str | None = options.pop("name", None)
    result: bool = options.pop("result", False)
    batch = checked_batch(options.pop("batch", None))
    if isinstance(function, str):
        if name is not None:
            raise TypeError(f"task: two names were given, {function!r} and {name!r}")
        function, name = None, function
    if name == "" or not isinstance(name, str | None):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"task: name must be a string that is not empty, got {name!r}")
    given = task_options(options)

    def decorate(function: Callable[P, R]) -> Task[P, R]:
        handler = _checked(function)
        return _register(Task(handler, name or _name_of(handler), given, result, batch))

    return decorate if function is None else decorate(function)


def _checked(function: Any) -> Any:
    if isinstance(function, Task):
        raise TypeError(f"task: {function!r} is a task already")
    if inspect.isclass(function) or not callable(function):
        raise TypeError(
            f"task: a handler is a function or another object that can be called, got {function!r}"
        )
    return function


def _name_of(function: Any) -> str:
    """A partial has the name of its function, a callable object that of its class."""
    return named_by(function).__name__


def _register(made: Task[P, R]) -> Task[P, R]:
    other = _registry.get(made.name)
    if other and (other.module, other.qualname) != (made.module, made.qualname):
        raise TaskError(f"two tasks are named {made.name!r}: {other!r} and {made!r}; give one of them name=…")
    _registry[made.name] = made
    return made


def cron(expression: str, /, **options: Unpack[CronOptions]) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Add jobs of a task on a schedule.

    Write @cron("0 4 * * *", timezone="Europe/Berlin") above its @task. A worker writes the schedule
    to the database when it starts. It is removed when a worker starts whose code no longer declares
    it (docs/schedules.md).

    name: by default the task's; a second @cron needs one. timezone: "UTC" by default. backfill: how
    far back missed ticks are made up for, a timedelta or seconds. The others are add_job's:
    payload, queue_name, priority …
    """
    given = cron_options(cast("Mapping[str, Any]", options))

    def decorate(function: Callable[P, R]) -> Task[P, R]:
        made = cast("Task[P, R]", function if isinstance(function, Task) else task(function))
        schedule = {"name": made.name, "cron": expression, "identifier": made.name, **given}
        if any(schedule["name"] == other["name"] for each in _registry.values() for other in each.schedules):
            raise TaskError(
                f"{made!r}: another schedule is named {schedule['name']!r}; give one of them name=…"
            )
        made.schedules.append({**schedule, "origin": f"code:{made.module}"})
        return made

    return decorate


def define(db: Database, known: Mapping[str, Task[..., Any]]) -> None:
    """Write the options of these tasks to the database; tasks without options are skipped."""

    def write(task: Task[..., Any]) -> None:
        try:
            db.define_task(task.name, task.options)
        except InvalidArgument as error:
            raise TaskError(f"{task!r}: {error}") from None

    # Sorted, so that two sessions that write several tasks do not deadlock.
    db.each(*(functools.partial(write, known[name]) for name in sorted(known) if known[name].options))


def definitions(known: Mapping[str, Task[..., Any]]) -> dict[str, dict[str, Any]]:
    """The declared options of these tasks as JSON values, with times in seconds.

    Tasks without options are left out.
    """
    return {
        name: {k: v.total_seconds() if isinstance(v, timedelta) else v for k, v in task.options.items()}
        for name, task in known.items()
        if task.options
    }


def schedules(modules: Iterable[str]) -> tuple[list[str], list[dict[str, Any]]]:
    """The origins that these modules are responsible for, and the declared schedules.

    The origins include all loaded submodules.
    """
    wanted = [each.declared(schedule) for each in _registry.values() for schedule in each.schedules]
    roots = tuple(modules)
    loaded = {name for name in sys.modules for root in roots if name == root or name.startswith(root + ".")}
    return sorted({f"code:{name}" for name in loaded} | {schedule["origin"] for schedule in wanted}), wanted


def load(modules: Collection[str]) -> dict[str, Task[..., Any]]:
    """Import the modules, packages with all submodules.

    Returns every task that is then registered.
    """
    for name in modules:
        if not name:
            raise TaskError("the name of a module must not be empty")
        try:
            import_all(name)
        except (TaskError, KeyboardInterrupt):
            raise
        except BaseException as error:  # such as SystemExit or CancelledError
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            if missing and (name == missing or name.startswith(missing + ".")):
                raise TaskError(
                    f"there is no module {name!r} to load tasks from"
                    f" (looked in the current directory and in Python's path){module_meant(name)}"
                ) from None
            if name.startswith("."):
                raise TaskError(f"{name!r} is not the name of a module{module_meant(name)}") from None
            raise TaskError(
                f"module {name!r} cannot be imported: {type(error).__name__}: {error}{project_meant(error)}"
            ) from error
    warn_of_others(modules)
    if not _registry:
        raise TaskError(f"no function with @task was found in {', '.join(modules)}")
    return registered()


def registered() -> dict[str, Task[..., Any]]:
    """Every task of the imported modules."""
    for known in _registry.values():
        known.invoke  # noqa: B018 - checks signatures now, not with the first job
        known.convert  # noqa: B018
    return dict(_registry)
