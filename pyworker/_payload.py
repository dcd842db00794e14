"""Payloads and results as JSON.

A typed payload is written and read by one library: by pydantic, if anything in the annotation is
pydantic's or msgspec does not know the type; otherwise by msgspec. An annotation of plain JSON needs
neither, and is left as it is. What is written is read back at once: a payload that a worker would not
read as it was given is refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import inspect
import json
import re
import types
import typing
from collections.abc import Callable
from typing import Any, cast

from ._distribution import pip_install
from ._same import difference, half_a_pair, path_to, unwritable
from .errors import InvalidArgument, TaskError

_RECORDS = ("__dataclass_fields__", "__struct_fields__", "__pydantic_validator__", "__attrs_attrs__")
_JSON = (dict, list, str, int, float, bool, type(None))
_ESCAPES = re.compile(r"\\u(?:d[89ab]..\\ud[c-f]..|(0000|d[89a-f]..))|\\.", re.IGNORECASE)


class JsonText(str):
    """JSON that is sent as it is."""


class MissingLibrary(TaskError):
    """A library that a type needs is not installed."""


class Refused(Exception):
    """A value that a worker would not read as it was given: where, and why."""

    def __init__(self, path: str, why: str) -> None:
        self.path = path
        super().__init__(why)


class Codec:
    """Converts one type to JSON values and back. `dump` and `load` are a library's."""

    def __init__(self, hint: Any, dump: Callable[[Any], Any], load: Callable[[Any], Any]) -> None:
        self.hint = hint
        self.dump = dump
        self._load = load

    def encode(self, value: Any) -> Any:
        """JSON values that a worker reads back equal. Raises Refused."""
        try:
            written = json.loads(self._text(value))
        except Exception as error:  # of a library, or of a serializer of the user's
            raise Refused(*self._unwritable(value, error)) from None
        try:
            read = self.refuse_unreadable(written, "a worker could not read it")
        except Refused as refused:
            raise Refused(refused.path or half_a_pair(value), str(refused)) from refused.__cause__
        if found := difference(value, read):
            raise Refused(*found)
        return written

    def refuse_unreadable(self, payload: Any, why: str) -> Any:
        """Raises Refused, or returns what a worker would read."""
        try:
            return self._load(payload)
        except _Unreadable as error:
            raise Refused(error.path, f"{why}: {error}") from None
        except Exception as error:  # of a validator of the user's, whose text may quote the value
            raise Refused("", f"{why}: {type(error).__name__}") from error

    def _unwritable(self, value: Any, error: Exception) -> tuple[str, str]:
        try:
            path, why = unwritable(value, self._text, error)
        except RecursionError:  # it contains itself
            path, why = "", "it is nested too deeply"
        return (path, why) if len(path) < 1000 else ("", "it is nested too deeply")

    def _text(self, value: Any) -> str:
        return json.dumps(self.dump(value), allow_nan=False)

    def decode(self, payload: Any) -> Any:
        """The value. Its errors do not show the payload, which must not appear in errors and logs."""
        try:
            return self._load(payload)
        except _Unreadable as error:
            raise ValueError(f"the payload does not fit {self.hint!r}: {error.everything}") from None

    def takes(self, payload: Any) -> bool:
        try:
            self.refuse_unreadable(payload, "")
        except Refused:
            return False
        return True


class _Unreadable(Exception):
    """What a library says of JSON that does not fit the type."""

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        self.path, message = problems[0]
        self.everything = "; ".join(f"{what} - at `{path.lstrip('.')}`" for path, what in problems)
        super().__init__(message)


def storable(text: str) -> str:
    """Replace what jsonb cannot store, NUL and half surrogate pairs, by U+FFFD."""
    if "\\u0000" not in text and "\\ud" not in text and "\\uD" not in text:
        return text
    return _ESCAPES.sub(lambda match: "\\ufffd" if match[1] else match[0], text)


