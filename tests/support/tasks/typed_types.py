"""Types of payloads: what people write with pydantic, msgspec, dataclasses and TypedDict."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import uuid
import zoneinfo
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

import msgspec
import pydantic
import typing_extensions
from pydantic import BaseModel, ConfigDict, Field, Json, SecretStr, computed_field

ID = uuid.UUID("0b6f0d4e-5a43-4b0c-9a51-5a8e3d4a1f00")
NAIVE = dt.datetime(2026, 10, 25, 2, 30, 1, 678901)
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
T = TypeVar("T")


class Color(enum.Enum):
    RED = 1


class Size(enum.StrEnum):
    BIG = "big"


class Level(enum.IntEnum):
    HIGH = 3


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    name: str = "x"


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)
    id: uuid.UUID
    at: dt.datetime
    price: decimal.Decimal = decimal.Decimal("1.50")
    raw: bytes = b"x"
    color: Color = Color.RED


class Aliased(BaseModel):
    user_id: int = Field(alias="userId")
    both: int = Field(default=1, validation_alias="b", serialization_alias="b")
    choices: int = Field(default=1, validation_alias=pydantic.AliasChoices("n", "m"), serialization_alias="m")


class ByName(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    user_id: int = Field(validation_alias="userId")


class Computed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int

    @computed_field
    @property
    def double(self) -> int:
        return 2 * self.a


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


class WithJson(BaseModel):
    numbers: Json[list[int]]
    any: Json[Any]


class Shown(BaseModel):
    """It writes its secret itself, for JSON alone."""

    token: SecretStr

    @pydantic.field_serializer("token", when_used="json")
    def _token(self, token: SecretStr) -> str:
        return token.get_secret_value()


class Private(BaseModel):
    a: int
    _double: int = pydantic.PrivateAttr(default=0)

    def model_post_init(self, _: Any) -> None:
        self._double = 2 * self.a


class Ids(pydantic.RootModel[list[uuid.UUID]]): ...


class Page(BaseModel, Generic[T]):
    items: list[T]
    next: Page[T] | None = None


class Around(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    pets: dict[uuid.UUID, list[Cat | Dog]]
    ids: Ids
    nothing: None = None


@pydantic.dataclasses.dataclass
class Checked:
    at: dt.datetime
    counts: dict[uuid.UUID, int]
    few: int = Field(default=1, lt=100)


@dataclasses.dataclass
class Line:
    sku: str
    price: decimal.Decimal
    at: dt.datetime
    lasts: dt.timedelta = dt.timedelta(days=-1, microseconds=3)
    raw: bytes = b"x\xff"
    days: set[dt.date] = dataclasses.field(default_factory=lambda: {dt.date(2026, 1, 2)})


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    lines: list[Line]
    total: int = dataclasses.field(init=False)
    parent: Order | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", len(self.lines))


@dataclasses.dataclass(eq=False)
class Unequal:
    """Two of them are never equal for Python; that their fields are is enough."""

    at: dt.datetime


@dataclasses.dataclass
class Mixed:
    """A dataclass around a pydantic model."""

    inner: Strict
    more: dict[int, Strict]


class Point(NamedTuple):
    x: int
    at: dt.date


class Bare(msgspec.Struct):
    n: Annotated[int, msgspec.Meta(gt=0)]


class Renamed(msgspec.Struct, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    first_name: str = ""
    last_name: str = "x"
    pair: tuple[int, uuid.UUID] = (1, ID)


class Up(msgspec.Struct, tag="up", array_like=True):
    by: int


class Down(msgspec.Struct, tag="down", array_like=True, frozen=True):
    by: int


class Box(msgspec.Struct, Generic[T]):
    item: T
    unset: int | msgspec.UnsetType = msgspec.UNSET


class Typed(typing_extensions.TypedDict):
    at: dt.datetime
    n: typing_extensions.NotRequired[Annotated[int, msgspec.Meta(gt=0)]]


class OfPydantic(typing_extensions.TypedDict):
    n: Annotated[int, Field(gt=0)]
    at: typing_extensions.NotRequired[dt.datetime]


class Point3(Cat):
    more: int = 1


@dataclasses.dataclass
class Express(Line):
    to: str = "x"


class Bigger(Bare):
    m: int = 1


class Excluded(BaseModel):
    a: int
    hidden: int = Field(default=1, exclude=True)


class Needs(BaseModel):
    hidden: int = Field(exclude=True)


class ReadAs(BaseModel):
    n: int = Field(validation_alias="N")


class WrittenAs(BaseModel):
    n: int = Field(default=0, serialization_alias="N")


class Secret(BaseModel):
    inner: dict[str, list[SecretStr]]


class Measure(BaseModel):
    value: float


class Kept(BaseModel):
    a: int
    _kept: int = pydantic.PrivateAttr(default=0)


@dataclasses.dataclass
class Init:
    a: int
    x: dataclasses.InitVar[int]

    def __post_init__(self, x: int) -> None:
        self.a += x


@dataclasses.dataclass
class Loose:
    a: Any
    n: int = 0


class Lenient(BaseModel):
    """Two are equal for Python if their ids are."""

    id: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lenient) and other.id == self.id


class More(Lenient):
    name: str = ""


class Validated(BaseModel):
    n: int

    @pydantic.field_validator("n")
    @classmethod
    def _n(cls, n: int) -> int:
        return {0: n}[n]  # raises a KeyError that quotes it


class Serialized(BaseModel):
    text: str

    @pydantic.field_serializer("text")
    def _text(self, text: str) -> str:
        raise ValueError(f"cannot write {text}")
