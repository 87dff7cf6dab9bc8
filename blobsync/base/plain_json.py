"""Parses JSON from a file or another program: returns plain values or raises ``ValueError``."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict


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


def demand_types(made: object) -> None:
    """Raise ``ValueError`` if a field of a dataclass that was filled from JSON does not have its declared type.

    Knows the types that JSON has, tuples and mappings of them, unions, the words of a ``Literal``, and other
    dataclasses. Of a ``TypedDict`` it demands only that it is a mapping: its values may be of another version of
    blobsync.
    """
    kind: Any = type(made)
    for name, hint in _fields(kind).items():
        if not _fits(getattr(made, name), hint):
            raise ValueError(f"{name} has the wrong type")


@lru_cache(maxsize=64)
def _fields(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in dataclasses.fields(kind)}


def _fits(value: Any, hint: Any) -> bool:
    if hint is str or hint is bool:
        # The common case; logs have many rows.
        return isinstance(value, hint)
    if hint is int or hint is float:
        # 1e999 is read as infinity.
        return isinstance(value, (int, hint)) and not isinstance(value, bool) and abs(value) != math.inf
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if hint is None or hint is NoneType:
        return value is None
    if origin in (UnionType, Union, Literal):
        return any(value == each if origin is Literal else _fits(value, each) for each in args)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(each, args[0]) for each in value)
    if origin is Mapping:
        return isinstance(value, dict) and all(_fits(k, args[0]) and _fits(v, args[1]) for k, v in value.items())
    if not isinstance(value, dict if is_typeddict(hint) else hint):
        return False
    if dataclasses.is_dataclass(value):
        demand_types(value)
    return True


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
