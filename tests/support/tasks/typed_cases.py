"""Types of payloads, each with a value that a handler must get as it was added."""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import ipaddress
import pathlib
import uuid
from collections.abc import Callable
from typing import Annotated, Any, NewType

import msgspec
import pydantic
from pydantic import Field, SecretBytes, SecretStr
from typed_types import (
    BERLIN,
    ID,
    NAIVE,
    Aliased,
    Around,
    Bare,
    Bigger,
    Box,
    ByName,
    Cat,
    Checked,
    Color,
    Computed,
    Dog,
    Down,
    Excluded,
    Express,
    Ids,
    Init,
    Kept,
    Lenient,
    Level,
    Line,
    Loose,
    Measure,
    Mixed,
    More,
    Needs,
    OfPydantic,
    Open,
    Order,
    Page,
    Point,
    Point3,
    Private,
    ReadAs,
    Renamed,
    Secret,
    Serialized,
    Shown,
    Size,
    Strict,
    Typed,
    Unequal,
    Up,
    Validated,
    WithJson,
    WrittenAs,
)  # fmt: skip

from pyworker import AsyncJob, InvalidArgument, Job, task

UserId = NewType("UserId", uuid.UUID)
CAT, DOG, STRICT = Cat(lives=7), Dog(name="é\0"), Strict(id=ID, at=NAIVE.replace(tzinfo=dt.UTC))
WINTER = dt.timezone(dt.timedelta(hours=1))
LINE = Line("x", decimal.Decimal("0.10"), NAIVE.replace(tzinfo=WINTER))

ROUND_TRIPS: dict[str, tuple[Any, Any]] = {
    "strict": (Strict, STRICT),
    "aliased": (Aliased, Aliased(userId=3, b=2, n=4)),
    "by_name": (ByName, ByName(user_id=3)),
    "computed": (Computed, Computed(a=1)),
    "open": (Open, Open(a=1, b={"c": [None, 1.5]})),
    "json": (WithJson, WithJson(numbers="[1,2]", any='{"a": [1]}')),
    "shown": (Shown, Shown(token="sesame")),  # type: ignore[arg-type]
    "private": (Private, Private(a=3)),
    "root": (Ids, Ids([ID])),
    "generic": (Page[Cat], Page[Cat](items=[CAT], next=Page[Cat](items=[]))),
    "generic_of_no_type": (Page[int], Page(items=[1])),
    "union": (Cat | Dog, DOG),
    "discriminated": (Annotated[Cat | Dog, Field(discriminator="kind")], CAT),
    "around": (Around, Around(pet=DOG, pets={ID: [CAT, DOG]}, ids=Ids([ID]))),
    "checked": (Checked, Checked(dt.datetime(2026, 1, 2, tzinfo=dt.UTC), {ID: 2**60})),
    "mixed": (Mixed, Mixed(STRICT, {7: STRICT})),
    "ordered": (Order, Order([LINE, LINE], parent=Order([]))),
    "unequal": (Unequal, Unequal(NAIVE)),
    "point": (Point, Point(1, dt.date(2026, 1, 2))),
    "bare": (Bare, Bare(1)),
    "renamed": (Renamed, Renamed("a", "b")),
    "renamed_defaults": (list[Renamed], [Renamed()]),
    "tagged": (Up | Down, Down(3)),
    "box": (Box[Bare], Box(Bare(2))),
    "box_of_time": (Box[dt.datetime], Box(NAIVE, unset=3)),
    "typed": (Typed, {"at": NAIVE, "n": 1}),
    "typed_of_pydantic": (OfPydantic, {"n": 1}),
    "optional": (Line | None, None),
    "optional_of_pydantic": (Strict | None, None),
    "given_optional": (Line | None, LINE),
    "uuid": (UserId, ID),
    "naive": (dt.datetime, NAIVE),
    "aware": (dt.datetime, NAIVE.replace(tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=45)))),
    "first_of_two": (dt.datetime, NAIVE.replace(tzinfo=BERLIN)),  # 2:30 comes twice that day
    "second_of_two": (dt.datetime, NAIVE.replace(tzinfo=BERLIN, fold=1)),
    "time": (dt.time, dt.time(2, 30, 1, 5)),
    "lasts": (dt.timedelta, dt.timedelta(days=1, microseconds=3)),
    "decimal": (decimal.Decimal, decimal.Decimal("0.10")),
    "bytes": (bytes, b"\x00\xff"),
    "big": (dict[int, int], {10**30: 2**63 + 1}),
    "dates": (dict[dt.date, float], {dt.date(2026, 1, 2): 0.1}),
    "color": (dict[Color, Color], {Color.RED: Color.RED}),
    "size": (list[Size], [Size.BIG]),
    "level": (Level, Level.HIGH),
    "frozen": (frozenset[int], frozenset({1, 2})),
    "tuples": (tuple[tuple[int, str], ...], ((1, "a"), (2, "b"))),
    "deque": (collections.deque[int], collections.deque([1])),
    "path": (pathlib.Path, pathlib.Path("/x")),
    "ip": (ipaddress.IPv4Address, ipaddress.IPv4Address("1.2.3.4")),
    "dataclasses": (Line | Point, LINE),
    "positive": (Annotated[int, Field(gt=0)], 1),
    "some": (Annotated[list[int], msgspec.Meta(min_length=1)], [1]),
    "plain": (dict[str, Any], {"a": [1, None, 2**70, "\0"]}),
}


