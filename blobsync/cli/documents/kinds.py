"""Building blocks of JSON schemas (draft 2020-12), and the schemas of dataclasses and named tuples."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from blobsync.base.plain_json import hints_of

Schema = Mapping[str, Any]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}
# An object with any names.
ANY_OBJECT: Schema = {"type": "object"}

MOMENT: Schema = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|\+00:00)$"}
MD5: Schema = {"type": "string", "pattern": "^[0-9a-f]{32}$"}

_PLAIN: Mapping[type, Schema] = {str: TEXT, bool: FLAG, int: INTEGER, float: NUMBER}


def described(kind: Schema, meaning: str) -> Schema:
    """The schema with a description."""
    return {**kind, "description": meaning}


def choice(*values: str) -> Schema:
    """One of some texts."""
    return {"type": "string", "enum": list(values)}


def choice_of(kind: type[Enum]) -> Schema:
    """One of the values of an enumeration."""
    return choice(*(each.value for each in kind))


def maybe(kind: Schema) -> Schema:
    """A value of this kind, or null."""
    if isinstance(kind.get("type"), str) and "enum" not in kind:
        return {**kind, "type": [kind["type"], "null"]}
    return {"anyOf": [kind, {"type": "null"}]}


def list_of(kind: Schema) -> Schema:
    """A list of any length."""
    return {"type": "array", "items": kind}


def by_name(kind: Schema) -> Schema:
    """An object with any names, each with a value of this kind."""
    return {"type": "object", "additionalProperties": kind}


def record(optional: Mapping[str, Schema] = MappingProxyType({}), /, **known: Schema) -> Schema:
    """An object with all of ``known``, perhaps some of ``optional``, and nothing else."""
    return {
        "type": "object",
        "properties": {**known, **optional},
        "required": list(known),
        "additionalProperties": False,
    }


def of_fields(kind: type, **instead: Schema) -> Mapping[str, Schema]:
    """The fields of a dataclass or ``NamedTuple`` by their names; ``instead`` has the schemas of fields that differ."""
    return {name: instead.get(name) or _of_annotation(hint) for name, hint in hints_of(kind).items()}


def _of_annotation(annotation: Any) -> Schema:
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    if get_origin(annotation) in (Union, UnionType):
        (inner,) = (each for each in get_args(annotation) if each is not NoneType)
        return maybe(_of_annotation(inner))
    if get_origin(annotation) is tuple:
        return list_of(_of_annotation(get_args(annotation)[0]))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return choice_of(annotation)
    if isinstance(annotation, type):
        return record(**of_fields(annotation))
    raise TypeError(f"no schema is known for {annotation}")
