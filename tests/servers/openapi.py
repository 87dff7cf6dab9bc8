"""Checks requests against an OpenAPI 2.0 specification: path, query, and body with discriminators and unknown keys."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parent.parent / "data" / "aml-openapi" / "specification"
STABLE = DATA / (
    "machinelearningservices/resource-manager/Microsoft.MachineLearningServices/stable/2024-04-01"
)  # fmt: skip
FREE = ("resources.properties",)


@cache
def load(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Node:
    """A place in a specification file; references are followed into other files."""

    file: Path
    value: Any

    def follow(self) -> Node:
        node = self
        while isinstance(node.value, Mapping) and "$ref" in node.value:
            where, _, pointer = node.value["$ref"].partition("#")
            file = (node.file.parent / where).resolve() if where else node.file
            value = load(file)
            for part in pointer.strip("/").split("/"):
                value = value[part.replace("~1", "/")]
            node = Node(file, value)
        return node

    def get(self, key: str) -> Node:
        return Node(self.file, self.value[key])


@dataclass(frozen=True)
class Operation:
    """One method of one path, with the path's values."""

    template: str
    node: Node
    values: Mapping[str, str]

    @property
    def responses(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.node.value["responses"]
        return found


class Specification:
    """The specification files of a service."""

    def __init__(self, *files: Path) -> None:
        self._files = [file.resolve() for file in files]

    def find(self, method: str, path: str) -> Operation | None:
        """The operation of a request; None if there is no such path or method."""
        for file in self._files:
            for template, methods in load(file)["paths"].items():
                names = re.findall(r"\{(\w+)\}", template)
                match = re.fullmatch(re.sub(r"\\\{\w+\\\}", "([^/]+)", re.escape(template)), path)
                if match and method.lower() in methods:
                    node = Node(file, methods[method.lower()])
                    return Operation(template, node, dict(zip(names, match.groups(), strict=True)))
        return None

    def problems(self, method: str, path: str, query: Mapping[str, str], body: Any) -> list[str]:
        """Violations of the specification by a request; empty if there are none."""
        operation = self.find(method, path)
        if operation is None:
            return [f"{method} {path}: there is no such operation"]
        found: list[str] = []
        allowed = set()
        parameters = [Node(operation.node.file, each).follow() for each in operation.node.value["parameters"]]
        has_body = any(parameter.value["in"] == "body" for parameter in parameters)
        for parameter in parameters:
            value, name = parameter.value, parameter.value["name"]
            if value["in"] == "path":
                found += list(_plain(value, operation.values[name], name))
            elif value["in"] == "query":
                allowed.add(name)
                if value.get("required") and name not in query:
                    found.append(f"query: {name} is missing")
                elif name in query:
                    found += list(_plain(value, _from_query(value, query[name]), name))
            elif value["in"] == "body":
                found += list(check(parameter.get("schema"), body, ""))
        found += [f"query: {name} is unknown" for name in query if name not in allowed]
        version = load(operation.node.file)["info"]["version"]
        if query.get("api-version") not in (None, version):
            found.append(f"api-version {query['api-version']} is not {version}")
        return [*found, *(["there must be no body"] if body is not None and not has_body else [])]


def check(schema: Node, value: Any, at: str) -> Iterator[str]:
    """Violations of a schema by a value."""
    schema = schema.follow()
    if value is None:
        if not schema.value.get("x-nullable"):
            yield f"{at}: must not be null"
        return
    if any(at.endswith(free) for free in FREE):
        if not isinstance(value, dict):
            yield f"{at}: is no object"
        return
    kind = schema.value.get("type")
    if kind == "object" or "properties" in schema.value or "allOf" in schema.value:
        yield from _object(schema, value, at)
    elif kind == "array":
        if not isinstance(value, list):
            yield f"{at}: is no list"
            return
        for number, item in enumerate(value):
            yield from check(schema.get("items"), item, f"{at}[{number}]")
    else:
        yield from _plain(schema.value, value, at)


def _object(schema: Node, value: Any, at: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{at}: is no object"
        return
    base_name = schema.value.get("discriminator")
    variant = _variant(schema, value.get(base_name)) if base_name else schema
    if variant is None:
        yield f"{at}.{base_name}: {value.get(base_name)!r} is no known kind"
        return
    yield from _fields(variant, value, at)


def _fields(schema: Node, value: Mapping[str, Any], at: str) -> Iterator[str]:
    properties, required, extra = _members(schema)
    for name in required:
        if name not in value:
            yield f"{at}.{name}: is missing"
    for name, item in value.items():
        where = f"{at}.{name}".lstrip(".")
        if name in properties:
            member = properties[name]
            if member.value.get("readOnly"):
                yield f"{where}: is read-only"
            yield from check(member, item, where)
        elif extra is not None:
            yield from check(extra, item, where)
        elif properties or schema.value.get("additionalProperties") is False:
            yield f"{where}: is unknown"


def _members(schema: Node) -> tuple[dict[str, Node], set[str], Node | None]:
    """All properties of an object, with those of its bases."""
    schema = schema.follow()
    properties: dict[str, Node] = {}
    required = set(schema.value.get("required", ()))
    extra: Node | None = None
    for base in schema.value.get("allOf", ()):
        more, needed, _ = _members(Node(schema.file, base))
        properties.update(more)
        required |= needed
    for name, member in schema.value.get("properties", {}).items():
        properties[name] = Node(schema.file, member)
    given = schema.value.get("additionalProperties")
    if isinstance(given, Mapping):
        extra = Node(schema.file, given)
    return properties, required, extra


def _from_query(schema: Mapping[str, Any], text: str) -> Any:
    return {"true": True, "false": False}.get(text, text) if schema.get("type") == "boolean" else text


def _variant(base: Node, kind: Any) -> Node | None:
    """The definition whose discriminator value is ``kind`` and that descends from ``base``."""
    definitions = load(base.file)["definitions"]
    for name, definition in definitions.items():
        if definition.get("x-ms-discriminator-value", name) == kind and "allOf" in definition:
            node = Node(base.file, definition)
            if any(Node(base.file, each).follow().value is base.value for each in definition["allOf"]):
                return node
    return None


def _plain(schema: Mapping[str, Any], value: Any, at: str) -> Iterator[str]:
    kinds: dict[str, tuple[type, ...]] = {
        "string": (str,),
        "integer": (int,),
        "boolean": (bool,),
        "number": (int, float),
    }
    kind = schema.get("type")
    if kind in kinds and (not isinstance(value, kinds[kind]) or (kind == "integer" and isinstance(value, bool))):
        yield f"{at}: {value!r} is no {kind}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {value!r} is none of {schema['enum']}"
    if isinstance(value, str):
        if "pattern" in schema and not re.search(schema["pattern"], value):
            yield f"{at}: {value!r} does not match {schema['pattern']}"
        if len(value) < schema.get("minLength", 0):
            yield f"{at}: is too short"
        if schema.get("format") == "duration" and not re.fullmatch(r"P(\d+D)?(T(\d+H)?(\d+M)?(\d+S)?)?", value):
            yield f"{at}: {value!r} is no duration"


def azure_ml() -> Specification:
    return Specification(STABLE / "mfe.json", STABLE / "machineLearningServices.json")


def refusal_problems(body: Any) -> list[str]:
    """Violations of the specification by an error document, in which all keys are read-only."""
    types = DATA / "common-types/resource-management/v3/types.json"
    document = Node(types, load(types)["definitions"]["ErrorResponse"])
    return [found for found in check(document, body, "") if not found.endswith("is read-only")]


def example(name: str, status: str = "200") -> Any:
    """The body of a published example's response."""
    return load(STABLE / "examples" / name)["responses"][status]["body"]
