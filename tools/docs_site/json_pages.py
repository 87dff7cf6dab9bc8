"""The page of what ``--json`` prints, and a file with the schema of each command: both made from the schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from blobsync.cli.schema import ANSWERS, Schema, document_schema, schema_id

_HEAD = """\
---
nosearch: true
---
# JSON documents

With `--json` a command prints one document, also when it fails. `data` is what the command answers; it is `{}` if the
command could not begin. These are its shapes, made from the schemas that the tests hold every document to.

`blobsync schema COMMAND` prints the schema (JSON Schema, draft 2020-12) of the version that you have. Its `$id` names
the version of the document, which is `blobsync` in it: that changes if a key goes or means something else. A newer
blobsync may have more keys, codes and words in the same version of the document; a schema names all of its own.

With `--timings`, each `data` has `timings`, a list of `span` and `seconds`, as well.

## All documents

"""
# Longer lists of words are only in the schema.
_LISTED = 12
_FILES = "schemas"


def write_json_pages(source: Path) -> None:
    """Write the page and the files into the folder of the site's sources."""
    folder = source / _FILES
    folder.mkdir()
    for command, shapes in ANSWERS.items():
        text = json.dumps(document_schema(command, shapes), indent=1) + "\n"
        (folder / _file(command)).write_text(text, encoding="utf-8")
    (source / "reference" / "json.md").write_text(json_page(), encoding="utf-8")


def json_page() -> str:
    """What surrounds ``data``, then the data of each command; commands with equal answers share one."""
    lines = [_HEAD.rstrip("\n"), "", *_table(document_schema("", ()))]
    groups: dict[str, tuple[list[str], Sequence[Schema]]] = {}
    for command, shapes in ANSWERS.items():
        groups.setdefault(json.dumps(list(shapes)), ([], shapes))[0].append(command)
    for names, shapes in groups.values():
        links = ", ".join(f"[{schema_id(name)}](../{_FILES}/{_file(name)})" for name in names)
        lines += ["", f"## {', '.join(names)}", "", f"Schema: {links}", ""]
        for number, shape in enumerate(shapes):
            lines += ["or:", ""] if number else []
            lines += [*_table(shape), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _file(command: str) -> str:
    return f"{command.replace(' ', '-')}.json"


def _table(shape: Schema) -> Iterator[str]:
    yield from ("| key | type | meaning |", "|---|---|---|")
    for key, inner, needed in _keys(shape, ""):
        kind = _kind(inner) + ("" if needed else "; not always there")
        yield f"| `{key}` | {kind} | {inner.get('description', '')} |"


def _keys(shape: Schema, above: str) -> Iterator[tuple[str, Schema, bool]]:
    """Each key with those inside it: ``entries[].path``."""
    for name, inner in shape["properties"].items():
        yield f"{above}{name}", inner, name in shape["required"]
        plain, key = _without_null(inner), f"{above}{name}"
        while plain.get("type") == "array":
            plain, key = _without_null(plain["items"]), f"{key}[]"
        if isinstance(plain.get("additionalProperties"), dict):
            plain, key = _without_null(plain["additionalProperties"]), f"{key}.NAME"
        if "properties" in plain:
            yield from _keys(plain, f"{key}.")


def _without_null(schema: Schema) -> Schema:
    """The kind of a value that may be null."""
    if "anyOf" in schema and schema["anyOf"][-1] == {"type": "null"}:
        inner: Mapping[str, Any] = schema["anyOf"][0]
        return inner
    kinds = schema.get("type")
    return {**schema, "type": kinds[0]} if isinstance(kinds, list) else schema


_WORDS = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}


def _kind(schema: Schema) -> str:
    plain = _without_null(schema)
    null = ", or null" if plain is not schema else ""
    if "enum" in plain and len(plain["enum"]) > _LISTED:
        return f"one of {len(plain['enum'])} texts, which the schema lists{null}"
    if "enum" in plain:
        return " or ".join(f"`{value}`" for value in plain["enum"]) + null
    if "const" in plain:
        return f"`{json.dumps(plain['const'])}`{null}"
    if plain.get("type") == "array":
        return f"list of {_kind(plain['items'])}{null}"
    return _WORDS.get(str(plain.get("type")), "object") + null