def changed(value: Any, **fields: Any) -> Any:
    for name, field in fields.items():
        setattr(value, name, field)
    return value


SECRET = "sesame-opens"
CIRCLE = Loose([])
CIRCLE.a.append(CIRCLE)
REFUSED: dict[str, tuple[Any, Any, str]] = {
    "secret": (SecretStr, SecretStr(SECRET), r"payload: a SecretStr would be read with another value"),
    "secret_bytes": (SecretBytes, SecretBytes(SECRET.encode()), r"payload: a SecretBytes would be"),
    "secret_within": (Secret, Secret(inner={"a": [SecretStr(SECRET)]}), r"payload\.inner\.a\[0\]: a Sec"),
    "secrets_in_list": (list[SecretStr], [SecretStr(SECRET)], r"payload\[0\]: a SecretStr would be"),
    "excluded": (Excluded, Excluded(a=1, hidden=2), r"payload\.hidden: an int would be read with another"),
    "excluded_and_needed": (Needs, Needs(hidden=2), r"payload\.hidden: a worker could not read it"),
    "read_as": (ReadAs, ReadAs(N=1), r"payload\.N: a worker could not read it: Field required"),
    "written_as": (WrittenAs, WrittenAs(n=1), r"payload\.n: an int would be read with another value"),
    "private": (Kept, changed(Kept(a=1), _kept=2), r"payload\._kept: an int would be read with another"),
    "subclass": (list[Cat], [CAT, Point3(more=2)], r"payload\[1\]: a Point3 would be read as a Cat"),
    "subclass_that_says_equal": (Lenient, More(id=1), r"payload: a More would be read as a Lenient"),
    "sub_dataclass": (Line, Express("x", decimal.Decimal(1), NAIVE), r"payload: an Express would be read as"),
    "sub_struct": (dict[str, Bare], {"a": Bigger(1)}, r"payload\.a: a Bigger would be read as a Bare"),
    "init_var": (Init, Init(1, 2), r"payload"),
    "not_a_number": (Measure, Measure(value=float("nan")), r"payload\.value: a float that is not finite"),
    "infinite": (Annotated[float, Field(gt=0)], float("inf"), r"payload: a float that is not finite"),
    "not_utf_8": (Strict, Strict(id=ID, at=NAIVE, raw=b"\xff"), r"payload\.raw: a bytes cannot be stored"),
    "any_record": (Loose, Loose(Bare(1)), r"payload\.a: a Bare would be read as a dict"),
    "any_time": (Loose, Loose([NAIVE]), r"payload\.a\[0\]: a datetime would be read as a str"),
    "any_object": (Loose, Loose({"x": object()}), r"payload\.a\.x: an object would be read as None"),
    "any_tuple": (Loose, Loose((1, 2)), r"payload\.a: a tuple would be read as a list"),
    "any_keys": (Loose, Loose({1: 2}), r"payload\.a\[1\]: an int would be lost"),
    "wrong_type": (Loose, Loose(1, "5"), r"payload\.n: a worker could not read it: Expected `int`"),  # type: ignore[arg-type]
    "wrong_by_construct": (Cat, Cat.model_construct(lives="9"), r"payload\.lives: a str would be read as"),  # type: ignore[arg-type]
    "extra": (OfPydantic, {"n": 1, "m": 2}, r"payload\.m: an int would be lost"),
    "extra_of_typed": (Typed, {"at": NAIVE, "m": 2}, r"payload\.m: an int would be lost"),
    "extra_time": (Open, Open(a=1, b=NAIVE), r"payload\.b: a datetime would be read as a str"),
    "constraint": (OfPydantic, {"n": 0}, r"payload\.n: a worker could not read it: Input should be greater"),
    "constraint_of_msgspec": (Typed, {"at": NAIVE, "n": 0}, r"payload\.n: a worker could not read it: Exp"),
    "parameter": (Annotated[int, Field(gt=0)], 0, r"payload: a worker could not read it: Input should be"),
    "parameter_of_msgspec": (
        Annotated[list[int], msgspec.Meta(min_length=1)],
        [],
        r"payload: a worker could not read it: Expected `array` of length",
    ),
    "within_parameter": (dict[str, Annotated[int, Field(gt=0)]], {"a": 0}, r"payload\.a: a worker could not"),
    "stripped": (Annotated[str, pydantic.StringConstraints(strip_whitespace=True)], " a", r"payload: a str"),
    "strictly": (Annotated[int, Field(strict=True)], "1", r"payload: a worker could not read it"),
    "unvalidated": (Bare, Bare(0), r"payload\.n: a worker could not read it: Expected `int` >= 1"),
    "text_for_uuid": (UserId, str(ID), r"payload: a str would be read as an UUID"),
    "dict_that_does_not_fit": (Cat, {"lives": "many"}, r"payload\.lives: a worker could not read it: Input"),
    "dict_with_a_subclass": (Around, {"pet": Point3(), "pets": {}, "ids": []}, r"payload\.pet: a Point3 wo"),
    "text_or_time": (dt.datetime | str, "2026-01-02T03:04:05Z", r"payload: a str would be read as"),
    "nothing": (Strict, None, r"payload\.id: none is given, and a worker could not read {}: Field required"),
    "half_a_pair": (Serialized | Dog, Dog(name="\ud800"), r"payload\.name: a worker could not read it"),
    "circle": (Loose, CIRCLE, r"payload: it is nested too deeply"),
    "validator": (Validated, Validated.model_construct(n=7), r"payload: a worker .* read it: KeyError$"),
    "serializer": (
        Serialized,
        Serialized(text=SECRET),
        r"payload: a Serialized cannot be stored as JSON: Error calling function `_text`$",
    ),
    "no_struct": (Bare, None, r"payload: none is given, .*: Object missing required field `n`"),
}  # fmt: skip


