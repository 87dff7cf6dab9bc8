"""Label and field selectors of a query."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tests.servers.kube.errors import Refused

_SET = re.compile(r"^\s*(!?)\s*([\w./-]+)\s*(?:(in|notin)\s*\(([^)]*)\)|(==?|!=)\s*([\w.-]*))?\s*$")


class Selector:
    """The selectors of a query; empty ones select everything."""

    def __init__(self, labels: str = "", fields: str = "") -> None:
        self._labels = [_requirement(each) for each in _split(labels)]
        self._fields = [_field(each) for each in fields.split(",") if each]

    def matches(self, obj: Mapping[str, Any]) -> bool:
        labels = obj["metadata"].get("labels") or {}
        return all(test(labels) for test in self._labels) and all(test(obj) for test in self._fields)


def _split(text: str) -> list[str]:
    return [each for each in re.split(r",(?![^(]*\))", text) if each.strip()]


def _requirement(text: str) -> Callable[[Mapping[str, str]], bool]:
    match = _SET.match(text)
    if not match:
        raise Refused(400, f'unable to parse requirement: found "{text}"')
    absent, key, among, values, operator, value = match.groups()
    if among:
        chosen = {each.strip() for each in values.split(",")}
        return lambda labels: (labels.get(key) in chosen) == (among == "in")
    if operator == "!=":
        return lambda labels: labels.get(key) != value
    if operator:
        return lambda labels: labels.get(key) == value
    return lambda labels: (key in labels) != bool(absent)


def _field(text: str) -> Callable[[Mapping[str, Any]], bool]:
    key, equal, value = re.split(r"(==|!=|=)", text, maxsplit=1)

    def test(obj: Mapping[str, Any]) -> bool:
        found: Any = obj
        for part in key.split("."):
            found = found.get(part, "") if isinstance(found, Mapping) else ""
        return (str(found or "") == value) == (equal != "!=")

    return test
