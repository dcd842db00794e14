"""What an add takes, a worker reads back equal; what cannot make the way is refused at the add, by the
name of its field."""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import sys
import typing
from typing import Annotated, Any, NamedTuple, NewType, TypeVar

import annotated_types
import msgspec
import pydantic
import pydantic_core
import pytest
import typing_extensions

import pyworker
from pyworker import InvalidArgument, TaskError, tasks
from tests.support import TASKS

sys.path.insert(0, str(TASKS))
cases = importlib.import_module("typed_cases")
sys.path.remove(str(TASKS))
T = TypeVar("T")


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_registry", {})


@pytest.fixture(params=["Task.add", "add_job", "add_jobs", "add_batch", "flow"])
def add(request: pytest.FixtureRequest, db: Any) -> Any:
    """The ways to add a job of a task."""

    def by_flow(task: Any, payload: Any) -> None:
        with pyworker.flow(db) as flow:
            flow.add(task, payload)

    return {
        "Task.add": lambda task, payload: task.add(db, payload),
        "add_job": lambda task, payload: pyworker.add_job(db, task, payload),
        "add_jobs": lambda task, payload: pyworker.add_jobs(db, [{"identifier": task, "payload": payload}]),
        "add_batch": lambda task, payload: pyworker.add_batch(
            db, [{"identifier": "other"}], {"identifier": task, "payload": payload}
        ),
        "flow": by_flow,
    }[request.param]


def test_a_worker_gives_each_handler_what_was_added(queue: Any) -> None:
    jobs = {
        name: cases.TASKS[name].add(queue.conn, value).id for name, (_, value) in cases.ROUND_TRIPS.items()
    }
    batches = [
        (cases.batch_of_orders, cases.ROUND_TRIPS["ordered"][1]),
        (cases.batch_of_models, cases.ROUND_TRIPS["around"][1]),
    ]
    for task, value in batches * 2:
        jobs[f"{task.name} {len(jobs)}"] = task.add(queue.conn, value).id
    adding = queue.add("adds another")
    queue.run_once(modules="typed_cases")
    ended = {name: queue.job(job_id) for name, job_id in jobs.items()}
    assert {name: (job.state, job.result, job.last_error) for name, job in ended.items()} == {
        name: ("completed", True, None) for name in ended
    }
    assert "payload: a SecretStr would be read with another value" in queue.job(adding).result
    (another,) = queue.rows("select state from pyworker.history where id > %s", adding)
    assert another == ("completed",)


@pytest.mark.parametrize("name", cases.REFUSED)
def test_what_a_worker_would_not_read_equal_is_refused_by_its_name(db: Any, name: str) -> None:
    hint, value, words = cases.REFUSED[name]
    task = cases.task_of(name, hint)
    with db.transaction():
        with pytest.raises(InvalidArgument, match=rf"^<task typed {name} .*>: {words}") as refused:
            task.add(db, value)
        assert cases.SECRET not in str(refused.value)
        pyworker.add_job(db, "t")  # the transaction can go on
    assert db.execute("select count(*) from pyworker.jobs").fetchone() == (1,)


def test_each_way_to_add_refuses_it(db: Any, add: Any) -> None:
    task = cases.task_of("x", cases.Secret)
    with pytest.raises(InvalidArgument, match=r"<task typed x .*>: payload\.inner\.a\[0\]: a SecretStr"):
        add(task, cases.REFUSED["secret_within"][1])
    assert db.execute("select count(*) from pyworker.jobs").fetchone() == (0,)


def test_a_bulk_call_names_the_place_of_the_job(db: Any) -> None:
    specs: Any = [{"identifier": "t"}, {"identifier": cases.secret, "payload": pydantic.SecretStr("x")}]
    with pytest.raises(InvalidArgument, match=r"^add_jobs: specs\[2\]: <task a secret .*>: payload: a Secr"):
        pyworker.add_jobs(db, specs)


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (
            lambda: cases.Secret(inner={"a": [pydantic.SecretStr(cases.SECRET)]}),
            r"payload\.inner\.a\[0\]: a S",
        ),
        (lambda: {"a": [1, cases.Excluded(a=1, hidden=2)]}, r"payload\.a\[1\]\.hidden: an int would be read"),
        (lambda: [cases.Loose(cases.Bare(1))], r"payload\[0\]\.a: a Bare would be read as a dict"),
    ],
)
def test_a_record_that_is_added_by_a_tasks_name_is_refused_too(db: Any, payload: Any, words: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"^add_job: {words}") as refused:
        pyworker.add_job(db, "t", payload())
    assert cases.SECRET not in str(refused.value)


def test_a_dict_in_place_of_a_record_is_its_json(db: Any) -> None:
    task = cases.task_of("x", cases.Around)
    given = {"pet": {"kind": "dog"}, "pets": {str(cases.ID): [{"kind": "cat"}]}, "ids": [], "unknown": 1}
    assert task.add(db, given).payload == given


class Ids(pydantic.RootModel[list[int]]):
    pass


class Name(pydantic.RootModel[str]):
    pass


class Days(pydantic.RootModel[dict[str, datetime.date]]):
    pass


class Place(NamedTuple):
    x: int
    name: str = "here"


class Row(msgspec.Struct, array_like=True):
    x: int
    name: str = "here"


@pytest.mark.parametrize(
    ("hint", "given"),
    [
        (Ids, [1, 2]),
        (Name, "ada"),
        (Days, {"first": "2026-01-01"}),
        (dict[str, Ids], {"a": [1]}),
        (Place, [1, "there"]),
        (list[Place], [[1]]),
        (Row, [1, "there"]),
        (list[Row], [[1], [2, "there"]]),
    ],
    ids=str,
)
def test_json_in_place_of_a_record_that_is_no_object_is_its_json(db: Any, hint: Any, given: Any) -> None:
    assert cases.task_of("x", hint).add(db, given).payload == given


