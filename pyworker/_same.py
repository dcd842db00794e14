"""Compares what was given with what a worker would read, and finds the place where they differ."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AnySet
from datetime import UTC, datetime
from math import isfinite
from typing import Any, cast

_ATOMS = (str, int, float, bool, type(None))
_PLAIN = (*_ATOMS, list, dict)
_ABSENT = object()
_OF_THE_USER = re.compile(r"(?s)^(Error calling function `[^`]*`): .*")
Found = tuple[str, str]  # the path, and what is wrong there


def difference(given: Any, read: Any, raw: bool = False) -> Found | None:
    """Where, and why, what was given would not be read equal; None if it would.

    A dict in place of a record is JSON (`raw`): what the record makes of it is right. So is what stands in
    place of a record that is no object in JSON.
    """
    kind = cast("type[Any]", type(given))
    if given is read or (kind in _ATOMS and (raw or (type(read) is kind and given == read))):
        return None
    if (names := _fields_of(kind)) is not None:
        if type(read) is not kind and _class_of(given) is not _class_of(read):
            return "", f"{_a(given)} would be read as {_a(read)}"
        for name in names:
            one, other = getattr(given, name, _ABSENT), getattr(read, name, _ABSENT)
            if one is not other and (found := difference(one, other)):
                return f"{_step(name)}{found[0]}", found[1]
        more = _more_of(given)
        return _differing(more, _more_of(read), raw=False) if more else None
    if kind in _PLAIN and (inner := _within(read, given)) is not read:
        return difference(given, inner, raw=True)
    if isinstance(given, Mapping):
        if isinstance(read, Mapping):
            return _differing(cast("Any", given), cast("Any", read), raw)
        if _fields_of(cast("type[Any]", type(read))) is not None:
            return _differing(cast("Any", given), dict(_children(read)), raw=True)
    if isinstance(given, list | tuple | deque) and isinstance(read, list | tuple if raw else kind):
        ours, theirs = cast("list[Any]", given), cast("list[Any]", read)
        if len(ours) != len(theirs):
            return "", f"{_a(given)} of {len(ours)} would be read as one of {len(theirs)}"
        for at, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            if found := difference(one, other, raw):
                return f"[{at}]{found[0]}", found[1]
        return None
    if _equal(given, read) or (raw and kind in (list, dict)):
        return None
    same = type(read) is kind
    return "", f"{_a(given)} would be read {'with another value' if same else f'as {_a(read)}'}"


def _within(record: Any, given: Any) -> Any:
    """What JSON has for a RootModel, a NamedTuple or a struct that is written as an array; else the same."""
    kind = cast("type[Any]", type(record))
    if getattr(kind, "__pydantic_root_model__", False):
        return record.root
    fields: tuple[str, ...] | None = getattr(kind, "_fields", None) if _is_tuple(kind) else None
    if getattr(getattr(kind, "__struct_config__", None), "array_like", False):
        fields = _fields_of(kind)
    if fields is None or not isinstance(given, list):
        return record
    # The last ones may have defaults.
    return [getattr(record, name) for name in fields[: len(cast("list[Any]", given))]]


def _is_tuple(kind: type[Any]) -> bool:
    return issubclass(kind, tuple)


def unwritable(value: Any, write: Callable[[Any], object], error: Exception) -> Found:
    """The place of what cannot be written as JSON, and why. `error`: of writing all of it."""
    if isinstance(error, RecursionError):
        return "", "it is nested too deeply"
    if isinstance(value, float) and not isfinite(value):
        return "", "a float that is not finite has no JSON"
    for name, child in _children(value):
        try:
            write(child)
            if isinstance(child, float):  # a model may write it as null
                json.dumps(child, allow_nan=False)
        except Exception as problem:
            path, why = unwritable(child, write, problem)
            return f"{_step(name)}{path}", why
    # A serializer of the user's may quote the value.
    reason = _OF_THE_USER.sub(r"\1", str(error))
    return "", f"{_a(value)} cannot be stored as JSON: {reason}"


def half_a_pair(value: Any) -> str:
    """The path of the first string with half a surrogate pair, which pydantic does not read."""
    for name, child in _children(value):
        if (path := half_a_pair(child)) or (isinstance(child, str) and not _is_unicode(child)):
            return f"{_step(name)}{path}"
    return ""


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def path_to(value: Any, target: Any) -> str:
    """The path of an object within lists and dicts."""
    return _search(value, target) or ""


def _search(value: Any, target: Any) -> str | None:
    if value is target:
        return ""
    for name, child in _children(value) if isinstance(value, dict | list | tuple) else ():
        if (found := _search(child, target)) is not None:
            return f"{_step(name)}{found}"
    return None


def _differing(given: Mapping[Any, Any], read: Mapping[Any, Any], raw: bool) -> Found | None:
    for name, one in given.items():
        other = read.get(name, _ABSENT)
        if other is not _ABSENT and (found := difference(one, other, raw)):
            return f"{_step(name)}{found[0]}", found[1]
        if other is _ABSENT and one is not _ABSENT and not raw:
            return _step(name), f"{_a(one)} would be lost"
    if not raw and len(read) > len(given):
        added = next(name for name in read if name not in given)
        return _step(added), f"{_a(read[added])} would be added"
    return None


@functools.lru_cache(maxsize=1000)
def _fields_of(kind: type[Any]) -> tuple[str, ...] | None:
    """The names of a record's fields; None for another class."""
    if (names := getattr(kind, "__struct_fields__", None)) is not None:
        return names
    if (fields := getattr(kind, "__attrs_attrs__", None)) is not None:
        return tuple(field.name for field in fields)
    if hasattr(kind, "__dataclass_fields__"):
        return tuple(field.name for field in dataclasses.fields(cast("Any", kind)))
    return tuple(getattr(kind, "model_fields", ())) if hasattr(kind, "__pydantic_validator__") else None


def _more_of(model: Any) -> dict[str, Any]:
    """The values that a model has besides its fields."""
    extra: Any = getattr(model, "__pydantic_extra__", None)
    private: Any = getattr(model, "__pydantic_private__", None)
    return {**(extra or {}), **(private or {})} if extra or private else {}


def _children(value: Any) -> Iterable[tuple[Any, Any]]:
    if (names := _fields_of(cast("type[Any]", type(value)))) is not None:
        fields = [(name, getattr(value, name, _ABSENT)) for name in names]
        return [*fields, *_more_of(value).items()]
    if isinstance(value, Mapping):
        return cast("Mapping[Any, Any]", value).items()
    if isinstance(value, list | tuple | deque | AnySet):
        return enumerate(cast("Iterable[Any]", value))
    return ()


def _class_of(value: Any) -> Any:
    """A model's class; of a generic one with parameters, that without."""
    generic = getattr(cast("type[Any]", type(value)), "__pydantic_generic_metadata__", None)
    return (generic and generic["origin"]) or cast("Any", type(value))


def _equal(given: Any, read: Any) -> bool:
    try:
        if isinstance(given, datetime) and isinstance(read, datetime) and given.tzinfo and read.tzinfo:
            # `==` never holds where a zone's clocks are put back.
            return given.astimezone(UTC) == read.astimezone(UTC)
        return bool(given == read) or (given != given and read != read)  # or NaN
    except Exception:
        return False


def _step(name: Any) -> str:
    return f".{name}" if isinstance(name, str) and name.isidentifier() else f"[{name!r}]"


def _a(value: Any) -> str:
    name = cast("type[Any]", type(value)).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
