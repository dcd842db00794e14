"""A typed payload reaches its handler as the value that was added, with every library for types."""

from __future__ import annotations

import dataclasses
import enum
import sys
import types
import uuid
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NewType, TypedDict

import msgspec
import pydantic
import pytest

import pyworker
from pyworker import TaskError, _payload, tasks

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
ID = uuid.UUID("0b6f0d4e-5a43-4b0c-9a51-5a8e3d4a1f00")


class Color(enum.Enum):
    RED = "red"


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    id: uuid.UUID
    at: datetime
    price: Decimal = Decimal("1.50")
    raw: bytes = b"x"


class Aliased(pydantic.BaseModel):
    user_id: int = pydantic.Field(alias="userId")


@pydantic.dataclasses.dataclass
class Checked:
    at: datetime
    counts: dict[uuid.UUID, int]


@dataclasses.dataclass
class ByNumber:
    names: dict[int, str]


@dataclasses.dataclass
class Appointment:
    at: datetime
    lasts: timedelta = timedelta(hours=1)
    raw: bytes = b"x\xff"
    color: Color = Color.RED
    days: set[date] = dataclasses.field(default_factory=lambda: {date(2026, 1, 2)})


@dataclasses.dataclass
class Around:
    """A plain dataclass around a pydantic model."""

    inner: Strict
    more: dict[int, Strict]


class Struct(msgspec.Struct, rename="camel"):
    first_at: datetime
    pair: tuple[int, uuid.UUID]


class Typed(TypedDict):
    at: datetime


class Opt(pydantic.BaseModel):
    n: int = 3


UserId = NewType("UserId", uuid.UUID)
STRICT = Strict(id=ID, at=NOW)
VALUES: list[tuple[Any, Any]] = [
    (Strict, STRICT),
    (Aliased, Aliased(userId=3)),
    (Checked, Checked(NOW, {ID: 1})),
    (ByNumber, ByNumber({1: "a", 2: "b"})),
    (Appointment, Appointment(NOW)),
    (Around, Around(STRICT, {7: STRICT})),
    (Struct, Struct(NOW, (1, ID))),
    (Typed, {"at": NOW}),
    (list[Appointment], [Appointment(NOW), Appointment(NOW, timedelta(0))]),
    (dict[int, str], {1: "a"}),
    (Appointment | None, None),
    (Appointment | None, Appointment(NOW)),
    (uuid.UUID, ID),
    (UserId, ID),
    (datetime, NOW),
    (tuple[int, str], (1, "a")),
    (set[int], {1, 2}),
    (Decimal, Decimal("0.10")),
    (Color, Color.RED),
    (dict[str, Any], {"a": [1, None]}),
    (list[int], [1, 2]),
    (Any, {"a": "ü\0"}),
]


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_registry", {})
    _payload._codec_of_class.cache_clear()


def handler_of(hint: Any) -> tasks.Task[..., Any]:
    def handler(payload: Any) -> Any:
        return payload

    handler.__annotations__["payload"] = hint
    return pyworker.task(handler)


