"""Validates JSON documents in tests by the schemas of their commands."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import jsonschema

from blobsync.base.errors import UsageError
from blobsync.cli.command_words import SECTIONS
from blobsync.cli.main import in_our_words
from blobsync.cli.schema import ANSWERS, document_schema
from tools.docs_site.command_tree import root_command

# The beginning of every document of ours; a job's output begins otherwise.
_BEGINNING = '{\n "blobsync": '
# Of a long list, so many items at each end are validated.
_LOOKED_AT = 100


def check_output(text: str) -> None:
    """Fail if this is a document that does not match its schema; ignores other output."""
    if text.startswith(_BEGINNING):
        check_document(json.loads(text))


def check_data(command: str, data: Mapping[str, Any]) -> None:
    """The same for the result of a successful command, before it is printed."""
    whole = {"blobsync": 1, "command": command.split(), "status": "success", "exit_code": 0, "data": data, "errors": []}
    check_document(json.loads(json.dumps(whole)))


def check_document(document: Mapping[str, Any]) -> None:
    """Fail with the invalid key."""
    command = command_of(document["command"])
    found = next(_validator(command).iter_errors(_thinned(document)), None)
    if found is not None:
        found = _nearest(found)
        where = "".join(f"[{step!r}]" for step in found.absolute_path)
        raise AssertionError(f"blobsync {command} --json{where} does not fit its schema: {found.message}")


def _nearest(error: Any) -> Any:
    """The error in the alternative that matches best: with the deepest errors, then the fewest."""
    while error.context:
        branches: dict[Any, list[Any]] = {}
        for each in error.context:
            branches.setdefault(each.schema_path[0], []).append(each)
        error = min(branches.values(), key=lambda errors: (-min(len(each.path) for each in errors), len(errors)))[0]
    return error


def command_of(words: Sequence[str]) -> str:
    """The command of this command line, named as in ``blobsync schema``; empty for an invalid one."""
    try:
        plain = list(_without_options(in_our_words(words)))
    except UsageError:
        return ""
    main = {name: word.names[0] for _, each in SECTIONS for word in each for name in word.names}
    first, second = main.get("".join(plain[:1]), ""), "".join(plain[1:2])
    known = ANSWERS
    if f"{first} {second}" in known:
        return f"{first} {second}"
    short = {"tunnel": "tunnel job", "keep": "keep start"}
    return short[first] if first in short and second else first if first in known else ""


def _without_options(words: Sequence[str]) -> Iterator[str]:
    left = iter(words)
    for word in left:
        if word in _options_with_value():
            next(left, None)
        elif not word.startswith("-"):
            yield word


@cache
def _options_with_value() -> frozenset[str]:
    """The options before a command."""
    shown = [names.split(", ") for names, _ in root_command().rows]
    valued = [names for names in shown if " " in names[-1]]
    return frozenset(name.split()[0] for names in valued for name in names)


@cache
def _validator(command: str) -> Any:
    return jsonschema.Draft202012Validator(document_schema(command, ANSWERS.get(command, ())))


def _thinned(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _thinned(inner) for name, inner in value.items()}
    if isinstance(value, list):
        short = value if len(value) <= 2 * _LOOKED_AT else [*value[:_LOOKED_AT], *value[-_LOOKED_AT:]]
        return [_thinned(inner) for inner in short]
    return value
