"""Reads YAML with the line of every key: no conversions but of plain data, no duplicate keys, limits of size and depth.

Only plain data is read: strings, integers, true and false, null, lists and mappings. What YAML 1.1 would convert to
something else stays the string that was typed: ``12:30:00`` is not 45000 seconds, ``3.10`` not 3.1, ``0123`` not 83,
``2026-11-20`` not a date, and twenty digits are no number. Tags that ask for a conversion are refused. JSON files are
read as YAML, which they are. PyYAML parses, and its nodes know their lines. ruamel.yaml does too, but converts numbers
and dates the same way, so it would not simplify this module.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from blobsync.base.errors import ConfigError, ConfigNotFoundError
from blobsync.base.file_states import regular_only
from blobsync.base.records import NamedTuple

# Far above real files: a cluster file has a few hundred values.
_MAX_BYTES = 256_000
_MAX_VALUES = 100_000
# PyYAML's time grows with the square of this, and it uses Python's stack.
_MAX_DEPTH = 100

KeyPath = tuple[str, ...]


class Origin(NamedTuple):
    """Where a value was written."""

    file: str
    line: int | None


class Document:
    """One YAML mapping, plain values, and the origin of every key and list item by its path."""

    def __init__(self, file: str, values: Mapping[str, Any], origins: Mapping[KeyPath, Origin]) -> None:
        self.file: Final = file
        self.values: Final = values
        self.origins: Final = origins

    def origin(self, path: KeyPath) -> Origin:
        """The origin of this key, or of the nearest one around it."""
        while path:
            if path in self.origins:
                return self.origins[path]
            path = path[:-1]
        return Origin(self.file, None)

    def place(self, path: KeyPath) -> str:
        """The file and line of this key, for a sentence about it."""
        origin = self.origin(path)
        return f"{origin.file}:{origin.line}" if origin.line else origin.file

    def error(self, path: KeyPath, message: str, *, hint: str | None = None) -> ConfigError:
        """A ``ConfigError`` that names the place of this key."""
        origin = self.origin(path)
        return ConfigError(message, file=origin.file, line=origin.line, key=".".join(path) or None, hint=hint)


def read_document(path: Path, shown: str) -> Document:
    """Read ``path``; ``shown`` is its name in messages. Raises ``ConfigError`` and ``ConfigNotFoundError``."""
    try:
        with open(path, "rb", opener=regular_only) as stream:
            data = stream.read(_MAX_BYTES + 1)
        text = data.decode("utf-8-sig")
    except FileNotFoundError as error:
        raise ConfigNotFoundError("no such file", file=shown) from error
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=shown) from error
    except UnicodeDecodeError as error:
        raise ConfigError("is not UTF-8 text", file=shown) from error
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"is larger than {_MAX_BYTES:,} bytes, too large for a configuration", file=shown)
    if path.suffix == ".json":
        # JSON allows tabs between tokens, YAML does not; inside JSON strings neither does.
        text = text.replace("\t", " ")
    return parse_document(text, shown)


def parse_document(text: str, file: str) -> Document:
    """Parse one YAML mapping. Raises ``ConfigError`` with the line; an empty text is an empty mapping."""
    try:
        loader = _PlainLoader(text)
        loader.file = file
        node = loader.get_single_node()
        if node is None or (isinstance(node, yaml.ScalarNode) and not node.value):
            return Document(file, {}, {})
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError("is not a mapping of keys to values", file=file, line=node.start_mark.line + 1)
        origins = {path: Origin(file, line) for path, line in _walk(loader, node, (), file, ())}
        return Document(file, loader.construct_document(node), origins)
    except RecursionError:
        raise ConfigError("is nested too deeply", file=file) from None
    except yaml.MarkedYAMLError as error:
        # A key without a ':' is noticed on the next line.
        is_key = error.context == "while scanning a simple key"
        mark = error.context_mark if is_key else error.problem_mark
        line = mark.line + 1 if mark else None
        raise ConfigError(f"is not valid YAML: {_words(error)}", file=file, line=line) from None
    except yaml.YAMLError as error:
        raise ConfigError("is not valid YAML: it contains a character that is not allowed", file=file) from error


def parse_texts(text: str) -> Any:
    """The texts, lists and mappings of a document, each text as it is written. Raises ``ValueError``."""
    try:
        return yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506 - it makes nothing else
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _parts(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [each for pair in node.value for each in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


class _PlainLoader(yaml.SafeLoader):
    """PyYAML's safe loader without floats, dates, octal and base-60 numbers; keys are always texts."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        self.flatten_mapping(node)
        return {key.value: self.construct_object(value, deep=deep) for key, value in node.value}

    file = ""
    _depth = 0

    def __init__(self, text: str) -> None:
        super().__init__(text)
        # Of each node, with everything below it: its values, however often an alias repeats them.
        self._sizes: dict[yaml.Node, int] = {}
        # Whether a value has an alias of a node around it, which has no size yet.
        self.holds_itself = False

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        # Brackets on one line are read ahead of the nodes, up to 1,024 characters, and closed again before the first.
        if max(self._depth, self.flow_level + len(self.indents)) > _MAX_DEPTH:
            raise RecursionError
        self._depth += 1
        is_alias = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is not None and not self._is_plain(node):
            tag = ascii(node.tag.replace("tag:yaml.org,2002:", "!!"))[1:60].rstrip("'")
            said = f"{tag} is not allowed in a configuration"
            raise yaml.MarkedYAMLError(problem=said, problem_mark=node.start_mark)
        if is_alias:
            self.holds_itself |= node not in self._sizes
        elif node is not None:
            size = self._sizes[node] = 1 + sum(self._sizes.get(part, 0) for part in _parts(node))
            if size > _MAX_VALUES:
                # Each level of aliases, of a few bytes, multiplies the size of the one before.
                said = f"expands to more than {_MAX_VALUES:,} values with its aliases"
                raise ConfigError(said, file=self.file, line=node.start_mark.line + 1)
        return node

    def _is_plain(self, node: yaml.Node) -> bool:
        """Whether its tag is the one that it would have without an explicit one; any scalar may be tagged a string."""
        if isinstance(node, yaml.ScalarNode):
            resolved = self.resolve(yaml.ScalarNode, node.value, (True, False))  # type: ignore[no-untyped-call]
            return node.tag in ("tag:yaml.org,2002:str", resolved)
        return bool(node.tag == self.resolve(type(node), node.value, True))  # type: ignore[no-untyped-call]