def without(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    there = _payload._importable
    monkeypatch.setattr(_payload, "_importable", lambda wanted: wanted != name and there(wanted))


def received(handler: tasks.Task[..., Any], job: pyworker.JobRow) -> Any:
    """As a worker would pass it."""
    return handler.invoke(types.SimpleNamespace(payload=job.payload))


@pytest.mark.parametrize("library", ["msgspec", "pydantic"])
@pytest.mark.parametrize(
    ("hint", "value"), VALUES, ids=lambda value: getattr(value, "__name__", None) or str(value)[:30]
)
def test_a_payload_survives_the_way_through_the_database(
    db: Any, monkeypatch: pytest.MonkeyPatch, hint: Any, value: Any, library: str
) -> None:
    if library == "pydantic":
        if hint is Struct:
            pytest.skip("it is msgspec's own")
        without("msgspec", monkeypatch)
        if "Appointment" in str(hint) and value is not None:
            pytest.skip("bytes that are not UTF-8: pydantic's JSON has none")
        if hint is Typed and sys.version_info < (3, 12):
            pytest.skip("pydantic wants another TypedDict there")
    handler = handler_of(hint)
    assert received(handler, handler.add(db, value)) == value
    if value is None or "x00" in str(value):
        return  # not in a bulk call, see below
    (job,) = pyworker.add_jobs(db, [{"identifier": handler, "payload": value}])
    assert received(handler, job) == value


@pytest.mark.parametrize("value", [STRICT, Aliased(userId=3), Checked(NOW, {ID: 1}), ByNumber({1: "a"}),
    Appointment(NOW),
                                   Around(STRICT, {7: STRICT}), Struct(NOW, (1, ID))],
                                   ids=lambda value: type(value).__name__)  # fmt: skip
def test_a_record_that_is_added_by_a_tasks_name_survives_too(db: Any, value: Any) -> None:
    job = pyworker.add_job(db, "handler", value)
    assert received(handler_of(type(value)), job) == value
    nested = pyworker.add_job(db, "handler", {"a": [value]})
    assert nested.payload == {"a": [job.payload]}


@pytest.mark.parametrize(
    "payload", ["\0", "a\\\0", {"a\0": 1}, "\udc00", "\ud800x", ["\\\\\ud800"]], ids=ascii
)
def test_what_jsonb_cannot_hold_is_refused_in_a_bulk_call_and_nowhere_else(db: Any, payload: Any) -> None:
    with db.transaction():
        assert pyworker.add_job(db, "t", payload).payload == payload
        with pytest.raises(
            pyworker.InvalidArgument, match=r"^add_jobs: specs\[2\]: payload must not contain NUL or half"
        ):
            pyworker.add_jobs(db, [{"identifier": "t"}, {"identifier": "t", "payload": payload}])
    assert db.execute("select count(*) from pyworker.jobs").fetchone() == (1,)


@pytest.mark.parametrize("payload", ["\\u0000", "\\\\ud800", "😀", "a\\😀", "\x01", "ü"], ids=ascii)
def test_what_only_looks_like_it_is_taken(db: Any, payload: Any) -> None:
    (job,) = pyworker.add_jobs(db, [{"identifier": "t", "payload": payload}])
    assert job.payload == payload


def test_null_is_no_payload_in_a_bulk_call(db: Any) -> None:
    with pytest.raises(
        pyworker.InvalidArgument, match=r"^add_jobs: specs\[1\]: payload cannot be null in a bulk call"
    ):
        pyworker.add_jobs(db, [{"identifier": handler_of(Appointment | None), "payload": None}])


def test_a_plain_dict_in_place_of_a_record_is_sent_as_it_is(db: Any) -> None:
    given = {"id": str(ID), "at": NOW.isoformat(), "unknown": 1}
    assert handler_of(Strict).add(db, given).payload == given
    assert handler_of(Appointment).add(db, {"at": NOW}).payload == {"at": "2026-01-02T03:04:05.678901Z"}


def test_without_a_payload_a_model_has_its_defaults_and_an_optional_one_is_none(db: Any) -> None:
    opt, optional, plain = handler_of(Opt), handler_of(Opt | None), handler_of(Any)
    assert received(opt, opt.add(db)) == Opt()
    assert received(optional, optional.add(db)) is None
    assert received(plain, plain.add(db)) == {}


def test_what_cannot_be_written_costs_no_transaction(db: Any) -> None:
    class Measure(pydantic.BaseModel):
        value: float

    with db.transaction():
        with pytest.raises(
            pyworker.InvalidArgument, match=r"^<task handler .*>: payload.value: a float that is not finite"
        ):
            handler_of(Measure).add(db, Measure(value=float("nan")))
        with pytest.raises(pyworker.InvalidArgument, match=r"^<task handler .*>: payload.id: .* not read it"):
            handler_of(Strict).add(db, {"id": object()})
        pyworker.add_job(db, "t")
    assert db.execute("select count(*) from pyworker.jobs").fetchone() == (1,)


def test_a_producer_needs_neither_library_where_a_plain_value_is_added(
    db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("msgspec", "pydantic"):
        without(name, monkeypatch)
    handler = handler_of(ByNumber)
    assert handler.add(db, {"names": {}}).payload == {"names": {}}
    assert handler.add(db, ByNumber({})).payload == {"names": {}}
    with pytest.raises(
        TaskError, match=r"to convert payloads to .*ByNumber.* install 'pyworker-pg\[types\]'"
    ):
        _ = handler.invoke


WORKER = """
import dataclasses, uuid
from datetime import datetime
import pydantic
from pyworker import task

class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    id: uuid.UUID
    at: datetime

@dataclasses.dataclass
class ByNumber:
    names: dict[int, str]

@dataclasses.dataclass
class At:
    at: datetime

@task(result=True, max_attempts=1)
def strict(payload: Strict): return repr(payload)

@task(result=True, max_attempts=1)
def by_number(payload: ByNumber): return repr(payload)

@task(result=True, max_attempts=1)
def at(payload: At): return repr(payload)
"""


def test_a_real_worker_gives_its_handlers_what_was_added(
    queue: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "typed_tasks.py").write_text(WORKER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "typed_tasks", raising=False)
    import typed_tasks  # type: ignore[import-not-found]

    values = [typed_tasks.Strict(id=ID, at=NOW), typed_tasks.ByNumber({1: "a"}), typed_tasks.At(NOW)]
    added = zip((typed_tasks.strict, typed_tasks.by_number, typed_tasks.at), values, strict=True)
    jobs = [task.add(queue.conn, value).id for task, value in added]
    queue.run_once(modules="typed_tasks")
    assert [queue.job(job_id).state for job_id in jobs] == ["completed"] * 3
    assert queue.job(jobs[1]).result == repr(values[1])
    assert [
        str(ID) in queue.job(jobs[0]).result,
        "2026, 1, 2, 3, 4, 5, 678901" in queue.job(jobs[2]).result,
    ] == [
        True,
        True,
    ]
