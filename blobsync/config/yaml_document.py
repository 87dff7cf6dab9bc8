"""Configuration files: YAML with the line of every key, checked against a table of keys.

Only plain data is read: strings, integers, true and false, null, lists and mappings. What YAML 1.1 would convert to
something else stays the string that was typed: ``12:30:00`` is not 45000 seconds, ``3.10`` not 3.1, ``0123`` not 83,
``2026-11-20`` not a date, and twenty digits are no number. Tags that ask for a conversion are refused. JSON files are
read as YAML, which they are. PyYAML parses, and its nodes know their lines. ruamel.yaml does too, but converts numbers
and dates the same way, so it would not simplify this module.

The check covers types, ``${ENV}`` values and unknown keys, with the most similar known one. All problems are collected,
not only the first: ``config check`` shows them together.

pydantic could check the types, but adds 85 ms to each command, and its messages name no file or line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from blobsync.base.errors import ConfigError, ConfigNotFoundError
from blobsync.base.file_states import regular_only
from blobsync.base.formatting import count_text
from blobsync.base.patterns import pattern
from blobsync.base.redaction import Secret
from blobsync.config.known_keys import GONE_PLATFORMS, PROGRAM_FORM, SECRET, TEXT, WHOLE, Key, Kind, nearest

# $${NAME} stands for a literal ${NAME}.
_VARIABLE = pattern(r"\$(\$?)\{([A-Za-z_][A-Za-z0-9_]*)\}")
# What the system accepts: it stores "NAME=value", ended by a NUL.
_VARIABLE_NAME = pattern(r"[^=\x00-\x1f\x7f]+")
_SHOWN_CHARS = 80
# What looks like the name of a key; a credential in its place is longer, or ends with "=".
_KEY_FORM = pattern(r"[\w ./-]{1,40}")
_SIZE = pattern(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_PLACEHOLDER = pattern(r"<[^<>]*>|\??x{3,}", re.IGNORECASE)

# Variables that a project file may always use: those meant for its credentials.
_OPEN_VARIABLES = ("AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN")
_OPEN_PREFIX = "BLOBSYNC_"
# The user's own addition to these, as ``user_config`` reads it.
ALLOWED_VARIABLES_VARIABLE = "BLOBSYNC_ALLOWED_VARIABLES"

CODE_KEY = "code_path"
FOLDER_SUFFIX = "_folder"


def is_placeholder(text: str) -> bool:
    """Whether an example's ``<your account>`` or ``xxxx`` was left unchanged."""
    return bool(_PLACEHOLDER.fullmatch(text.strip()))


def described(value: str) -> str:
    """Describe a value that must not be quoted: its first characters and its length."""
    return f"{value[:2] + '...'!a} ({count_text(len(value), 'character')})"


def parse_size(text: str) -> int | None:
    """Bytes of ``50 MB`` (10^6) or ``50 MiB`` (2^20); None if it is no size."""
    match = _SIZE.fullmatch(text.strip())
    if not match or len(match[1]) > 18:
        return None
    number, letter, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** _POWERS[letter.lower()])


def _shown(key: str) -> str:
    """A key in a message; what is no word is described."""
    return key if _KEY_FORM.fullmatch(key) else described(key)


