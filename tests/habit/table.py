"""The table of habits: what people ordinarily write in handlers. Each function is one line of it.

    @habit(returns={"one": 1})
    def dict_row_on_the_connection(payload, job): …

makes a task of that name, adds one job of it, and says how the job ends. A real worker runs it.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from pyworker import Task, task

ANYTHING = object()


@dataclass(frozen=True)
class Habit:
    task: Task[..., Any]
    payload: Any
    ends: str  # the state of its job
    returns: Any  # the job's result
    error: str  # is part of last_error
    is_told: bool  # its handler writes down what it returns


HABITS: dict[str, Habit] = {}


def habit(
    *, payload: Any = None, returns: Any = ANYTHING, fails: str = "", ends: str = "", **options: Any
) -> Callable[[Callable[..., Any]], Task[..., Any]]:
    """fails: a part of the error of a job that ends discarded. ends: the state, if it is neither that nor
    completed. Other arguments are the task's options."""

    def enter(function: Callable[..., Any]) -> Task[..., Any]:
        made = task(**({"max_attempts": 1, "result": True} | options))(function)
        assert made.name not in HABITS, f"two habits are called {made.name}"
        state = ends or ("discarded" if fails else "completed")
        HABITS[made.name] = Habit(made, payload, state, returns, fails, hasattr(function, "is_told"))
        return made

    return enter


def told(function: Callable[..., Any]) -> Callable[..., Any]:
    """Write down what the handler returns: a job that its own transaction has completed has no result."""

    def tell(job: Any, value: Any) -> None:
        with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as conn:
            conn.execute(
                "insert into public.seen (job_id, run, told) values (%s, %s, %s)",
                [job.id, job.run, Jsonb(value)],
            )

    @functools.wraps(function)
    def call(payload: Any, job: Any) -> None:
        tell(job, function(payload, job))

    @functools.wraps(function)
    async def call_async(payload: Any, job: Any) -> None:
        tell(job, await function(payload, job))

    made = call_async if inspect.iscoroutinefunction(function) else call
    made.is_told = True  # type: ignore[attr-defined]
    return made
