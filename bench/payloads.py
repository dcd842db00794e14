"""What a payload of a type costs a producer and a worker, in microseconds, beside one without a type.

    python bench/payloads.py [--rounds 9]

Each figure is the median over the rounds of 2,000 payloads each, with three fields: writing one as JSON
values and reading it back, as an add does, and reading one, as a worker does. No database is asked.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
import types
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pydantic

from pyworker import Task, task

MANY = 2000
AT = datetime(2026, 1, 2, tzinfo=UTC)


class Model(pydantic.BaseModel):
    number: int
    name: str
    at: datetime


@dataclasses.dataclass
class Data:
    number: int
    name: str
    at: datetime


class Struct(msgspec.Struct):
    number: int
    name: str
    at: datetime


PAYLOADS: dict[str, tuple[Any, Any]] = {
    "no type": (Any, {"number": 1, "name": "a", "at": AT.isoformat()}),
    "a pydantic model": (Model, Model(number=1, name="a", at=AT)),
    "a dataclass": (Data, Data(1, "a", AT)),
    "a msgspec struct": (Struct, Struct(1, "a", AT)),
}


def task_of(name: str, hint: Any) -> Task[Any, Any]:
    def handler(payload: Any) -> None: ...

    handler.__annotations__["payload"] = hint
    return task(name)(handler)


def per_call(call: Callable[[Any], Any], argument: Any) -> float:
    began = time.perf_counter()
    for _ in range(MANY):
        call(argument)
    return (time.perf_counter() - began) / MANY * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    sys.stdout.write(f"{'us a payload, median':24}{'an add writes':>16}{'a worker reads':>16}\n")
    for name, (hint, payload) in PAYLOADS.items():
        made = task_of(name, hint)
        job = types.SimpleNamespace(payload=made.encoded(payload))
        adds = [per_call(made.encoded, payload) for _ in range(rounds)]
        reads = [per_call(made.invoke, job) for _ in range(rounds)]
        sys.stdout.write(f"{name:24}{statistics.median(adds):16.1f}{statistics.median(reads):16.1f}\n")


if __name__ == "__main__":
    main()
