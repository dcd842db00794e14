"""Log lines for people, or JSON for machines."""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime

_PLAIN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and whatever was given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
        }
        entry |= {key: value for key, value in record.__dict__.items() if key not in _PLAIN}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class ShortFormatter(logging.Formatter):
    """For people: the time of day, of a job its task and id, and the message; who else speaks is named. On a terminal in colours."""

    def __init__(self, terminal: bool) -> None:
        super().__init__(datefmt="%H:%M:%S")
        self._start = "\r\x1b[K" if terminal else ""  # over a progress bar
        self._colours = terminal and "NO_COLOR" not in os.environ

    def format(self, record: logging.LogRecord) -> str:
        fields = record.__dict__
        who = ""
        if record.name.startswith("pyworker.task.") and "job_id" in fields:
            who = f"{fields['task']} {fields['job_id']}: "
        elif record.name.partition(".")[0] != "pyworker":
            who = f"{record.name}: "
        loud = record.levelno >= logging.WARNING
        text = f"{f'{record.levelname.lower()}: ' if loud else ''}{who}{record.getMessage()}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        at = self.formatTime(record, self.datefmt)
        if self._colours:
            at = f"\x1b[2m{at}\x1b[0m"
            if loud:
                text = f"\x1b[{31 if record.levelno >= logging.ERROR else 33}m{text}\x1b[0m"
        return f"{self._start}{at} {text}"


def on_terminal() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def set_up(log_format: str, level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "json":
        handler.setFormatter(JsonFormatter())
    elif log_format == "short" or on_terminal():
        handler.setFormatter(ShortFormatter(on_terminal()))
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s[%(process)d] %(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("psycopg").setLevel(logging.ERROR)  # we tell of lost connections ourselves
