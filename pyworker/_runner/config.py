"""What a run is told, in one place with its defaults, and the exit codes of `pyworker run`."""

from __future__ import annotations

from dataclasses import dataclass, field

# Documented in README.md; 57 is Graphile Worker's.
EXIT_DATABASE_OLDER = 56
EXIT_DATABASE_NEWER = 57
# Between child and parent
EXIT_CANNOT_START = 78
EXIT_REGISTER_AGAIN = 75
EXIT_BROKEN = 70


@dataclass
class RunConfig:
    dsn: str
    schema: str = "pyworker"
    tasks: list[str] = field(default_factory=list[str])  # modules
    concurrency: int = 10
    processes: int = 1
    queues: list[str] = field(default_factory=list[str])  # empty: all
    only_tasks: list[str] = field(default_factory=list[str])  # empty: every task that was loaded
    forbidden_flags: list[str] = field(default_factory=list[str])
    once: bool = False
    shutdown_timeout: float = 25.0  # of the 30 seconds that Kubernetes grants
    poll_interval: float = 2.0
    max_memory: int | None = None  # bytes that a child may hold; beyond, it is replaced
    name: str = ""  # of the worker, for people and probes; empty: the machine's
    stuck_after: float = 60.0  # seconds in which the loop of a living process turns
    metrics: bool = False  # processes measure their handlers
    uvloop: bool = True  # for async handlers, where it is installed
    log_format: str = "text"
    log_level: str = "INFO"
    tracebacks: bool = True  # in the log, of handlers that failed
