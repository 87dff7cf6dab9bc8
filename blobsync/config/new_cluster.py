"""Cluster and account files that a conversion writes, as YAML. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file of the project that is to be written; one that ``is_private`` is for its owner alone."""

    name: str
    comment: str
    values: Mapping[str, Any] = field(repr=False)
    is_private: bool = False

    @property
    def text(self) -> str:
        """The whole content."""
        body = yaml.safe_dump(_plain(self.values), sort_keys=False, allow_unicode=True, width=110)
        return "".join(f"# {line}\n" for line in self.comment.splitlines()) + body


def with_changes(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``changes`` merged in, mappings key by key."""
    values = dict(base)
    for name, value in changes.items():
        below = values.get(name)
        values[name] = (
            with_changes(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
        )
    return values


def flattened(values: Mapping[str, Any], around: str = "") -> dict[str, Any]:
    """The same as overrides of a cluster file: one key per value, with ``$`` between its words."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{around}{name}"
        found.update(flattened(value, f"{key}$") if isinstance(value, Mapping) and value else {key: value})
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
