"""The checks of arguments before they are sent; the database checks the rest.

A refusal here costs no transaction, and names the argument and its value, which a driver would not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from math import isfinite, isnan
from typing import Any, cast

from ._payload import payload_json, storable, to_json
from .errors import InvalidArgument

# Options in Celery, Dramatiq, RQ, arq, Procrastinate, Huey, Oban, River, Django.
_NAMED_ELSEWHERE = {
    "delay": {"countdown", "schedule_in", "defer_by", "_defer_by", "delay_s", "wait", "in_seconds"},
    "run_at": {"eta", "schedule_at", "scheduled_at", "defer_until", "_defer_until", "run_after", "at"},
    "expires_at": {"expires", "_expires", "ttl"},
    "queue_name": {"queue", "_queue_name", "lock"},
    "job_key": {"task_id", "job_id", "_job_id", "key", "queueing_lock"},
    "unique_policy": {"unique", "unique_opts", "dedup"},
    "max_attempts": {"max_retries", "retries", "retry", "max_tries", "attempts"},
    "payload, one value": {"args", "kwargs", "data", "params"},
    "flags": {"tags"},
    "timeout, an option of @task": {"timeout", "time_limit", "soft_time_limit", "job_timeout"},
    "retention, an option of @task": {"retention", "result_ttl", "keep_result"},
    "backoff, an option of @task": {"backoff", "retry_backoff", "default_retry_delay"},
    "a second parameter, job: Job": {"bind", "pass_context", "context"},
}
_FARTHEST = timedelta(days=2_922_000)  # 8,000 years


def checked(function: str, name: str, value: Any) -> Any:
    """The value in a form that any driver sends.

    That is text, an integer, a list of texts; for a timedelta, an interval as text.
    """
    try:
        return _CHECKS[name](value)
    except _Wrong as wrong:
        raise InvalidArgument(f"{function}: {name} {wrong}") from None
    except InvalidArgument as error:
        raise InvalidArgument(f"{function}: {error}") from None
    except TypeError as error:
        raise TypeError(f"{function}: {error}") from None


def is_from_now(name: str, value: Any) -> bool:
    """True if the option gives a time by its distance from now."""
    return name == "delay" or (name in ("run_at", "expires_at") and isinstance(value, timedelta))


def seconds_of(function: str, timeout: timedelta | float) -> float:
    if isinstance(timeout, timedelta):
        return timeout.total_seconds()
    number = isinstance(timeout, int | float)  # pyright: ignore[reportUnnecessaryIsInstance]
    if not number or isinstance(timeout, bool) or isnan(timeout):
        raise InvalidArgument(f"{function}: timeout must be a timedelta or seconds, got {timeout!r}")
    return float(timeout)


def wait_of(function: str, timeout: timedelta | float | None) -> float | None:
    """The same for a wait that the database keeps and checks; None: without end."""
    seconds = None if timeout is None else seconds_of(function, timeout)
    if seconds is not None and abs(seconds) > _FARTHEST.total_seconds():  # no interval holds it
        raise InvalidArgument(f"{function}: timeout must be from 0 to 1000 years, got {timeout!r}")
    return seconds


def in_place_of(name: str) -> str:
    """What to write in place of an option as it is named elsewhere; nothing for another name."""
    found = [right for right, names in _NAMED_ELSEWHERE.items() if name in names]
    return f": write {found[0]}" if found else ""


class _Wrong(Exception):
    """Its message is appended to the argument's name."""


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Wrong(f"must be a string, got {value!r}")
    if "\0" in value or not _is_unicode(value):
        raise _Wrong(f"must not contain NUL or half a surrogate pair, got {value!a}")
    return value


def _is_unicode(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _integer(limit: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise _Wrong(f"must be an integer, got {value!r}")
        if not -limit <= value < limit:
            raise _Wrong(f"is out of range, got {value}")
        return value

    return check


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Wrong(f"must be True or False, got {value!r}")
    return value


def _run_at(value: Any) -> str:
    if isinstance(value, timedelta):
        if abs(value) > _FARTHEST:
            raise _Wrong(f"must be a time of the years 1 to 9999, got {value!r} from now")
        return _duration(value)
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise _Wrong(
                f"must have a time zone, got {value!r}:"
                " use datetime.now(timezone.utc), value.astimezone(), or a timedelta from now"
            )
        return value.isoformat()
    if isinstance(value, str):
        return _text(value)
    raise _Wrong(f"must be a datetime with a time zone, a timedelta from now, or a string, got {value!r}")


def _delay(value: Any) -> str:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, int | float) and not 0 <= seconds <= _FARTHEST.total_seconds():
        raise _Wrong(f"must be from 0 seconds to 8,000 years, got {value!r}")
    return _duration(value)


def _duration(value: Any) -> str:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _Wrong(f"must be a timedelta, seconds, or a string, got {value!r}")
    if isinstance(value, str):
        return _text(value)
    if not isfinite(value):
        raise _Wrong(f"must be a time that is finite, got {value!r}")
    return f"{value:f} seconds" if isinstance(value, float) else f"{value} seconds"  # without an exponent


def _flags(value: Any) -> list[str]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise _Wrong(f"must be a list of strings, got {value!r}")
    flags: list[Any] = list(cast("Iterable[Any]", value))
    if not all(isinstance(flag, str) for flag in flags):
        raise _Wrong(f"must be a list of strings, got {value!r}")
    return [_text(flag) for flag in flags]


def _json(name: str) -> Callable[[Any], str]:
    write = payload_json if name == "payload" else to_json

    def check(value: Any) -> str:
        text = write(dict(cast("Any", value)) if isinstance(value, Mapping) else value, name)
        if name != "payload" and storable(text) != text:  # jsonb would refuse it
            raise _Wrong(f"must not contain NUL or half a surrogate pair, got {value!a}")
        return text

    return check


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "identifier": _text, "ref": _text, "queue_name": _text, "job_key": _text, "job_key_mode": _text,
    "delivery": _text, "name": _text, "on": _text, "key": _text,
    "max_attempts": _integer(2**31), "priority": _integer(2**31), "job_id": _integer(2**63),
    "force": _boolean, "run_at": _run_at, "expires_at": _run_at, "max_wait": _duration, "delay": _delay,
    "flags": _flags,
    **{name: _json(name) for name in ("payload", "unique_policy", "sequence_policy", "meta", "depends_on")},
}  # fmt: skip