# How a test compares two, where Python's own comparison says that they differ.
BY: dict[str, Callable[[Any], Any]] = {
    "first_of_two": dt.datetime.isoformat,
    "second_of_two": dt.datetime.isoformat,
    "unequal": lambda unequal: unequal.at,
}


def same(name: str, payload: Any) -> bool:
    value, by = ROUND_TRIPS[name][1], BY.get(name, lambda same: same)
    return bool(by(payload) == by(value)) and (
        type(payload) is type(value) or isinstance(payload, Page)  # of Page, a Page[int] is made
    )


def task_of(name: str, hint: Any) -> Any:
    """A task whose handler returns whether it got the case's value."""

    def handler(payload: Any) -> bool:
        return same(name, payload)

    handler.__annotations__["payload"] = hint
    return task(f"typed {name}", result=True, max_attempts=1)(handler)


TASKS = {name: task_of(name, hint) for name, (hint, _) in ROUND_TRIPS.items()}


@task(name="batch of orders", batch=10, result=True, max_attempts=1)
def batch_of_orders(jobs: list[Job[Order]]) -> list[bool]:
    return [same("ordered", job.payload) for job in jobs]


@task(name="async batch of models", batch=10, result=True, max_attempts=1)
async def batch_of_models(jobs: list[AsyncJob[Annotated[Around, "any metadata"]]]) -> list[bool]:
    return [same("around", job.payload) for job in jobs]


@task(name="positive batch", batch=10, max_attempts=1)
def positive_batch(jobs: list[Job[Annotated[int, Field(gt=0)]]]) -> None: ...


@task(name="adds another", max_attempts=1, result=True)
def adds_another(payload: dict[str, Any], job: Job) -> str:
    job.add_job(TASKS["strict"], STRICT)
    try:
        job.add_job(secret, SecretStr(SECRET))
    except InvalidArgument as error:
        return str(error)
    return "taken"


@task(name="a secret")
def secret(payload: SecretStr) -> None: ...
