"""Validates the fields of a manifest: unknown ones, and the types of the others.

The schemas are those of the package ``kubernetes-validate``, which are the server's published OpenAPI.
"""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.servers.kube.errors import Refused
from tests.servers.kube.resources import Resource

_SCHEMAS = "v1.36.0-local"
_NAMES = {"batch": "io.k8s.api.batch.v1.", "": "io.k8s.api.core.v1."}
_GO_TYPES = {"integer": "int32", "boolean": "bool", "string": "string"}


@functools.cache
def _definitions() -> dict[str, Any]:
    found = importlib.util.find_spec("kubernetes_validate")
    assert found is not None and found.origin, "kubernetes-validate is not installed"
    path = Path(found.origin).parent / "kubernetes-json-schema" / _SCHEMAS / "_definitions.json"
    schemas: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["$defs"]
    return schemas


def schema_of(resource: Resource) -> dict[str, Any]:
    found: dict[str, Any] = _definitions()[_NAMES[resource.group] + resource.kind]
    return found


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a reference."""
    for one in [schema, *schema.get("allOf", [])]:
        if "$ref" in one:
            found: dict[str, Any] = _definitions()[one["$ref"].rsplit("/", 1)[1]]
            return found
    return schema


def checked(obj: dict[str, Any], resource: Resource, mode: str) -> list[str]:
    """Remove unknown fields from ``obj``; returns warnings, or refuses, depending on ``fieldValidation`` (mode)."""
    schema = schema_of(resource)
    for path, wanted, value in _mistyped(obj, schema, ""):
        kind = type(value).__name__.replace("str", "string").replace("int", "number")
        raise Refused(
            400,
            f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: json: cannot '
            f"unmarshal {kind} into Go struct field {resource.kind}{path} of type {_GO_TYPES[wanted]}",
        )
    unknown = list(_unknown(obj, schema, ""))
    said = [f'unknown field "{path}"' for path in unknown]
    if mode == "Strict" and said:
        text = f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: '
        raise Refused(400, f"{text}strict decoding error: {', '.join(said)}")
    return said if mode == "Warn" else []


def _mistyped(value: Any, schema: dict[str, Any], path: str) -> Iterator[tuple[str, str, Any]]:
    schema = resolved(schema)
    types = schema.get("type", [])
    names = {types} if isinstance(types, str) else set(types) - {"null"}
    wanted = names.pop() if len(names) == 1 and "oneOf" not in schema else ""
    # In Python a bool is an int, too.
    right = {"integer": type(value) is int, "boolean": isinstance(value, bool), "string": isinstance(value, str)}
    if value is not None and not right.get(wanted, True):
        yield path, wanted, value
    for key, below, inner in _children(value, schema):
        yield from _mistyped(inner, below, f"{path}.{key}" if isinstance(key, str) else path)


def _unknown(value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    """Remove and yield each unknown field."""
    schema = resolved(schema)
    if isinstance(value, dict) and "properties" in schema:
        for key in [key for key in value if key not in schema["properties"]]:
            del value[key]
            yield f"{path}.{key}".removeprefix(".")
    for key, below, inner in _children(value, schema):
        yield from _unknown(inner, below, f"{path}.{key}" if isinstance(key, str) else f"{path}[{key}]")


def _children(value: Any, schema: dict[str, Any]) -> Iterator[tuple[str | int, dict[str, Any], Any]]:
    if isinstance(value, dict):
        others = schema.get("additionalProperties")
        for key, inner in list(value.items()):
            below = schema.get("properties", {}).get(key, others)
            if isinstance(below, dict):
                yield key, below, inner
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for number, inner in enumerate(value):
            yield number, schema["items"], inner
