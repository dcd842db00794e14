"""The HTTP answers of a worker of several databases: one for all, each part with its database."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from queue import Empty
from typing import TYPE_CHECKING

from .metrics import TEXT, escaped
from .probes import PLAIN, Route

if TYPE_CHECKING:
    from .servant import Answer, Servant

_OWN = re.compile('(?<=[{,])database=(?=")')
# Seconds that all databases together have to answer. Probes have short timeouts; a process that is
# just starting, or has no turn at once, is live.
TIMEOUTS = {"/live": 0.5, "/ready": 2.0, "/metrics": 5.0}
NOT_SERVED = (
    "# HELP pyworker_ready 1: this worker can claim jobs, as /ready says.\n"
    "# TYPE pyworker_ready gauge\npyworker_ready 0.0\n"
)


def routes(databases: Sequence[Servant], metrics: bool) -> dict[str, Route]:
    found: dict[str, Route] = {
        "/live": lambda: _verdict(databases, "/live"),
        "/ready": lambda: _verdict(databases, "/ready"),
    }
    if metrics:
        found["/metrics"] = lambda: (200, TEXT, merged(_metrics(databases)))
    return found


def _ask(databases: Sequence[Servant], path: str) -> list[tuple[Servant, Answer | None]]:
    """The answers of all, who are asked at the same time. None: no answer."""
    asked = [(one, one.ask(path)) for one in databases]
    until = time.monotonic() + TIMEOUTS[path]
    answers: list[tuple[Servant, Answer | None]] = []
    for one, answer in asked:
        try:
            answers.append((one, answer.get(timeout=max(until - time.monotonic(), 0))))
        except Empty:
            answers.append((one, None))
    return answers


def _verdict(databases: Sequence[Servant], path: str) -> tuple[int, str, str]:
    """Live: no process is stuck; one that has ended is started again. Ready: each database is served."""
    word, found = path[1:], list[str]()
    for one, answer in _ask(databases, path):
        if answer:
            if answer.status != 200:
                found += [f"{one.name}: {line}" for line in answer.text.splitlines()]
        elif word == "ready" or one.silent():
            found.append(f"{one.name}: its worker does not answer (see the log)")
    return 503 if found else 200, PLAIN, ("\n".join(found) or word) + "\n"


def _metrics(databases: Sequence[Servant]) -> dict[str, str]:
    return {
        one.name: answer.text if answer and answer.status == 200 else NOT_SERVED
        for one, answer in _ask(databases, "/metrics")
    }


def merged(texts: Mapping[str, str]) -> str:
    """Metrics of several databases, each as prometheus_client writes them, as one text.

    Each sample gets the label `database`. A label of that name which is there already becomes
    `exported_database`, as Prometheus itself does it.
    """
    heads: dict[str, dict[str, str]] = {}  # of each metric the lines with HELP and TYPE
    samples: dict[str, list[str]] = {}
    for database, text in texts.items():
        label, name = f'database="{escaped(database, True)}"', ""
        for line in text.split("\n"):
            if line.startswith("#"):
                _, kind, name, _ = line.split(" ", 3)
                heads.setdefault(name, {})[kind] = line
            elif line:
                series, end = re.split("(?=[{ ])", line, maxsplit=1)
                labels = "," + _OWN.sub("exported_database=", end)[1:] if end[0] == "{" else "}" + end
                samples.setdefault(name, []).append(f"{series}{{{label}{labels}")
    lines = [line for name, head in heads.items() for line in (*head.values(), *samples.get(name, []))]
    return "\n".join(lines) + "\n"