_PlainLoader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("null", "(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", "(?:yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF)$", list("yYnNtTfFoO")),
    ("int", "(?:-?(?:0|[1-9][0-9]{0,17}))$", list("-0123456789")),
    ("merge", "(?:<<)$", ["<"]),
):
    _PlainLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first)


def _words(error: yaml.MarkedYAMLError) -> str:
    """The problem alone: PyYAML's excerpt could show a key."""
    problem = error.problem or "unknown problem"
    if "'\\t'" in problem:
        return "a tab where spaces belong"
    if "mapping values are not allowed here" in problem:
        return "a second ':' on the line (put the value in quotes), or wrong indentation"
    if "could not find expected ':'" in problem:
        return "a ':' is missing after a key"
    if "expected <block end>" in problem:
        return "wrong indentation"
    return f"{error.context}, {problem}" if problem.startswith("but ") else problem


def _walk(
    loader: _PlainLoader, node: yaml.Node, path: tuple[str, ...], file: str, around: tuple[yaml.Node, ...]
) -> Iterator[tuple[tuple[str, ...], int]]:
    """The line of everything below ``node``; refuses duplicate keys and values that contain themselves."""
    if any(node is other for other in around):
        raise ConfigError("refers to itself", file=file, line=node.start_mark.line + 1, key=".".join(path))
    if isinstance(node, yaml.MappingNode):
        _refuse_duplicates(node, path, file)
        # What holds itself is refused below; merged before, its keys would multiply, which no size has counted.
        if not loader.holds_itself:
            loader.flatten_mapping(node)
        for key, value in node.value:
            here = (*path, str(key.value))
            yield here, key.start_mark.line + 1
            yield from _walk(loader, value, here, file, (*around, node))
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            here = (*path, str(number))
            yield here, value.start_mark.line + 1
            yield from _walk(loader, value, here, file, (*around, node))


def _refuse_duplicates(node: yaml.MappingNode, path: tuple[str, ...], file: str) -> None:
    seen: dict[str, int] = {}
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise ConfigError("a key must be a single word", file=file, line=line, key=".".join(path) or None)
        if key.value in seen:
            shown = ".".join((*path, key.value))
            raise ConfigError(f"is set twice, first on line {seen[key.value]}", file=file, line=line, key=shown)
        seen[key.value] = line
