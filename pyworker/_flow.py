"""A flow: jobs that wait for each other, added in one call at the end of a block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import count
from types import TracebackType
from typing import Any, Literal, Unpack, cast, overload

from . import _client
from ._arguments import FlowOptions, JobSpec, On, TaskLike
from ._db.either import AsyncConnection, SyncConnection
from ._db.rows import JobRow
from .errors import InvalidArgument, WrongState


class FlowJob:
    """A job of a flow. `id` and `job` are there after the flow's block."""

    __slots__ = ("_flow", "_job", "ref")

    def __init__(self, flow: _Flow, ref: str) -> None:
        self._flow = flow
        self._job: JobRow | None = None
        self.ref = ref

    @property
    def job(self) -> JobRow:
        if self._job is None:
            raise WrongState(f"flow: the job {self.ref!r} is added at the end of the flow's block")
        return self._job

    @property
    def id(self) -> int:
        return self.job.id

    def __repr__(self) -> str:
        return f"<FlowJob {self.ref!r}{f' {self._job.id}' if self._job else ''}>"


After = FlowJob | JobRow | int


class _Flow:
    def __init__(self, conn: Any, schema: str | None) -> None:
        self._conn = conn
        self._schema = schema
        self._jobs: list[FlowJob] = []
        self._specs: list[JobSpec] = []
        self._refs: set[str] = set()
        self._ended = False

    def add(
        self,
        identifier: str | TaskLike,
        payload: Any = None,
        *,
        after: After | Iterable[After] = (),
        on: On = "success",
        on_unmet: Literal["hold", "cancel"] = "hold",
        ref: str | None = None,
        **options: Unpack[FlowOptions],
    ) -> FlowJob:
        """Add a job to the flow.

        after: what it waits for: jobs of this flow, or jobs or ids of jobs that were added before. on: how
        they must end: "success", "end" (in whichever way) or "failure". on_unmet: if one ends in another way,
        "hold" keeps the job until that one is retried, "cancel" cancels it. ref: its name in job.inputs of
        the jobs after it; by default the task's name, with a number from the second on. options: those of
        add_job.
        """
        if self._ended:
            raise WrongState("flow.add: the flow's block has ended")
        depends_on = [self._parent(one, on) for one in _several(after)]
        made = FlowJob(self, self._named(identifier, ref))
        spec: dict[str, Any] = {"identifier": identifier, "payload": payload, "ref": made.ref, **options}
        if depends_on:
            spec["depends_on"] = {"jobs": depends_on, "on_unmet": on_unmet}
        self._jobs.append(made)
        self._specs.append(cast("JobSpec", spec))
        return made

    def _named(self, identifier: str | TaskLike, ref: str | None) -> str:
        if ref is not None and ref in self._refs:
            raise InvalidArgument(f"flow.add: ref must be one that no other job of the flow has, got {ref!r}")
        name = identifier if isinstance(identifier, str) else identifier.name
        numbered = (f"{name} {n}" if n > 1 else name for n in count(1))
        ref = ref if ref is not None else next(one for one in numbered if one not in self._refs)
        self._refs.add(ref)
        return ref

    def _parent(self, parent: After, on: On) -> Mapping[str, Any]:
        if isinstance(parent, FlowJob):
            if parent._flow is not self:  # pyright: ignore[reportPrivateUsage]
                return {"id": parent.id, "on": on}  # of an earlier flow, else refused
            return {"ref": parent.ref, "on": on}
        if isinstance(parent, JobRow):
            return {"id": parent.id, "on": on}
        number = isinstance(parent, int)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not number or isinstance(parent, bool):
            raise InvalidArgument(f"flow.add: after must be jobs or ids of jobs, got {parent!r}")
        return {"id": parent, "on": on}

    def _refuse(self, wanted: str, other: str, why: str) -> None:
        """Refuse a connection of the other kind before anything is added."""
        kind: type[object] = type(cast("object", self._conn))
        if hasattr(kind, other) and not hasattr(kind, wanted):
            raise TypeError(f"flow: this {kind.__name__} is {why}")

    def _take(self, jobs: list[JobRow]) -> None:
        for made, job in zip(self._jobs, jobs, strict=True):
            made._job = job  # pyright: ignore[reportPrivateUsage]


def _several(after: After | Iterable[After]) -> Iterable[After]:
    if isinstance(after, str | bytes | Mapping):
        raise InvalidArgument(f"flow.add: after must be jobs or ids of jobs, got {after!r}")
    return after if isinstance(after, Iterable) else [after]


class Flow(_Flow):
    """What `with flow(conn) as …` gives."""

    def __enter__(self) -> Flow:
        self._refuse("__enter__", "__aenter__", "asynchronous: write `async with flow(conn)`, not `with`")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        self._ended = True
        if kind is None and self._specs:
            self._take(_client.add_jobs(cast("SyncConnection", self._conn), self._specs, schema=self._schema))


class AsyncFlow(_Flow):
    """What `async with flow(conn) as …` gives."""

    async def __aenter__(self) -> AsyncFlow:
        self._refuse("__aenter__", "__enter__", "synchronous: write `with flow(conn)`, not `async with`")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        self._ended = True
        if kind is None and self._specs:
            conn = cast("AsyncConnection", self._conn)
            self._take(await _client.add_jobs(conn, self._specs, schema=self._schema))


class _EitherFlow(Flow, AsyncFlow):
    pass


@overload
def flow(conn: AsyncConnection, *, schema: str | None = None) -> AsyncFlow: ...
@overload
def flow(conn: SyncConnection, *, schema: str | None = None) -> Flow: ...
def flow(conn: Any, *, schema: str | None = None) -> Any:
    """Add jobs that wait for each other, in the caller's transaction:

        with pyworker.flow(conn) as flow:
            a = flow.add("fetch", {"page": 1})
            b = flow.add("parse", after=a)
            flow.add("report", after=[a, b], on="end")

    The jobs are added by one add_jobs call at the end of the block; none if the block raises. With an
    asynchronous connection: `async with`. Raises what add_jobs raises.
    """
    return _EitherFlow(conn, schema)
