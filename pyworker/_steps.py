"""A job's steps and waits: what one run has done, a later run need not do again.

The rules are in sql/features/steps.sql. This module reads the saved steps once a run, calls
what is not saved, and keeps a name from being used twice.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import psycopg

from ._checks import checked, wait_of
from ._opened import guard, refuse_inside, within
from ._payload import storable, to_json
from .errors import Duplicate, InvalidArgument, WrongState

if TYPE_CHECKING:
    from ._db.handler import HandlerCalls

C = TypeVar("C", bound="psycopg.Connection[Any] | psycopg.AsyncConnection[Any]")


class Suspended(BaseException):
    """Raised by job.wait_for: the signal has not come, and this run of the job has ended.

    It is no Exception, so that a handler's `except Exception` lets it pass. `name`: of the signal.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"waits for the signal {name!r}")


def suspends(error: BaseException) -> bool:
    """True if a handler raised Suspended, or one of its asyncio tasks did."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return any(suspends(one) for one in group.exceptions)
    return isinstance(error, Suspended)


def refuse_in_batch(batched: bool, caller: str, why: str) -> None:
    if batched:
        raise WrongState(f"{caller}: not in a batch handler: {why}")


class Step(Generic[C]):
    """A step within job.step_transaction().

    done: an earlier run has done it; skip it. result: what that run saved; if the step is not done, set it
    to what is to be saved. connection: in the step's transaction.
    """

    __slots__ = ("_connection", "name", "result")

    def __init__(self, name: str, result: Any, connection: C | None = None) -> None:
        self.name = name
        self.result: Any = result
        self._connection = connection

    @property
    def done(self) -> bool:
        return self._connection is None

    @property
    def connection(self) -> C:
        if self._connection is None:
            raise WrongState(f"step {self.name!r} is done: do nothing for it again (if not step.done: …)")
        return self._connection


@dataclass(slots=True)
class Book:
    """What this run knows of the job's steps."""

    names: set[str] = field(default_factory=set[str])  # used in this run
    waits: dict[str, int] = field(default_factory=dict[str, int])  # how many of each name
    saved: dict[str, Any] | None = None  # read on first use


class Steps:
    """What Job and AsyncJob share. The fields are theirs."""

    __slots__ = ()

    if TYPE_CHECKING:
        id: int
        run: int
        _transaction: str
        _underway: int

        @property
        def _book(self) -> Book: ...
        @property
        def _calls(self) -> HandlerCalls: ...

        _batched: bool

    @contextmanager
    def _named(self, caller: str, name: str, wait: bool = False) -> Iterator[int]:
        """Take a name for a step or a wait. After an exception, it may be taken again.

        Waits may have one name: each is a wait of its own. The result is its number."""
        # Refused before the step is done, not when it is saved.
        text = isinstance(name, str)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not text or not 1 <= len(checked(caller, "name", name)) <= 512:
            raise InvalidArgument(
                f"{caller}: name must be a string of 1 to 512 characters, got {name!r:.530}"
            )
        refuse_inside(
            self,
            caller,
            "not inside job.transaction() or job.step_transaction(),"
            " which may be rolled back when this is not",
        )
        with guard:
            if self._transaction == "open":
                raise WrongState(
                    f"{caller}: not while another task or thread of the handler is in job.transaction(),"
                    " which completes the job"
                )
            if self._transaction:
                raise WrongState(f"{caller}: not after job.transaction(), which has completed the job")
            waits = self._book.waits
            if name in self._book.names and not (wait and name in waits):
                raise Duplicate(
                    f"{caller}: {name!r} was used before in this run; each step of a job needs a name of"
                    " its own, and no wait may have it"
                )
            self._book.names.add(name)
            nth = 1
            if wait:
                waits[name] = nth = waits.get(name, 0) + 1
            self._underway += 1
        try:
            yield nth
        except BaseException:
            if nth > 1:
                waits[name] -= 1
            else:
                waits.pop(name, None)
                self._book.names.discard(name)
            self._book.saved = None
            raise
        finally:
            with guard:
                self._underway -= 1

    @staticmethod
    def _json(caller: str, name: str, result: Any) -> str:
        return storable(to_json(result, f"{caller}: the result of step {name!r}"))

    async def _saved(self) -> dict[str, Any]:
        if self._book.saved is None:
            self._book.saved = json.loads(await self._calls.steps(self.id))
        return cast("dict[str, Any]", self._book.saved)


