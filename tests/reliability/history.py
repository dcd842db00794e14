"""A history: what happened to one queue under faults, one event a line, as JSON.

Every event has `t`, the seconds since the history began, and `what`:

add       a producer's call. `phase`: invoke, before the call; then ok (the commit was acknowledged),
          rolled back (the producer rolled back), abandoned (it was killed before it asked for the commit),
          or unknown (no answer, or an error). `op`: the number of the call, which is the job's payload.
          `kind`: plain, once, unique, sequence or effect. `key`: of a unique job or a sequence
start     a handler began: `op`, the queue's own number `job`, its `attempt`, the `process`
end       the same handler returned
effect    a row that a handler of kind effect has committed: `op`, `attempt`
fault     what was done: `name`, and the `processes` that it hit. The event of phase over tells when it ended
process   a process came up or ended: `phase` up or exit, `process`
left      what the queue's tables had in the end of a job that was not completed: `op`, `state`, and `live`:
          is it still to run?
about     the first line: who, in which version, with which settings, seed and command
finish    the last line: nothing was recorded after it

A handler writes its line by one `write` to a file that all append to, so a killed process leaves whole lines.
This file and those that judge and export use the standard library alone.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Event = dict[str, Any]


class Recorder:
    """Appends events to a file, with the wall clock's time."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def __call__(self, what: str, **fields: Any) -> float:
        now = time.time()
        os.write(self._file, (json.dumps({"what": what, "t": now, **fields}) + "\n").encode())
        return now

    def close(self) -> None:
        os.close(self._file)


def lines(path: Path) -> Iterator[Event]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def merged(files: Iterable[Path]) -> list[Event]:
    """The events of all files in the order of time, which begins at 0 with the first one."""
    events = sorted((event for file in files for event in lines(file)), key=lambda event: event["t"])
    began = events[0]["t"] if events else 0.0
    return [{**event, "t": round(event["t"] - began, 4)} for event in events]


def write(events: Iterable[Event], path: Path) -> None:
    """Equal events make equal files, byte for byte."""
    text = "".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events)
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def found(directory: Path) -> dict[str, Path]:
    """The histories in a directory, or the one of a file, by name."""
    paths = [directory] if directory.is_file() else sorted(directory.rglob("*.jsonl*"))
    return {path.name.split(".jsonl")[0]: path for path in paths}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
