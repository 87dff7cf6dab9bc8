"""``-p``: YAML on the command line that is merged into a cluster file.

Mappings are merged key by key, anything else replaces what the file says. As in ACT, a key may be a path
with ``$`` between its words: ``-p '{docker$image: other}'``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from blobsync.base.errors import ConfigError
from blobsync.config.yaml_lines import Document, KeyPath, Origin, parse_document

SHOWN = "-p"


def parse_overrides(text: str) -> Mapping[str, Any]:
    """The mapping that ``-p`` holds. Raises ``ConfigError``."""
    try:
        return parse_document(text, SHOWN).values
    except ConfigError as error:
        raise ConfigError(
            error.detail, file=SHOWN, key=error.key, hint="-p takes YAML, for example: -p '{gpu_per_node: 8}'"
        ) from error


def apply_overrides(document: Document, overrides: Mapping[str, Any]) -> Document:
    """``document`` with ``overrides`` merged in; complaints about their keys name ``-p``."""
    origins = dict(document.origins)
    values = _copy(document.values)
    for path, value in _leaves(overrides, ()):
        _put(values, path, value)
        stale = [known for known in origins if known[: len(path)] == path]
        for known in stale:
            del origins[known]
        origins[path] = Origin(SHOWN, None)
    return Document(document.file, values, origins)


def _leaves(overrides: Mapping[str, Any], around: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    for key, value in overrides.items():
        path = (*around, *str(key).split("$"))
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, path)
        else:
            yield path, value


def _put(values: dict[str, Any], path: KeyPath, value: Any) -> None:
    for part in path[:-1]:
        if not isinstance(values.get(part), dict):
            values[part] = {}
        values = values[part]
    values[path[-1]] = value


def _copy(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in values.items()}