def to_json(value: Any, what: str) -> str:
    """JSON text of plain JSON values, dataclasses, pydantic models, msgspec structs.

    Its errors name no key of a dict: they are in the worker's log, and a key may be a secret of the payload.
    """
    return _text_of(value, what, _written)


def payload_json(value: Any, what: str) -> str:
    """As to_json, for a payload without a type: each record must be readable as its own class."""
    return _text_of(value, what, _checked)


def _text_of(value: Any, what: str, default: Callable[[Any], Any]) -> str:
    if isinstance(value, JsonText):
        return value
    last: list[Any] = []  # the record that was converted last

    def where() -> str:
        return f"{what}{path_to(value, last[0])}" if last and default is _checked else what

    def noted(record: Any) -> Any:
        last[:] = [record]
        return default(record)

    try:
        return json.dumps(value, default=noted, allow_nan=False)
    except Refused as error:
        raise InvalidArgument(f"{where()}{error.path}: {error}") from None
    except TypeError as error:
        raise TypeError(f"{where()} must be JSON: {error}") from None
    except RecursionError:
        raise InvalidArgument(f"{what} must be JSON: it is nested too deeply") from None
    except ValueError as error:  # here, as a refusal by the database would abort the caller's transaction
        raise InvalidArgument(f"{what} must be JSON: {error}") from None


def _written(value: Any) -> Any:
    codec = _codec_of_record(value)
    return codec.dump(value) if codec else _fields_of(value)


def _checked(value: Any) -> Any:
    codec = _codec_of_record(value)
    return codec.encode(value) if codec else _fields_of(value)


