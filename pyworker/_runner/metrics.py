"""Metrics in Prometheus' text format: the database's, and what a worker measures of its handlers.

Children write into files that the parent reads at each scrape (prometheus_client's multiprocess
mode), so the counts of a killed process are kept. When one has ended, its files are merged into one.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._distribution import pip_install
from .._middleware import middleware
from .._steps import Suspended
from ..errors import PyworkerError
from ..job import AsyncJob, Job, Outcome

if TYPE_CHECKING:
    from .parent import Parent
    from .probes import Route

log = logging.getLogger("pyworker.parent")

Value = tuple[float, float]
DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"
TEXT = "text/plain; version=0.0.4; charset=utf-8"
# What becomes of the values of a process that has ended: they are added to those of others, or one of two
# (value, timestamp) is kept. Gauges of other modes end with their process.
ADDED = ("counter", "histogram", "summary", "gauge_sum")
KEPT: Mapping[str, Callable[[Value, Value], Value]] = {
    "gauge_max": max,
    "gauge_min": min,
    "gauge_mostrecent": lambda one, other: max(one, other, key=lambda value: value[1]),
}
BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)


def text_of(rows: Iterable[Mapping[str, Any]]) -> str:
    """Format rows of the SQL function metrics() as Prometheus text."""
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_name.setdefault(row["name"], []).append(row)
    lines: list[str] = []
    for name, group in by_name.items():
        lines += [f"# HELP {name} {escaped(group[0]['help'])}", f"# TYPE {name} {group[0]['kind']}"]
        for row in group:
            labels = ",".join(
                f'{label}="{escaped(value, True)}"' for label, value in sorted(row["labels"].items())
            )
            lines.append(f"{name}{'{' + labels + '}' if labels else ''} {row['value']:.17g}")
    return "\n".join(lines) + "\n"


def escaped(text: str, quoted: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quoted else text


# -- in the child processes -------------------------------------------------------------------


class Measures:
    """Measures handlers by task and outcome, and claims.

    Created before the tasks are loaded, where a directory for the metrics exists."""

    def __init__(self) -> None:
        from prometheus_client import Counter, Histogram

        handlers = Histogram(
            "pyworker_handler_seconds",
            "How long handlers took, by task and outcome.",
            ["task", "outcome"],
            buckets=BUCKETS,
        )
        self._claims = Counter("pyworker_claims", "How often this worker has asked for jobs.", ["result"])
        self._claimed = Counter("pyworker_claimed_jobs", "Jobs that this worker was given.")

        @middleware  # registered first, so outermost
        def measured(job: Job | AsyncJob) -> Generator[None, Any, None]:
            began, outcome = time.monotonic(), "error"
            try:
                yield
                outcome = "success"
            except (Outcome, Suspended) as told:
                outcome = type(told).__name__.lower()
                raise
            finally:
                handlers.labels(job.task_identifier, outcome).observe(time.monotonic() - began)

        self.middleware = measured

    def claimed(self, jobs: int) -> None:
        self._claims.labels("jobs" if jobs else "nothing").inc()
        self._claimed.inc(jobs)


# -- in the parent ------------------------------------------------------------------------------


@contextmanager
def collected(parent: Parent) -> Iterator[dict[str, Route]]:
    """Give the HTTP route of a worker's own metrics.

    Creates the directory that its children write to.
    """
    wanted = parent.config.metrics
    if wanted and importlib.util.find_spec("prometheus_client") is None:
        raise PyworkerError(f"--metrics-port needs prometheus-client: {pip_install('metrics')}")
    with tempfile.TemporaryDirectory(prefix="pyworker-metrics-") if wanted else nullcontext() as directory:
        if directory is None:
            yield {}
            return
        os.environ[DIRECTORY], using = directory, threading.Lock()

        def scraped() -> tuple[int, str, str]:
            with using:
                merge_ended(directory)
                return 200, TEXT, _scraped(parent, directory)

        def child_ended() -> None:
            with using, suppress(OSError):  # the next scrape tries again
                merge_ended(directory)

        parent.family.on_end = child_ended
        try:
            yield {"/metrics": scraped}
        finally:
            del os.environ[DIRECTORY]


def merge_ended(directory: str) -> None:
    """Move the values of processes that have ended into one file of each kind, named as of process 0."""
    from prometheus_client import mmap_dict

    values: Any = mmap_dict.MmapedDict
    for file in Path(directory).glob("*_*.db"):
        kind, _, pid = file.stem.rpartition("_")
        if pid == "0" or not pid.isdecimal() or _is_alive(int(pid)):
            continue
        if kind in ADDED or kind in KEPT:
            into = values(str(file.with_name(f"{kind}_0.db")))
            try:
                before = {key: (value, at) for key, value, at in into.read_all_values()}
                for key, value, at, _ in values.read_all_values_from_file(str(file)):
                    old = before.get(key)
                    if kind in ADDED:
                        value += old[0] if old else 0.0
                    elif old:
                        value, at = KEPT[kind](old, (value, at))
                    into.write_value(key, value, at)
            except (RuntimeError, struct.error, UnicodeDecodeError):  # it was ended while it wrote
                log.warning("metrics of process %s cannot be read", pid)
            finally:
                into.close()
        file.unlink()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _scraped(parent: Parent, directory: str) -> str:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.multiprocess import MultiProcessCollector

    registry = CollectorRegistry()
    MultiProcessCollector(registry, directory)  # type: ignore[no-untyped-call]
    from .probes import in_flight, problems

    class OfParent:
        def collect(self) -> Iterator[GaugeMetricFamily]:
            handlers = parent.config.processes * parent.config.concurrency
            ready = not problems(parent, True)
            for name, text, value in (
                ("pyworker_in_flight", "Handlers running in this worker.", in_flight(parent)),
                ("pyworker_handlers", "Handlers that this worker runs at once.", handlers),
                ("pyworker_ready", "1: this worker can claim jobs, as /ready says.", ready),
            ):
                yield GaugeMetricFamily(name, text, value=float(value))

    registry.register(OfParent())  # pyright: ignore[reportArgumentType]
    return generate_latest(registry).decode()
