"""Log formats: text for people, JSON for machines."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import threading
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, cast

from ._escape import shown, shown_json

_PLAIN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, pid, exception, and all of `extra`.

    An extra with one of these names gets the prefix "extra_"."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message_of(record),
            "pid": record.process,
        }
        if exception := record.exc_text or (self.formatException(record.exc_info) if record.exc_info else ""):
            entry["exception"] = exception
        for key, value in record.__dict__.items():
            if key not in _PLAIN:
                entry[f"extra_{key}" if key in (*entry, "exception") else key] = value
        return shown_json(_json_of(entry))


def _message_of(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # log a message even if it does not fit its arguments
        return f"{_text_of(record.msg)} {_text_of(record.args)} ({type(error).__name__}: {_text_of(error)})"


def _json_of(value: Any) -> str:
    """Any value as JSON; what JSON cannot express becomes text."""
    try:
        return json.dumps(value, default=_text_of, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return json.dumps(_plain(value, 20))


def _plain(value: Any, depth: int) -> Any:
    if isinstance(value, Mapping) and depth:
        members = cast("Mapping[Any, Any]", value).items()
        return {
            key if isinstance(key, str) else _text_of(key): _plain(part, depth - 1) for key, part in members
        }
    if isinstance(value, list | tuple) and depth:
        return [_plain(part, depth - 1) for part in cast("list[Any]", value)]
    if isinstance(value, int) and value.bit_length() > 10_000:  # Python refuses longer decimals
        return hex(value)
    if (
        value is None
        or isinstance(value, bool | str | int)
        or (isinstance(value, float) and math.isfinite(value))
    ):
        return value
    return _text_of(value)


def _text_of(value: Any) -> str:
    try:
        return str(value)
    except Exception as error:
        return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"


class TextFormatter(logging.Formatter):
    """For log files: full time, level, logger and process."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s[%(process)d] %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        job = f"job {record.__dict__['job_id']}: " if _is_of_job(record) else ""
        record.message = job + record.message
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        return shown(super().format(record))


def _is_of_job(record: logging.LogRecord) -> bool:
    """True if a handler has logged it through its job, whose id is not in the message."""
    return record.name.startswith("pyworker.task.") and "job_id" in record.__dict__


def enable_again() -> None:
    """Undo what logging.config.dictConfig in a module of tasks did: by default it disables all loggers.

    A level silences ours.
    """
    for name, logger in logging.root.manager.loggerDict.items():
        if name.partition(".")[0] == "pyworker" and isinstance(logger, logging.Logger):
            logger.disabled = False


class JobLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the job's fields to `extra`; logging's own adapter would replace it."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, {**kwargs, "extra": {**(kwargs.get("extra") or {}), **(self.extra or {})}}


class ShortFormatter(logging.Formatter):
    """For terminals: the time of day, a job's task and id, and the message, in colours.

    Names other loggers.
    """

    def __init__(self, terminal: bool) -> None:
        super().__init__(datefmt="%H:%M:%S")
        self._start = "\r\x1b[K" if terminal else ""  # overwrites a progress bar
        self._colours = terminal and "NO_COLOR" not in os.environ

    def format(self, record: logging.LogRecord) -> str:
        fields = record.__dict__
        who = ""
        if _is_of_job(record):
            who = f"{fields['task']} {fields['job_id']}: "
        elif record.name.partition(".")[0] != "pyworker":
            who = f"{record.name}: "
        loud = record.levelno >= logging.WARNING
        level = f"{record.levelname.lower()}: " if loud else ""
        text = f"{level}{who}{record.getMessage()}"
        if exception := record.exc_text or (self.formatException(record.exc_info) if record.exc_info else ""):
            text += f"\n{exception}"
        text = shown(text)
        at = self.formatTime(record, self.datefmt)
        if self._colours:
            at = f"\x1b[2m{at}\x1b[0m"
            if loud:
                text = f"\x1b[{31 if record.levelno >= logging.ERROR else 33}m{text}\x1b[0m"
        return f"{self._start}{at} {text}"


def on_terminal() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _catch_the_rest() -> None:
    """Log what Python would write to standard error by itself."""
    other = logging.getLogger("python")

    def uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        other.critical("uncaught exception: %s", kind.__name__, exc_info=(kind, error, trace))

    def in_thread(found: threading.ExceptHookArgs) -> None:
        if found.exc_type is not SystemExit and found.exc_value is not None:
            name = found.thread.name if found.thread else "?"
            about = (found.exc_type, found.exc_value, found.exc_traceback)
            other.error("uncaught exception in thread %s: %s", name, found.exc_type.__name__, exc_info=about)

    def unraisable(found: sys.UnraisableHookArgs) -> None:
        about = (found.exc_type, found.exc_value or found.exc_type(), found.exc_traceback)
        words = found.err_msg or "exception ignored in"
        other.error("%s: %s", words, _text_of(found.object), exc_info=about)

    sys.excepthook, threading.excepthook, sys.unraisablehook = uncaught, in_thread, unraisable
    logging.captureWarnings(True)


def is_json() -> bool:
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


def set_up(log_format: str, level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "json":
        handler.setFormatter(JsonFormatter())
        _catch_the_rest()
    elif log_format == "short" or on_terminal():
        handler.setFormatter(ShortFormatter(on_terminal()))
    else:
        handler.setFormatter(TextFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("psycopg").setLevel(logging.ERROR)  # lost connections are logged by Backoff
