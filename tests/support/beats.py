"""beat as a call, and the register that says when a worker last swept."""

from __future__ import annotations

from typing import Any

from tests.support import DEADLINE

A_SECOND_AGO = (
    "select setval('pyworker.swept_at', ((extract(epoch from clock_timestamp()) - 1) * 1000)::bigint)"
)
BEAT = "select * from pyworker.beat(%s, %s, %s, %s, %s, %s)"


def beat(
    api: Any,
    worker: Any,
    jobs: Any = (),
    lock: bool = False,
    condition: Any = None,
    lost_answer: bool = False,
) -> list[Any]:
    ids, runs = ([job[at] for job in jobs] for at in (0, 1))
    return api.rows(BEAT, [worker, ids, runs, lock, condition, lost_answer])


def words(rows: list[Any]) -> list[str]:
    """What a beat says beside "alive"."""
    assert rows[0].kind == "alive"
    return (rows[0].why or "").split()


def wait(api: Any, until: str, *parameters: Any) -> None:
    for _ in range(int(DEADLINE * 100)):
        if api.value(until, parameters or None):
            return
        api.rows("select pg_sleep(0.01)")
    raise AssertionError(f"never came true: {until}")
