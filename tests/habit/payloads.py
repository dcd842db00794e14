"""Payloads as people annotate them. Each handler answers with what shows that it got it whole."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import uuid
from typing import Annotated, Literal, NamedTuple, TypedDict

import msgspec
import pydantic

from tests.habit.table import habit

AT = datetime.datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
ID = uuid.UUID("12345678-1234-5678-1234-567812345678")


class Kind(enum.StrEnum):
    FAST = "fast"


class Address(pydantic.BaseModel):
    street: str
    zip_code: str = pydantic.Field(alias="zipCode")
    model_config = pydantic.ConfigDict(populate_by_name=True)


class Customer(pydantic.BaseModel):
    id: uuid.UUID
    born: datetime.date
    limit: decimal.Decimal
    address: Address
    tags: set[str] = set()
    kind: Kind = Kind.FAST


class Card(pydantic.BaseModel):
    kind: Literal["card"]
    number: str


class Cash(pydantic.BaseModel):
    kind: Literal["cash"]


@dataclasses.dataclass
class Line:
    article: str
    amount: int = 1


@dataclasses.dataclass
class Order:
    id: int
    at: datetime.datetime
    lines: list[Line]
    note: str | None = None


class Options(TypedDict, total=False):
    retries: int
    verbose: bool


class Struct(msgspec.Struct, rename="camel"):
    first_name: str
    born_at: datetime.datetime


class Pair(NamedTuple):
    left: int
    right: str


CUSTOMER = Customer(
    id=ID, born=datetime.date(2000, 2, 29), limit=decimal.Decimal("10.50"), tags={"a"},
    address=Address(street="Main St", zip_code="123"),
)  # fmt: skip


@habit(payload=CUSTOMER, returns=True)
def a_model_with_aliases(payload: Customer):
    return payload == CUSTOMER


@habit(payload=Card(kind="card", number="4"), returns="Card")
def a_discriminated_union(payload: Annotated[Card | Cash, pydantic.Field(discriminator="kind")]):
    return type(payload).__name__


@habit(payload=[CUSTOMER], returns=True)
async def a_list_of_models(payload: list[Customer]):
    return payload == [CUSTOMER]


@habit(payload=Order(7, AT, [Line("book"), Line("pen", 2)]), returns=True)
def a_nested_dataclass(payload: Order):
    return payload == Order(7, AT, [Line("book"), Line("pen", 2)])


@habit(payload={"retries": 3}, returns={"retries": 3})
def a_typed_dict(payload: Options):
    return payload


@habit(payload=Struct("Ada", AT), returns=["Ada", True])
def a_struct_with_other_names(payload: Struct):
    return [payload.first_name, payload.born_at == AT]


@habit(payload=Pair(1, "b"), returns="b")
def a_named_tuple(payload: Pair):
    return payload.right


@habit(payload=ID, returns=True)
def a_uuid(payload: uuid.UUID):
    return payload == ID


@habit(payload=AT, returns=True)
def a_time(payload: datetime.datetime):
    return payload == AT


@habit(payload=datetime.timedelta(minutes=90), returns=5400.0)
def a_duration(payload: datetime.timedelta):
    return payload.total_seconds()


@habit(payload=decimal.Decimal("0.10"), returns="0.10")
def a_decimal(payload: decimal.Decimal):
    return str(payload)


@habit(payload={1: "one"}, returns=[1])
def a_dict_with_numbers_as_keys(payload: dict[int, str]):
    return list(payload)


@habit(payload=Kind.FAST, returns="FAST")
def an_enum(payload: Kind):
    return payload.name


@habit(payload=b"\x00\xff", returns=255)
def bytes_of_any_kind(payload: bytes):
    return payload[1]


@habit(payload=None, returns="none")
def an_optional_model(payload: Customer | None):
    return "none" if payload is None else "some"


@habit(payload=12345678901234567890, returns=True)
def a_large_number(payload: int):
    return payload == 12345678901234567890


@habit(payload={"emoji": "😀", "quote": "\"'\\", "empty": ""}, returns=True)
def any_text(payload):
    return payload == {"emoji": "😀", "quote": "\"'\\", "empty": ""}


@habit(payload="just a text", returns="just a text")
def a_text(payload):
    return payload


@habit(returns={})
def no_payload_at_all(payload):
    return payload


@habit(returns="no argument")
def no_parameter_at_all():
    return "no argument"
