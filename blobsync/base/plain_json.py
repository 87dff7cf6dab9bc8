"""Parses JSON from a file or another program: returns plain values or raises ``ValueError``."""

import dataclasses
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints, is_typeddict

from blobsync.base.redaction import Secret

_T = TypeVar("_T")


def parse_json(text: str | bytes) -> Any:
    """Like ``json.loads``; raises ``ValueError`` for invalid JSON, too deep nesting, NaN and infinite numbers.

    ``json`` raises ``RecursionError`` if values are nested some thousand levels deep.
    """
    try:
        # Strings are the common case, and can reuse one decoder.
        if isinstance(text, str) and not text.startswith("\ufeff"):
            return _DECODER.decode(text)
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not a JSON number")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def parse_object(text: str | bytes) -> dict[str, Any]:
    """:func:`parse_json` for text that must hold an object; raises ``ValueError`` for anything else."""
    found = parse_json(text)
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    return found


def made_of(kind: type[_T], values: object, *, newer: bool = False) -> _T:
    """The dataclass or ``NamedTuple`` from what :func:`dataclasses.asdict` or ``astuple`` of one became in JSON.

    Lists become tuples, texts paths, secrets and members of an ``Enum``, and objects other dataclasses, as the fields
    declare it; what is missing has the field's default. Of a ``TypedDict`` it demands only that it is a mapping: its
    values may be of another version of blobsync. ``newer``: fields that ``kind`` does not have are left out, as of a
    newer version. Raises ``ValueError`` for anything else.
    """
    made: Any = kind
    hints = hints_of(made)
    if isinstance(values, list) and len(values) <= len(hints):
        values = dict(zip(hints, values, strict=False))
    if not isinstance(values, dict):
        raise ValueError(f"it is no {kind.__name__}")
    if unknown := [name for name in values if name not in hints and not newer]:
        raise ValueError(f"{unknown[0]!a} is no field of a {kind.__name__}")
    found = {name: _made(name, value, hints[name], newer=newer) for name, value in values.items() if name in hints}
    try:
        return cast("_T", made(**found))
    except TypeError as error:
        raise ValueError(f"fields of a {kind.__name__} are missing") from error


# Classes whose values are texts in JSON.
_OF_TEXT = (Path, Secret)


@lru_cache(maxsize=64)
def hints_of(kind: Any) -> Mapping[str, Any]:
    """The types of the fields of a dataclass or ``NamedTuple``, by their names."""
    hints = get_type_hints(kind)
    names = getattr(kind, "_fields", None) or [each.name for each in dataclasses.fields(kind)]
    return {name: hints[name] for name in names}


def _made(name: str, value: Any, hint: Any, *, newer: bool) -> Any:
    """The value of a field, or one value in it."""
    if hint is str or hint is bool:
        # The common case; logs have many rows.
        fits = isinstance(value, hint)
    elif hint is int or hint is float:
        # 1e999 is read as infinity.
        fits = isinstance(value, (int, hint)) and not isinstance(value, bool) and abs(value) != math.inf
    elif (hint in _OF_TEXT and isinstance(value, str)) or (isinstance(hint, type) and issubclass(hint, Enum)):
        return hint(value)
    elif hasattr(hint, "__dataclass_fields__") or hasattr(hint, "_fields"):
        return made_of(hint, value, newer=newer)
    elif origin := get_origin(hint):
        return _made_of_several(name, value, origin, get_args(hint), newer=newer)
    else:
        fits = hint is Any or isinstance(value, dict if is_typeddict(hint) else hint)
    if not fits:
        raise ValueError(f"{name} has the wrong type")
    return value


def _made_of_several(name: str, value: Any, origin: Any, args: tuple[Any, ...], *, newer: bool) -> Any:
    if origin is Literal and value in args:
        return value
    if origin in (UnionType, Union):
        for each in args:
            with suppress(ValueError):
                return _made(name, value, each, newer=newer)
    if origin is tuple and isinstance(value, list):
        kinds = repeat(args[0], len(value)) if args[-1] is Ellipsis else args
        return tuple(_made(name, each, kind, newer=newer) for each, kind in zip(value, kinds, strict=True))
    if origin is Mapping and isinstance(value, dict):
        return {key: _made(name, each, args[1], newer=newer) for key, each in value.items()}
    raise ValueError(f"{name} has the wrong type")


def plain(value: Any) -> Any:
    """The value as types that JSON has, with lists for tuples."""
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def merged(first: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """``first`` with ``more``, which wins; mappings in both are merged."""
    found = dict(first)
    for name, value in more.items():
        inner = found.get(name)
        found[name] = merged(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return found