class AsyncSteps(Steps):
    """The methods of AsyncJob; those of Job are made from them."""

    __slots__ = ()

    async def step(self, name: str, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function once in this job's life, and return its result: `job.step("pay", pay, order)`.

        The result is saved before step() returns. If the job runs again (after a failure, a crash, a snooze),
        step() returns the saved result without a call. If the process dies between the call and its save, the
        next run calls again: a step is at least once. For effects in this database use step_transaction.
        With an AsyncJob the function may be async.

        name: 1 to 512 characters, once a run. The result must be JSON; a dataclass or model becomes plain
        JSON values, in each run. Raises InvalidArgument, Duplicate, WrongState, ClaimLost.
        (SQL: save_step, get_steps)
        """
        with self._named("job.step()", name):
            saved = await self._saved()
            if name in saved:
                return saved[name]
            value = call(*args, **kwargs)
            if inspect.isawaitable(value):
                if not self._calls.awaits:  # and nothing has run yet
                    raise TypeError(
                        f"job.step(): the function of step {name!r} is async; make the handler async, too"
                    )
                value = await value
            result = self._json("job.step()", name, value)
            await self._calls.save_step(self.id, self.run, name, result)
            return json.loads(result)

    @asynccontextmanager
    async def step_transaction(self, name: str) -> AsyncIterator[Step[psycopg.AsyncConnection[Any]]]:
        """A step whose writes to this database happen once: they are committed with the step.

            with job.step_transaction("reserve") as step:
                if not step.done:
                    step.connection.execute("insert into reservations …")
                    step.result = "R17"

        If the claim was lost, the commit is replaced by ClaimLost, and everything rolls back. The name may be
        used again after an exception. Raises what step() raises.
        """
        with self._named("job.step_transaction()", name):
            saved = await self._saved()
            if name in saved:
                yield Step(name, saved[name])
                return

            async def finish(conn: Any) -> None:
                result = self._json("job.step_transaction()", name, step.result)
                await self._calls.save_step(self.id, self.run, name, result, within=conn)

            async with self._calls.lend("job.step_transaction()", finish) as lent:
                with within(self, lent):
                    step = Step[psycopg.AsyncConnection[Any]](name, None, lent)
                    yield step

    async def wait_for(self, name: str, timeout: timedelta | float | None = None) -> Any:
        """The payload of a signal that was sent to this job (send_signal); None if the timeout has passed.

        If there is no answer yet, this raises Suspended, which ends the run: the job is pending, without a
        process, a slot or an attempt. When the signal comes or the timeout ends, the handler begins again
        from its start, and gets the answer here. So put what must not be repeated into steps.

        Each wait for a name in a run is a wait of its own, and each signal answers one: a loop may wait for
        one name again, and a signal that comes after a timeout answers the next wait.

        timeout: a timedelta or seconds, from the first call on; None: no end. Raises InvalidArgument,
        Duplicate, WrongState (also for delivery at_most_once), ClaimLost. (SQL: wait_for_signal)
        """
        refuse_in_batch(self._batched, "job.wait_for()", "it would end the run of one job within the call")
        with self._named("job.wait_for()", name, wait=True) as nth:
            seconds = wait_of("job.wait_for()", timeout)
            answer = await self._calls.wait_for_signal(self.id, self.run, name, seconds, nth)
            if answer is None:
                raise Suspended(name)
            return json.loads(answer)