def test_json_in_place_of_such_a_record_must_fit(db: Any) -> None:
    for hint, given, where in ((list[Ids], [[1], ["a"]], r"\[1\]\[0\]"), (Place, ["a"], r"\[0\]")):
        with pytest.raises(InvalidArgument, match=rf"^<task typed x .*>: payload{where}: a worker could not"):
            cases.task_of("x", hint).add(db, given)


def test_without_a_payload_a_model_must_have_defaults(db: Any) -> None:
    assert cases.task_of("x", cases.Excluded | None).add(db).payload is None
    assert cases.task_of("y", cases.Cat).add(db).payload == {}
    with pytest.raises(InvalidArgument, match=r"^<task typed z .*>: payload\.a: none is given, and"):
        cases.task_of("z", cases.Computed).add(db)


def test_constraints_of_a_parameter_hold_for_what_sql_adds(queue: Any) -> None:
    wrong = {"typed positive": 0, "typed some": [], "typed typed_of_pydantic": {"n": 0}, "positive batch": 0}
    wrong["typed typed"] = {"at": "2026-01-02T00:00:00", "n": 0}
    jobs = [queue.add(name, payload, max_attempts=1) for name, payload in wrong.items()]
    queue.run_once(modules="typed_cases")
    for job in map(queue.job, jobs):
        assert (job.state, "the payload does not fit" in job.last_error) == ("discarded", True)


def test_one_library_converts_all_of_an_annotation() -> None:
    class Both(pydantic.BaseModel):
        n: Annotated[int, msgspec.Meta(gt=0)]

    for hint in (Both, cases.Bare | cases.Cat, Annotated[cases.Bare, pydantic.Field(title="x")]):
        with pytest.raises(
            TaskError, match=r"^<task typed x .*> has parts of pydantic and of msgspec|cannot be"
        ):
            _ = cases.task_of("x", hint).invoke


Positive = NewType("Positive", Annotated[int, pydantic.Field(gt=0)])
Alias = typing_extensions.TypeAliasType("Alias", Annotated[int, pydantic.Field(gt=0)])


@dataclasses.dataclass
class Validates:
    n: int

    @pydantic.field_validator("n")
    @classmethod
    def _positive(cls, n: int) -> int:
        assert n > 0
        return n


@dataclasses.dataclass
class Inherits(Validates):
    m: int = 1


@dataclasses.dataclass(slots=True)
class Slotted:
    n: int = pydantic.Field(default=1, gt=0)


class Tuple(NamedTuple):
    n: int = pydantic.Field(default=1, gt=0)


@dataclasses.dataclass
class Configured:
    __pydantic_config__ = pydantic.ConfigDict(str_max_length=1)
    name: str = "a"


@dataclasses.dataclass
class Tree:
    n: Annotated[int, annotated_types.Gt(0)]
    more: list[Tree] = dataclasses.field(default_factory=list)


@pydantic.dataclasses.dataclass
class Bounds:
    n: int = pydantic.Field(gt=0)


@dataclasses.dataclass
class Generic(typing.Generic[T]):
    item: T
    n: Annotated[int, pydantic.Field(gt=0)]


class Even:
    """Metadata of the user's own, for pydantic."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return pydantic_core.core_schema.no_info_after_validator_function(self._even, handler(source))

    def _even(self, n: int) -> int:
        assert n % 2 == 0
        return n


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Positive, 0),
        (Alias, 0),
        (list[Positive], [0]),
        (dict[str, Alias | None], {"a": 0}),
        (Validates, Validates(0)),
        (Inherits, Inherits(0)),
        (Slotted, Slotted(0)),
        (Tuple, Tuple(0)),
        (Configured, Configured("ab")),
        (Tree, Tree(1, [Tree(0)])),
        (Bounds, {"n": 0}),
        (Generic[int], Generic(1, 0)),
        (Annotated[int, Even()], 1),
        (Annotated[Validates, "any metadata"], {"n": 0}),
    ],
)
def test_constraints_hold_wherever_they_stand_in_an_annotation(db: Any, hint: Any, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^<task typed x .*>: payload.*: a worker could not read it"):
        cases.task_of("x", hint).add(db, value)


@dataclasses.dataclass
class Tag:
    name: str


class Raw(msgspec.Struct):
    raw: bytes
    model: typing.ClassVar[type[pydantic.BaseModel]] = cases.Cat


class Decoded(pydantic.BaseModel):
    n: int
    reader: typing.ClassVar[Any] = msgspec.json.Decoder(int)


def test_what_is_no_field_has_no_say_in_the_library(db: Any) -> None:
    assert cases.task_of("x", Raw).add(db, Raw(b"\xff")).payload == {"raw": "/w=="}
    assert cases.task_of("y", Decoded).add(db, Decoded(n=1)).payload == {"n": 1}


def test_a_class_that_one_library_has_converted_may_be_converted_by_the_other(db: Any) -> None:
    assert cases.task_of("x", Tag).add(db, Tag("a")).payload == {"name": "a"}
    both = cases.task_of("y", tuple[Tag, cases.Cat]).add(db, (Tag("a"), cases.Cat()))
    assert both.payload == [{"name": "a"}, {"kind": "cat", "lives": 9}]


def test_a_model_may_name_types_that_its_library_alone_can_resolve(db: Any) -> None:
    class Inner(pydantic.BaseModel):
        n: int

    class Outer(pydantic.BaseModel):
        inner: Inner

    assert cases.task_of("x", Outer).add(db, Outer(inner=Inner(n=1))).payload == {"inner": {"n": 1}}
