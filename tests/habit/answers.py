"""What handlers return and raise."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import decimal
import enum
import uuid

import msgspec
import pydantic

import pyworker
from pyworker import Job
from tests.habit.table import habit


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Model(pydantic.BaseModel):
    name: str
    at: datetime.datetime | None = None


class Struct(msgspec.Struct):
    name: str


class Color(enum.Enum):
    RED = "red"


class Odd(Exception):
    """Its text cannot be made."""

    def __str__(self):
        raise RuntimeError("no text")


class Keyworded(Exception):
    """It cannot be copied or pickled."""

    def __init__(self, *, code):
        super().__init__(code)
        self.code = code


@habit(returns={"x": 1, "y": 2})
def returns_a_dataclass(payload):
    return Point(1, 2)


@habit(returns={"name": "a", "at": "2026-01-01T00:00:00Z"})
def returns_a_model(payload):
    return Model(name="a", at=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))


@habit(returns={"name": "a"})
def returns_a_struct(payload):
    return Struct("a")


@habit(returns=[{"x": 1, "y": 2}])
def returns_a_list_of_dataclasses(payload):
    return [Point(1, 2)]


@habit(returns=None)
def returns_nothing(payload):
    pass


@habit(returns=[1, 2])
def returns_a_tuple(payload):
    return 1, 2


@habit(returns="null byte \ufffd")
def returns_a_null_byte(payload):
    return "null byte \0"


@habit(fails="its result must be JSON: a value of type set cannot be stored as JSON")
def returns_a_set(payload):
    return {1, 2}


@habit(fails="datetime")
def returns_a_datetime(payload):
    return datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


@habit(fails="Decimal")
def returns_a_decimal(payload):
    return decimal.Decimal("1.1")


@habit(fails="UUID")
def returns_a_uuid(payload):
    return uuid.UUID(int=1)


@habit(fails="JSON")
def returns_not_a_number(payload):
    return float("nan")


@habit(fails="async function")
def returns_a_coroutine(payload):
    made = asyncio.sleep(0)
    made.close()
    return made


@habit(ends="cancelled")
def returns_cancel(payload):
    return pyworker.Cancel("no longer wanted")


@habit(fails="returned the class Cancel: return or raise one", result=False)
def returns_the_class_of_an_outcome(payload):
    return pyworker.Cancel


@habit(fails="returned ValueError: to fail the job, raise it", result=False)
def returns_an_error(payload):
    return ValueError("no such account")


@habit(fails="ValueError: no such account")
async def returns_an_error_that_it_has_caught(payload):
    try:
        raise ValueError("no such account")
    except ValueError as error:
        return error


@habit(fails="returned the class TimeoutError: return or raise one", result=False)
def returns_the_class_of_an_error(payload):
    return TimeoutError


@habit(ends="cancelled")
def raises_the_class_of_an_outcome(payload):
    raise pyworker.Cancel


@habit(ends="scheduled")
def returns_snooze(payload):
    return pyworker.Snooze(datetime.timedelta(hours=1))


@habit(ends="discarded")
async def raises_discard(payload):
    raise pyworker.Discard("never")


@habit(ends="retryable", max_attempts=2, backoff=["1 hour"])
def fails_and_may_try_again(payload):
    raise ConnectionError("the other side is down")


@habit(fails="assert")
def fails_by_assert(payload):
    assert payload == "never"


@habit(fails="KeyError: 'missing'")
def fails_by_a_missing_key(payload):
    return payload["missing"]


@habit(fails="SystemExit")
def calls_sys_exit(payload):
    raise SystemExit(3)


@habit(fails="KeyboardInterrupt")
def raises_keyboard_interrupt(payload):
    raise KeyboardInterrupt


@habit(fails="KeyboardInterrupt")
async def raises_keyboard_interrupt_async(payload):
    raise KeyboardInterrupt


@habit(fails="StopIteration")
def raises_stop_iteration(payload):
    next(iter(()))


@habit(fails="CancelledError")
async def raises_cancelled_error(payload):
    raise asyncio.CancelledError


@habit(fails="RecursionError")
def recurses_for_ever(payload):
    return recurses_for_ever.function(payload)


@habit(fails="MemoryError")
def raises_memory_error(payload):
    raise MemoryError


@habit(fails="Odd")
def raises_what_has_no_text(payload):
    raise Odd


@habit(fails="Keyworded")
def raises_what_takes_keywords(payload):
    raise Keyworded(code=7)


@habit(fails="from a cause")
def raises_from_a_cause(payload):
    try:
        raise ValueError("from a cause")
    except ValueError as error:
        raise RuntimeError("above") from error


@habit(fails="two errors")
def raises_a_group(payload):
    raise ExceptionGroup("two errors", [ValueError(1), TypeError(2)])


@habit(fails="a null byte")
def raises_with_a_null_byte(payload):
    raise ValueError("a null byte \0 and half a pair \ud800")


@habit(ends="retryable", payload=[1, 2, 3], max_attempts=2, backoff=["1 hour"])
def some_of_a_list_failed(payload):
    raise pyworker.Failed([element for element in payload if element % 2])


@habit(ends="retryable", payload=[uuid.UUID(int=1), uuid.UUID(int=2)], max_attempts=2, backoff=["1 hour"])
def some_of_a_typed_list_failed(payload: list[uuid.UUID]):
    raise pyworker.Failed(payload[1:])


@habit(returns="logged")
def logs_a_line(payload, job: Job):
    job.log("page 4 has no text", "warning")
    job.progress(1, "with \0 in it")
    job.logger.info("to the worker's log: %s", payload)
    return "logged"


@habit(ends="completed", delivery="at_most_once")
def runs_at_most_once(payload):
    return "once"


@habit(fails="deliberate", delivery="at_most_once", max_attempts=5)
async def fails_at_most_once(payload):
    raise ValueError("deliberate")
