"""The options of `pyworker run` with their defaults, and its exit codes."""

from __future__ import annotations

from dataclasses import dataclass, field

# Documented in README.md; 57 is Graphile Worker's code.
EXIT_DATABASE_OLDER = 56
EXIT_DATABASE_NEWER = 57
# From child to parent
EXIT_CANNOT_START = 78
EXIT_REGISTER_AGAIN = 75
EXIT_BROKEN = 70

OTHERS = "*"  # stands for all queues that are not named


@dataclass
class RunConfig:
    dsn: str
    schema: str = "pyworker"
    tasks: list[str] = field(default_factory=list[str])  # modules
    concurrency: int = 10
    processes: int = 1
    queues: list[str] = field(default_factory=list[str])  # empty: all; OTHERS: all that are not named
    bounds: dict[str, int] = field(default_factory=dict[str, int])  # of a queue, jobs that each process holds
    only_tasks: list[str] = field(default_factory=list[str])  # empty: every task that was loaded
    forbidden_flags: list[str] = field(default_factory=list[str])
    once: bool = False
    shutdown_timeout: float = 25.0  # seconds; Kubernetes grants 30
    poll_interval: float = 5.0  # `work` may ask for less
    max_memory: int | None = None  # bytes; a child that holds more is replaced
    name: str = ""  # of the worker, for people and probes; empty: the host name
    stuck_after: float = 60.0  # seconds without a turn after which a process counts as stuck
    metrics: bool = False  # children measure their handlers
    uvloop: bool = True  # run async handlers on uvloop if it is installed
    log_format: str = "text"
    log_level: str = "INFO"
    tracebacks: bool = True  # log the tracebacks of failed handlers

    @property
    def queue_filter(self) -> list[str] | None:
        """The queues of which a worker takes jobs; None: all."""
        return None if OTHERS in self.queues else self.queues or None