def _fields_of(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return dataclasses.asdict(cast("Any", value))
    name = cast("type[Any]", type(value)).__name__
    raise TypeError(f"a value of type {name} cannot be stored as JSON")


def _codec_of_record(value: Any) -> Codec | None:
    kind = cast("type[Any]", type(value))
    return _codec_of_class(kind) if any(hasattr(kind, mark) for mark in _RECORDS) else None


@functools.lru_cache(maxsize=1000)
def _codec_of_class(kind: type[Any]) -> Codec | None:
    """A codec by a value's class, for values without a task; None if no library can write it."""
    try:
        return codec_of(kind)
    except Exception:  # a library is missing, or annotations refer to local names
        return _by_msgspec(kind) if hasattr(kind, "__struct_fields__") else None


def codec_of(hint: Any) -> Codec | None:
    """The codec of this type; None for plain JSON.

    Raises MissingLibrary, or what the library says of a type that it does not know.
    """
    if is_plain(hint):
        return None
    owners = _owners(hint)
    if len(owners) > 1:
        raise TypeError(f"{hint!r} has parts of pydantic and of msgspec, and one of them must convert it")
    if "msgspec" in owners or (not owners and _known_to_msgspec(hint)):
        return _by_msgspec(hint)
    if _importable("pydantic"):
        return _by_pydantic(hint)
    how = "pip install pydantic" if _importable("msgspec") else pip_install("types")
    raise MissingLibrary(f"to convert payloads to {hint!r}, {how}")


def is_plain(hint: Any) -> bool:
    """True for Any, dict[str, Any], list[int], Mapping, str | None …: what json.loads returns already."""
    if hint is Any or hint is None:
        return True
    arguments, origin = typing.get_args(hint), typing.get_origin(hint) or hint
    if origin not in (typing.Union, types.UnionType):
        try:
            held = [issubclass(kind, origin) for kind in _JSON]
        except TypeError:  # not a class, or a TypedDict
            return False
        if not any(held) or (held[:2] == [True, False] and arguments and arguments[0] not in (str, Any)):
            return False  # the keys of JSON are strings
    return all(is_plain(argument) for argument in arguments)


def takes_null(hint: Any) -> bool:
    return hint is None or hint is type(None) or type(None) in typing.get_args(hint)


def _owners(hint: Any) -> set[str | None]:
    """Whose the types and the metadata are that stand in an annotation.

    Neither library can be asked: each reads an annotation with the other's constraints, and does not check
    them. msgspec takes pydantic's dataclasses, too, and dataclasses with pydantic's validators.
    """
    owners: set[str | None] = set()
    parts = [hint]
    for part in parts:  # to which this adds: each once, as a type may contain itself
        owners.add(owner := _owner(part))
        # list[A], A | B, Annotated[A, metadata], Generic[A], `type A = …`, NewType
        within: list[Any] = [*typing.get_args(part), typing.get_origin(part)]
        within += [getattr(part, name, None) for name in ("__value__", "__supertype__")]
        if inspect.isclass(part):
            with contextlib.suppress(Exception):  # a name that only the library can resolve
                within += typing.get_type_hints(part, include_extras=True).values()
            if owner is None:  # validators; a name with __ may be of a library that has seen the class
                members = inspect.getmembers_static(part)
                owners |= {_owner(value) for name, value in members if not name.startswith("__")}
        within = [new for new in within if typing.get_origin(new) is not typing.ClassVar]  # no field
        parts += [new for new in within if not any(new is known for known in parts)]
    return owners - {None}


def _owner(part: Any) -> str | None:
    """The library that a type or its metadata belongs to, if it is one of the two."""
    kind = cast("type[Any]", part if inspect.isclass(part) else type(part))
    modules = {str(base.__module__).partition(".")[0] for base in kind.__mro__}
    if "msgspec" in modules:
        return "msgspec"
    # Also a class or metadata of the user's that tells pydantic how to convert it.
    marked = any(name.startswith(("__pydantic_", "__get_pydantic_")) for name in dir(part))
    return "pydantic" if marked or modules & {"pydantic", "annotated_types"} else None


def _known_to_msgspec(hint: Any) -> bool:
    if not _importable("msgspec"):
        return False
    import msgspec

    try:
        msgspec.json.schema(hint)
    except Exception:
        return False
    return True


# Where messages of the libraries quote what the payload has.
_TAG = re.compile(r"(?s) '.*'(?= found using )")
_VALUE = re.compile(r"(?s)^(Invalid (?:enum )?value) .*$")
_AT = re.compile(r"(?s)^(.*?)(?: - at `\$?([^`]*)`)?$")


def _by_pydantic(hint: Any) -> Codec:
    from pydantic import TypeAdapter, ValidationError

    adapter: TypeAdapter[Any] = TypeAdapter(hint)
    dump = functools.partial(
        # By alias, as it is read, without computed fields. A dict in place of a model passes: the reader
        # validates it. What has no JSON is written as null, which reading it back finds.
        adapter.dump_python, mode="json", by_alias=True, round_trip=True, warnings="none", fallback=_builtin,
    )  # fmt: skip

    def load(payload: Any) -> Any:
        try:
            return adapter.validate_json(json.dumps(payload))
        except ValidationError as error:
            problems = error.errors(include_input=False, include_url=False)
            raise _Unreadable([(_path(e["loc"]), _TAG.sub("", e["msg"])) for e in problems]) from None

    return Codec(hint, dump, load)


def _path(parts: tuple[int | str, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)


def _by_msgspec(hint: Any) -> Codec:
    import msgspec

    msgspec.json.Decoder(hint)  # checks the type now
    # The keys of a JSON object are strings.
    dump = functools.partial(msgspec.to_builtins, str_keys=True, enc_hook=_builtin)

    def load(payload: Any) -> Any:
        try:
            return msgspec.convert(payload, hint, str_keys=True)
        except msgspec.ValidationError as error:
            what, path = cast("re.Match[str]", _AT.match(str(error))).groups()
            raise _Unreadable([(path or "", _VALUE.sub(r"\1", what))]) from None

    return Codec(hint, dump, load)


def _builtin(value: Any) -> Any:
    """For what a library cannot write: a string or number of a class of its own; otherwise null."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    return float.__float__(value) if isinstance(value, float) else None


def _importable(name: str) -> bool:
    return importlib.util.find_spec(name) is not None
