"""Payloads and results as JSON.

The library that writes a typed payload also reads it: pydantic or msgspec. A type of plain JSON
values needs neither library and is left as it is.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import decimal
import enum
import functools
import importlib.util
import inspect
import json
import re
import typing
import uuid
from collections.abc import Callable
from typing import Any, Literal, cast

from ._distribution import pip_install
from .errors import InvalidArgument, TaskError

# JSON writes them as strings or arrays; reading them again requires their type.
_SCALARS = (
    datetime.date, datetime.time, datetime.timedelta, uuid.UUID, decimal.Decimal, bytes, bytearray,
    set, frozenset, collections.abc.Set, tuple, enum.Enum,
)  # fmt: skip
_MARKS = ("__dataclass_fields__", "__struct_fields__", "__pydantic_validator__")
Library = Literal["pydantic", "msgspec"]


_ESCAPES = re.compile(r"\\u(?:d[89ab]..\\ud[c-f]..|(0000|d[89a-f]..))|\\.", re.IGNORECASE)


class JsonText(str):
    """JSON that is sent as it is."""


class Codec:
    """Converts one type to JSON values and back."""

    def __init__(self, hint: Any, encode: Callable[[Any], Any], decode: Callable[[Any], Any]) -> None:
        self.hint = hint
        self.encode = encode
        self.decode = decode


def storable(text: str) -> str:
    """Replace what jsonb cannot store, NUL and half surrogate pairs, by U+FFFD."""
    if "\\u0000" not in text and "\\ud" not in text and "\\uD" not in text:
        return text
    return _ESCAPES.sub(lambda match: "\\ufffd" if match[1] else match[0], text)


def to_json(value: Any, what: str = "what is stored") -> str:
    """JSON text of a payload or result.

    That is plain JSON values, dataclasses, pydantic models, msgspec structs.
    """
    if isinstance(value, JsonText):
        return value
    try:
        return json.dumps(value, default=_plain, allow_nan=False)
    except TypeError as error:
        raise TypeError(f"{what} must be JSON: {error}") from None
    except RecursionError:
        raise InvalidArgument(f"{what} must be JSON: it is nested too deeply") from None
    except ValueError as error:  # here, as a refusal by the database would abort the caller's transaction
        raise InvalidArgument(f"{what} must be JSON: {error}") from None


def encoded(codec: Codec | None, value: Any, what: str) -> Any:
    """A value of the codec's type, converted for to_json."""
    if codec is None or isinstance(value, JsonText):
        return value
    try:
        return codec.encode(value)
    except (TypeError, ValueError, RecursionError) as error:  # includes those of pydantic and msgspec
        raise TypeError(
            f"{what} cannot be stored as {codec.hint!r}: {type(error).__name__}: {error}"
        ) from None


def _plain(value: Any) -> Any:
    kind = cast("type[Any]", type(value))
    if any(hasattr(kind, mark) for mark in _MARKS):
        if codec := _codec_of_class(kind):
            return codec.encode(value)
        if dataclasses.is_dataclass(value):
            return dataclasses.asdict(cast("Any", value))
    raise TypeError(f"a value of type {kind.__name__} cannot be stored as JSON")


@functools.lru_cache(maxsize=1000)
def _codec_of_class(kind: type[Any]) -> Codec | None:
    """A codec by a value's class, for values without a task; None if no library can write it."""
    try:
        return codec_of(kind)
    except Exception:  # a library is missing, or annotations refer to local names
        return _by_msgspec(kind) if hasattr(kind, "__struct_fields__") else None


def codec_of(hint: Any) -> Codec | None:
    """The codec of this type; None for plain JSON types.

    Raises TaskError if no library reads it.
    """
    parts: set[Any] = set()
    if not _needs_conversion(hint, parts):
        return None
    library = _library(parts)
    if library is None:
        raise TaskError(f"to convert payloads to {hint!r}, {pip_install('types')}")
    return _by_pydantic(hint) if library == "pydantic" else _by_msgspec(hint)


def _library(parts: set[Any]) -> Library | None:
    """pydantic if a part is one of its models or msgspec is not installed; otherwise msgspec."""
    pydantic_only = any(hasattr(part, "__pydantic_validator__") for part in parts)
    if not pydantic_only and _importable("msgspec"):
        return "msgspec"
    return "pydantic" if _importable("pydantic") else None


# Where messages of the libraries quote what the payload has.
_TAG = re.compile(r"(?s) '.*'(?= found using )")
_VALUE = re.compile(r"(?s)^(Invalid (?:enum )?value) .*?( - at `[^`]*`)?$")


def _by_pydantic(hint: Any) -> Codec:
    from pydantic import TypeAdapter, ValidationError

    adapter: TypeAdapter[Any] = TypeAdapter(hint)

    def encode(value: Any) -> Any:
        # By alias, as it is read. A plain dict in place of a model passes; the reader validates it.
        return adapter.dump_python(value, mode="json", by_alias=True, warnings="none")

    def decode(payload: Any) -> Any:
        try:
            return adapter.validate_json(json.dumps(payload))
        except ValidationError as error:
            # Without the input: payloads must not appear in errors and logs.
            problems = "; ".join(
                f"{_TAG.sub('', e['msg'])} - at `{'.'.join(str(part) for part in e['loc'])}`"
                for e in error.errors(include_input=False)
            )
            raise ValueError(f"the payload does not fit {hint!r}: {problems}") from None

    return Codec(hint, encode, decode)


def _by_msgspec(hint: Any) -> Codec:
    import msgspec

    msgspec.json.Decoder(hint)  # checks the type now

    def encode(value: Any) -> Any:
        return msgspec.to_builtins(value, str_keys=True, enc_hook=_plain)

    def decode(payload: Any) -> Any:
        try:
            return msgspec.convert(payload, hint, str_keys=True)  # the keys of a JSON object are strings
        except msgspec.ValidationError as error:
            problem = _VALUE.sub(r"\1\2", str(error))
            raise ValueError(f"the payload does not fit {hint!r}: {problem}") from None

    return Codec(hint, encode, decode)


def _needs_conversion(hint: Any, parts: set[Any]) -> bool:
    """True if the type contains more than plain JSON values.

    Adds its classes with fields to `parts`.
    """
    for aliased in ("__value__", "__supertype__"):  # `type A = …`, NewType
        if hasattr(hint, aliased) and not inspect.isclass(hint):
            return _needs_conversion(getattr(hint, aliased), parts)
    arguments: tuple[Any, ...] = typing.get_args(hint)
    origin: Any = typing.get_origin(hint) or hint
    if origin is Literal:
        return False
    found = [_needs_conversion(argument, parts) for argument in arguments]
    if not inspect.isclass(origin):
        return any(found)
    if typing.is_typeddict(origin) or any(hasattr(origin, mark) for mark in _MARKS):
        if origin not in parts:
            parts.add(origin)
            # pydantic has resolved its own fields, and a pydantic model decides the library.
            for field in (
                () if hasattr(origin, "__pydantic_validator__") else typing.get_type_hints(origin).values()
            ):
                _needs_conversion(field, parts)
        return True
    if issubclass(origin, collections.abc.Mapping) and arguments and arguments[0] not in (str, Any):
        return True
    return any(found) or issubclass(origin, _SCALARS)


def takes_null(hint: Any) -> bool:
    return hint is None or hint is type(None) or type(None) in typing.get_args(hint)


def _importable(name: str) -> bool:
    return importlib.util.find_spec(name) is not None