class Checker:
    """Converts one document's raw values to typed ones. ``problems`` and ``warnings`` are the findings.

    ``from_environment`` are the keys whose values contain environment variables, with their names. ``allowed`` is
    called for the variables that the user allows, once another variable is named.
    """

    def __init__(
        self, document: Document, environ: Mapping[str, str], allowed: Callable[[], Collection[str]] = tuple
    ) -> None:
        self.problems: list[ConfigError] = []
        self.warnings: list[str] = []
        self.from_environment: dict[KeyPath, list[str]] = {}
        self._unknown_keys: list[KeyPath] = []
        self._document = document
        self._environ = environ
        self._allowed = allowed
        # The types of the values of each kind, and what reads these further; true and false are no numbers.
        self._readers: Mapping[Kind, tuple[tuple[type, ...], Callable[[KeyPath, Any, Key], Any]]] = {
            Kind.TEXT: ((str, int), self._text),
            Kind.WHOLE: ((int,), self._whole),
            Kind.FLAG: ((bool,), lambda path, raw, key: raw),
            Kind.TEXTS: ((str, list), self._texts),
            Kind.WHOLES: ((list,), lambda path, raw, key: self._items(path, raw, WHOLE)),
            Kind.SIZE: ((str, int), self._size),
            Kind.MAPPING: ((dict,), lambda path, raw, key: self._of_keys(path, raw, key.keys)),
            Kind.MAPPINGS: ((list,), lambda path, raw, key: self._items(path, raw, key._replace(kind=Kind.MAPPING))),
            Kind.TEXT_OR_MAPPING: ((str, int, dict), self._text_or_mapping),
            Kind.ENVIRONMENT: ((dict,), self._environment),
            Kind.FOLDERS: ((dict,), self._folders),
            Kind.PROGRAM: ((str, int), self._program),
        }

    def check(self, keys: Mapping[str, Key]) -> dict[str, Any]:
        """Every valid value, typed; leaves out keys that are null or wrong."""
        return self._of_keys((), self._document.values, keys)

    def problem(self, path: KeyPath, message: str, *, hint: str | None = None) -> None:
        """Add a problem."""
        self.problems.append(self._document.error(path, message, hint=hint))

    def _of_keys(self, path: KeyPath, values: Mapping[str, Any], keys: Mapping[str, Key] | None) -> dict[str, Any]:
        typed: dict[str, Any] = {}
        for name, raw in values.items():
            here = (*path, name)
            key = keys.get(name) if keys is not None else None
            if key is None and keys is not None:
                self._unknown(here, keys)
                continue
            value = self._value(here, raw, key)
            if value is not None:
                typed[name] = value
        return typed

    def _value(self, path: KeyPath, raw: Any, key: Key | None) -> Any:
        if raw is None:
            return None
        if key is None:
            return self._untyped(path, raw)
        value = self._read(path, raw, key)
        if key.choices and value is not None and value not in key.choices:
            # Old platforms are read, but not suggested.
            choices = [choice for choice in key.choices if choice not in GONE_PLATFORMS]
            guess = nearest(value, choices)
            shown = f"'{value}'" if key.quoted else described(value)
            self.problem(
                path,
                f"{shown} is not one of {', '.join(choices)}",
                hint=f"did you mean '{guess}'?" if guess else None,
            )
            return None
        return Secret(value) if key.secret and value is not None else value

    def _read(self, path: KeyPath, raw: Any, key: Key) -> Any:
        types, reader = self._readers[key.kind]
        if isinstance(raw, types) and (not isinstance(raw, bool) or bool in types):
            return reader(path, raw, key)
        if not (isinstance(raw, str) and "${" in raw and self._expand(path, raw, key) is None):
            found = {dict: "a mapping", list: "a list", bool: "true or false", int: "a number", str: "a text"}
            self.problem(path, f"must be {key.kind.value}, not {found.get(type(raw), 'nothing')}")
        return None

    def _items(self, path: KeyPath, raw: list[Any], key: Key) -> tuple[Any, ...]:
        found = [self._read((*path, str(number)), item, key) for number, item in enumerate(raw)]
        return tuple(item for item in found if item is not None)

    def _unknown(self, path: KeyPath, keys: Mapping[str, Key]) -> None:
        guess = nearest(path[-1], keys)
        meant = f"; did you mean '{guess}'?" if guess else ""
        self._unknown_keys.append(path)
        where = f"{self._document.place(path)}: {'.'.join((*path[:-1], _shown(path[-1])))}"
        self.warnings.append(f"{where}: unknown key, ignored{meant}")

    def missing(self, key: str) -> None:
        """Add the problem that a key of the top level is missing; names an unknown key that may be meant for it."""
        alike = next((path for path in self._unknown_keys if len(path) == 1 and nearest(path[-1], [key])), None)
        hint = (
            f"{self._document.place(alike)} has '{_shown(alike[-1])}', which is no key: write {key}" if alike else None
        )
        self.problem((key,), "is missing", hint=hint)

    def _expand(self, path: KeyPath, text: str, key: Key) -> str | None:
        """``text`` with its variables replaced, if this key may have any and the project may use these."""
        before = len(self.problems)

        def replace(match: re.Match[str]) -> str:
            escaped, name = match.groups()
            if escaped:
                return f"${{{name}}}"
            self._check_variable(path, name, key)
            self.from_environment.setdefault(path, []).append(name)
            return self._environ.get(name, "")

        expanded = _VARIABLE.sub(replace, text)
        return expanded if len(self.problems) == before else None

    def _check_variable(self, path: KeyPath, name: str, key: Key) -> None:
        if not key.secret:
            self.problem(
                path,
                f"must not contain ${{{name}}}: variables are expanded in credentials and in env only",
                hint=f"write the value itself, or $${{{name}}} for the literal text",
            )
        elif not self._may_use(name):
            self.problem(
                path,
                f"must not use the environment variable {name}: a project file may use allowed variables only",
                hint=f"if you trust this project with it: export {ALLOWED_VARIABLES_VARIABLE}={name}, "
                "or list it under allowed_variables in your own configuration file",
            )
        elif name not in self._environ:
            self.problem(
                path,
                f"the environment variable {name} is not set",
                hint=f"set it first, for example: export {name}=...",
            )

    def _may_use(self, name: str) -> bool:
        if name in _OPEN_VARIABLES or name.startswith(_OPEN_PREFIX):
            return True
        return name in self._allowed()

    def _text(self, path: KeyPath, raw: str | int, key: Key) -> str | None:
        return self._expand(path, str(raw), key)

    def _program(self, path: KeyPath, raw: str | int, key: Key) -> str | None:
        text = self._text(path, raw, key)
        if text is not None and not PROGRAM_FORM.fullmatch(text):
            self.problem(path, f"{text!a} is neither a program name nor an absolute path", hint="python3.12")
            return None
        return text

    def _whole(self, path: KeyPath, raw: int, key: Key) -> int | None:
        if raw < 0:
            self.problem(path, "must not be negative")
            return None
        return raw

    def _texts(self, path: KeyPath, raw: str | list[Any], key: Key) -> tuple[str, ...]:
        return self._items(path, [raw] if isinstance(raw, str) else raw, key._replace(kind=Kind.TEXT))

    def _size(self, path: KeyPath, raw: str | int, key: Key) -> int | None:
        text = self._text(path, raw, key)
        size = parse_size(text) if text is not None else None
        if size is None:
            self.problem(path, f"must be {key.kind.value}, not {'a text' if isinstance(raw, str) else 'a number'}")
        return size

    def _text_or_mapping(self, path: KeyPath, raw: Any, key: Key) -> Any:
        return self._of_keys(path, raw, key.keys) if isinstance(raw, dict) else self._text(path, raw, key)

    def _environment(self, path: KeyPath, raw: dict[str, Any], key: Key) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, value in raw.items():
            # ACT passes str(value), so an unquoted true arrives as "True". Variables are expanded as in a credential.
            text = str(value) if isinstance(value, bool) else value
            typed = "" if text is None else self._read((*path, name), text, SECRET)
            if not _VARIABLE_NAME.fullmatch(name):
                self.problem(path, f"{name[:_SHOWN_CHARS]!a} cannot be the name of an environment variable")
            elif typed is not None and "\0" in typed:
                self.problem((*path, name), "contains a NUL character, which no environment variable can")
            elif typed is not None:
                found[name] = typed
        return found

    def _folders(self, path: KeyPath, raw: dict[str, Any], key: Key) -> dict[str, Any]:
        entry = Key(Kind.TEXT_OR_MAPPING, keys=key.keys)
        found: dict[str, Any] = {}
        for name, value in raw.items():
            here = (*path, name)
            if name != CODE_KEY and not name.endswith(FOLDER_SUFFIX):
                self._unknown(here, {CODE_KEY: entry, f"{name.partition('_')[0]}{FOLDER_SUFFIX}": entry})
            elif value is None:
                self.problem(here, "is empty: it needs a path")
            elif (typed := self._value(here, value, entry)) is not None:
                found[name] = typed
        return found

    def _untyped(self, path: KeyPath, raw: Any) -> Any:
        """Keep a value that no table describes."""
        if isinstance(raw, str):
            return self._expand(path, raw, TEXT)
        if isinstance(raw, dict):
            return self._of_keys(path, raw, None)
        if isinstance(raw, list):
            return tuple(self._untyped((*path, str(number)), item) for number, item in enumerate(raw))
        return raw


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


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML mapping, plain values, and the origin of every key and list item by its path."""

    file: str
    values: Mapping[str, Any] = field(repr=False)
    origins: Mapping[KeyPath, Origin] = field(repr=False)

    def get(self, path: KeyPath) -> Any:
        """The value at ``path``, None if there is none."""
        here: Any = self.values
        for part in path:
            here = here.get(part) if isinstance(here, Mapping) else None
        return here

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
    values, lines = _parse_nodes(text, file)
    return Document(file, values, {path: Origin(file, line) for path, line in lines.items()})


def parse_texts(text: str) -> Any:
    """The texts, lists and mappings of a document, each text as it is written. Raises ``ValueError``."""
    try:
        return yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506 - it makes nothing else
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _parse_nodes(text: str, file: str) -> tuple[dict[str, Any], dict[tuple[str, ...], int]]:
    """The values of one YAML mapping, and the line of each key and list item by its path.

    Raises ``ConfigError`` with the line; an empty text is an empty mapping.
    """
    try:
        loader = _PlainLoader(text)
        node = loader.get_single_node()
        if node is None or (isinstance(node, yaml.ScalarNode) and not node.value):
            return {}, {}
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError("is not a mapping of keys to values", file=file, line=node.start_mark.line + 1)
        _refuse_explosions(node, file)
        lines = dict(_walk(loader, node, (), file, ()))
        values: dict[str, Any] = loader.construct_document(node)
        return values, lines
    except RecursionError:
        raise ConfigError("is nested too deeply", file=file) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else None
        raise ConfigError(f"is not valid YAML: {_words(error)}", file=file, line=line) from None
    except yaml.YAMLError as error:
        raise ConfigError("is not valid YAML: it contains a character that is not allowed", file=file) from error


def _refuse_explosions(root: yaml.Node, file: str) -> None:
    """Refuse aliases of aliases: each level of a few bytes multiplies the size of the one before."""
    sizes: dict[int, int] = {}
    # Each node once, after those below it.
    todo = [(root, False)]
    while todo:
        node, below_is_done = todo.pop()
        parts = _parts(node)
        if below_is_done:
            # A node whose size is still 0 is one around this node, which `_walk` refuses.
            sizes[id(node)] = 1 + sum(sizes.get(id(part), 0) for part in parts)
            if sizes[id(node)] > _MAX_VALUES:
                line = node.start_mark.line + 1
                raise ConfigError(f"expands to more than {_MAX_VALUES:,} values with its aliases", file=file, line=line)
        elif id(node) not in sizes:
            sizes[id(node)] = 0
            todo.append((node, True))
            todo += [(part, False) for part in parts if id(part) not in sizes]


def _parts(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [each for pair in node.value for each in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


class _PlainLoader(yaml.SafeLoader):
    """PyYAML's safe loader without floats, dates, octal and base-60 numbers; keys are always texts."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        self.flatten_mapping(node)
        return {key.value: self.construct_object(value, deep=deep) for key, value in node.value}

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        # Brackets on one line are read ahead of the nodes, up to 1,024 characters, and closed again before the first.
        if max(self._depth, self.flow_level + len(self.indents)) > _MAX_DEPTH:
            raise RecursionError
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is not None and not self._is_plain(node):
            raise yaml.MarkedYAMLError(
                problem=f"{_shown_tag(node.tag)} is not allowed in a configuration", problem_mark=node.start_mark
            )
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


def _shown_tag(tag: str) -> str:
    return ascii(tag.replace("tag:yaml.org,2002:", "!!"))[1:60].rstrip("'")


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
    return problem


def _walk(
    loader: yaml.SafeLoader, node: yaml.Node, path: tuple[str, ...], file: str, around: tuple[yaml.Node, ...]
) -> Iterator[tuple[tuple[str, ...], int]]:
    """The line of everything below ``node``; refuses duplicate keys and values that contain themselves."""
    if any(node is other for other in around):
        raise ConfigError("refers to itself", file=file, line=node.start_mark.line + 1, key=".".join(path))
    if isinstance(node, yaml.MappingNode):
        _refuse_duplicates(node, path, file)
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
