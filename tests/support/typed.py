"""Types of payloads at random, from the features of pydantic, dataclasses, TypedDict, msgspec, with values.

Each value comes with `lossy`: true if something in it may not make the way, so that an add may refuse it.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import math
import uuid
import zoneinfo
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import pydantic
import typing_extensions
from hypothesis import strategies as st

SECRET = "sesame"


class Kind(NamedTuple):
    hint: Any
    values: st.SearchStrategy[tuple[Any, bool]]  # with lossy
    hashable: bool = False


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Size(enum.StrEnum):
    BIG = "big"


class Level(enum.IntEnum):
    HIGH = 3


ZONES = st.sampled_from(
    [
        None,
        dt.UTC,
        dt.timezone(dt.timedelta(hours=5, minutes=45)),
        zoneinfo.ZoneInfo("Europe/Berlin"),
        zoneinfo.ZoneInfo("America/New_York"),
    ]
)
# Where a zone's clocks are put on or back, Python calls no two times equal: typed_cases.py has those.
TIMES = st.datetimes(dt.datetime(1950, 1, 1), dt.datetime(2100, 1, 1), timezones=ZONES).filter(
    lambda time: time.tzinfo is None or time == time.astimezone(dt.UTC)
)


def of(hint: Any, values: st.SearchStrategy[Any], lossy: Callable[[Any], bool] = lambda _: False) -> Kind:
    return Kind(hint, values.map(lambda value: (value, lossy(value))), hashable=True)


def finite(value: float) -> bool:
    return math.isfinite(value)


LEAVES = [
    of(int, st.integers(-(2**70), 2**70)),
    of(bool, st.booleans()),
    of(str, st.text(max_size=5)),
    of(float, st.floats(), lambda value: not finite(value)),
    of(decimal.Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    of(dt.datetime, TIMES),
    of(dt.date, st.dates()),
    of(dt.time, st.times()),
    of(dt.timedelta, st.timedeltas(dt.timedelta(days=-9999), dt.timedelta(days=9999))),
    of(uuid.UUID, st.uuids()),
    of(Color, st.sampled_from(Color)),
    of(Size, st.sampled_from(Size)),
    of(Level, st.sampled_from(Level)),
    of(Literal["a", 1], st.sampled_from(["a", 1])),
]
BYTES = of(bytes, st.binary(max_size=3))
OF_PYDANTIC = [
    of(bytes, st.binary(max_size=3), lambda value: not value.isascii()),
    of(pydantic.SecretStr, st.just(pydantic.SecretStr(SECRET)), lambda _: True),
    of(Annotated[int, pydantic.Field(gt=0)], st.integers(-3, 9), lambda value: value <= 0),
    of(pydantic.Json[list[int]], st.lists(st.integers(), max_size=2))._replace(hashable=False),
    of(pydantic.AwareDatetime, TIMES, lambda value: value.tzinfo is None),
    of(Annotated[str, pydantic.StringConstraints(max_length=2)],
       st.text(max_size=3), lambda value: len(value) > 2),
]  # fmt: skip
OF_MSGSPEC = [
    BYTES,
    of(Annotated[int, msgspec.Meta(gt=0)], st.integers(-3, 9), lambda value: value <= 0),
    of(Annotated[str, msgspec.Meta(max_length=2)], st.text(max_size=3), lambda value: len(value) > 2),
]


@st.composite
def kinds(draw: Any, library: str, depth: int = 3) -> Kind:
    leaves = st.sampled_from(LEAVES + (OF_PYDANTIC if library == "pydantic" else OF_MSGSPEC))
    if depth == 0:
        return draw(leaves)
    within = kinds(library, depth - 1)
    return draw(st.one_of(leaves, within.map(optional), containers(within), records(library, within)))


def optional(kind: Kind) -> Kind:
    return kind._replace(hint=kind.hint | None, values=st.just((None, False)) | kind.values)


@st.composite
def containers(draw: Any, within: Any) -> Kind:
    kind: Kind = draw(within)
    several = st.lists(kind.values, max_size=3)
    choices: list[tuple[Any, Any]] = [(list[kind.hint], list), (tuple[kind.hint, ...], tuple)]
    if kind.hashable and kind.hint is not float:
        choices += [(set[kind.hint], set), (frozenset[kind.hint], frozenset)]
    hint, make = draw(st.sampled_from([*choices, (dict[str, kind.hint], None), (dict[int, kind.hint], None)]))
    if make is None:
        keys = st.text(max_size=3) if hint.__args__[0] is str else st.integers()
        values = st.dictionaries(keys, kind.values, max_size=3).map(
            lambda pairs: (
                {key: value for key, (value, _) in pairs.items()},
                any(lossy for _, lossy in pairs.values()),
            )
        )
        return Kind(hint, values)
    return Kind(
        hint, several.map(lambda pairs: (make(value for value, _ in pairs), any(lossy for _, lossy in pairs)))
    )


@st.composite
def records(draw: Any, library: str, within: Any) -> Kind:
    fields = {f"f_{at}": kind for at, kind in enumerate(draw(st.lists(within, min_size=1, max_size=3)))}
    makers = [a_dataclass, a_typed_dict, a_named_tuple]
    makers += [a_model, a_model, a_pydantic_dataclass] if library == "pydantic" else [a_struct, a_struct]
    hint, make, lossy = draw(draw(st.sampled_from(makers))(fields))
    values = st.fixed_dictionaries({name: kind.values for name, kind in fields.items()}).map(
        lambda pairs: (
            make({name: value for name, (value, _) in pairs.items()}),
            lossy or any(each for _, each in pairs.values()),
        )
    )
    return Kind(hint, values)


@st.composite
def a_model(draw: Any, fields: dict[str, Kind]) -> Any:
    config = pydantic.ConfigDict(
        extra=draw(st.sampled_from(["ignore", "forbid", "allow"])), frozen=draw(st.booleans()),
        strict=draw(st.booleans()), populate_by_name=draw(st.booleans()),
    )  # fmt: skip
    lossy, defined = False, {}
    for name, kind in fields.items():
        options = draw(st.sampled_from([
            {}, {}, {"alias": f"a {name}"}, {"validation_alias": "in", "serialization_alias": "in"},
            {"validation_alias": f"v_{name}"}, {"serialization_alias": f"s_{name}"}, {"exclude": True},
        ]))  # fmt: skip
        if len(fields) > 1 and "serialization_alias" in options and options["serialization_alias"] == "in":
            options = {"validation_alias": f"in {name}", "serialization_alias": f"in {name}"}
        lossy |= "exclude" in options or (len(options) == 1 and "alias" not in options)
        defined[name] = (kind.hint, pydantic.Field(**options))
    base = draw(st.sampled_from([Computed, Private, pydantic.BaseModel]))
    configured = type("Base", (base,), {"model_config": config})
    model = pydantic.create_model("Model", __base__=configured, **defined)
    subclass = draw(st.integers(0, 9)) == 0
    made = pydantic.create_model("More", __base__=model, more=(int, 1)) if subclass else model

    def make(values: dict[str, Any]) -> Any:
        # Without validation, so that a value out of its bounds reaches the add.
        unchecked = made.model_construct()
        unchecked.__dict__.update(values)
        unchecked.model_post_init(None)
        return unchecked

    return model, make, lossy or subclass


class Computed(pydantic.BaseModel):
    @pydantic.computed_field
    @property
    def double(self) -> int:
        return 2


class Private(pydantic.BaseModel):
    _count: int = pydantic.PrivateAttr(default=0)

    def model_post_init(self, _: Any) -> None:
        self._count = len(type(self).model_fields)


@st.composite
def a_dataclass(draw: Any, fields: dict[str, Kind]) -> Any:
    options = {name: draw(st.booleans()) for name in ("frozen", "slots", "kw_only")}
    made = dataclasses.make_dataclass("Data", [(name, kind.hint) for name, kind in fields.items()], **options)
    if draw(st.integers(0, 9)) == 0:
        more = dataclasses.make_dataclass(
            "More", [("more", int, dataclasses.field(default=1))], bases=(made,), frozen=options["frozen"]
        )
        return made, lambda values: more(**values), True
    return made, lambda values: made(**values), False


@st.composite
def a_pydantic_dataclass(draw: Any, fields: dict[str, Kind]) -> Any:
    plain = dataclasses.make_dataclass("Checked", [(name, kind.hint) for name, kind in fields.items()])
    made = pydantic.dataclasses.dataclass(plain, config=pydantic.ConfigDict(strict=draw(st.booleans())))

    def make(values: dict[str, Any]) -> Any:
        unchecked = object.__new__(made)
        for name, value in values.items():
            object.__setattr__(unchecked, name, value)
        return unchecked

    return made, make, False


@st.composite
def a_typed_dict(draw: Any, fields: dict[str, Kind]) -> Any:
    total = draw(st.booleans())
    hints = {name: kind.hint for name, kind in fields.items()}
    return typing_extensions.TypedDict("Typed", hints, total=total), dict, False  # type: ignore[operator]


@st.composite
def a_named_tuple(draw: Any, fields: dict[str, Kind]) -> Any:
    draw(st.none())
    made: Any = NamedTuple("Named", [(name, kind.hint) for name, kind in fields.items()])  # type: ignore[misc]
    return made, lambda values: made(**values), False


@st.composite
def a_struct(draw: Any, fields: dict[str, Kind]) -> Any:
    flags = ("frozen", "forbid_unknown_fields", "array_like", "omit_defaults", "kw_only", "tag")
    options: dict[str, Any] = {name: draw(st.booleans()) for name in flags}
    options["rename"] = draw(st.sampled_from([None, "camel", "kebab", "upper"]))
    defined = [(name, kind.hint) for name, kind in fields.items()]
    made = msgspec.defstruct("Struct", defined, **options)
    if draw(st.integers(0, 9)) == 0:
        more = msgspec.defstruct("More", [("more", int, 1)], bases=(made,), kw_only=True)
        return made, lambda values: more(**values), True
    return made, lambda values: made(**values), False
