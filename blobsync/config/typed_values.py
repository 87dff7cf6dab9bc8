"""Values of a configuration file as types: each key checked against the table of ``known_keys``.

``${NAME}`` in a value is replaced by an environment variable that a project's file may use. All problems are collected,
since ``config check`` shows them together. An unknown key is a warning, with the most similar known one. pydantic could
check the types, but adds 85 ms to each command, and its messages name no file or line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from blobsync.base.errors import ConfigError
from blobsync.base.formatting import count_text
from blobsync.base.lazy_regexes import pattern
from blobsync.base.redaction import Secret
from blobsync.config.known_keys import (
    CODE_KEY,
    FOLDER_SUFFIX,
    GONE_PLATFORMS,
    PROGRAM_FORM,
    SECRET,
    TEXT,
    WHOLE,
    Key,
    Kind,
    nearest,
)
from blobsync.config.yaml_document import Document, KeyPath

# What the system accepts: it stores "NAME=value", ended by a NUL.
_VARIABLE_NAME = pattern(r"[^=\x00-\x1f\x7f]+")
_SHOWN_CHARS = 80
# What looks like the name of a key; a credential in its place is longer, or ends with "=".
_KEY_FORM = pattern(r"[\w ./-]{1,40}")
_SIZE = pattern(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_PLACEHOLDER = pattern(r"<[^<>]*>|\??x{3,}", re.IGNORECASE)

# $${NAME} stands for a literal ${NAME}.
_VARIABLE = pattern(r"\$(\$?)\{([A-Za-z_][A-Za-z0-9_]*)\}")
# Variables that a project file may always use: those meant for its credentials.
_OPEN_VARIABLES = ("AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN")
_OPEN_PREFIX = "BLOBSYNC_"
# The user's own addition to these, as ``user_config`` reads it.
ALLOWED_VARIABLES_VARIABLE = "BLOBSYNC_ALLOWED_VARIABLES"


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
    """Converts one document's raw values to typed ones. ``problems`` and ``warnings`` are the findings;
    ``from_environment`` are the keys whose values contain environment variables, with their names.

    ``allowed`` is called for the variables that the user allows, once one is named that not every project may use.
    """

    def __init__(
        self, document: Document, environ: Mapping[str, str], allowed: Callable[[], Collection[str]] = tuple
    ) -> None:
        self.problems: list[ConfigError] = []
        self.warnings: list[str] = []
        self._unknown_keys: list[KeyPath] = []
        self.from_environment: dict[KeyPath, list[str]] = {}
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

    def _expand(self, path: KeyPath, text: str, key: Key) -> str | None:
        """``text`` with its variables replaced; None, and the problems are added, if it may not have one of them."""
        refused = False

        def replace(match: re.Match[str]) -> str:
            nonlocal refused
            escaped, name = match.groups()
            if escaped:
                return f"${{{name}}}"
            refused |= not self._may_have(path, name, key)
            self.from_environment.setdefault(path, []).append(name)
            return self._environ.get(name, "")

        expanded = _VARIABLE.sub(replace, text)
        return None if refused else expanded

    def _may_have(self, path: KeyPath, name: str, key: Key) -> bool:
        """Whether the value of a key may have this variable; else the problem is added."""
        if not key.secret:
            self.problem(
                path,
                f"must not contain ${{{name}}}: variables are expanded in credentials and in env only",
                hint=f"write the value itself, or $${{{name}}} for the literal text",
            )
        elif not (name in _OPEN_VARIABLES or name.startswith(_OPEN_PREFIX) or name in self._allowed()):
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
        else:
            return True
        return False
