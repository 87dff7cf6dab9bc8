"""Reads the values of one JSON file by name, and finds the keys that were not read."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from blobsync.base.errors import ConfigError, ConfigNotFoundError
from blobsync.base.records import dataclass
from blobsync.config.known_keys import nearest
from blobsync.config.typed_values import is_placeholder
from blobsync.config.yaml_document import Document, KeyPath, read_document

# In their place `az batchai job create` put the user's account and its key, from the variables of these names.
# https://github.com/Azure/BatchAI, documentation/using-azure-cli-20.md
_MARK = re.compile(r"<(AZURE_BATCHAI_STORAGE_(?:ACCOUNT|KEY))>")


@dataclass(slots=True)
class ReadKeys:
    """The keys that were read so far, and notes about others."""

    paths: set[KeyPath] = field(default_factory=set)
    asked: dict[KeyPath, set[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class JsonPart:
    """One object of a JSON file. Errors are ``ConfigError`` with file, line and key; no value that may be secret is
    quoted."""

    document: Document = field(repr=False)
    path: KeyPath
    values: Mapping[str, Any] = field(repr=False)
    environ: Mapping[str, str] = field(repr=False)
    read: ReadKeys = field(repr=False)

    def error(self, name: str, message: str, *, hint: str | None = None) -> ConfigError:
        """What is wrong with a key, or (empty name) with this object."""
        return self.document.error((*self.path, *([name] if name else [])), message, hint=hint)

    def sentence(self, name: str, reason: str) -> str:
        """A sentence about a key, with its line."""
        path = (*self.path, name)
        return f"{self.document.place(path)}: {'.'.join(path)}: {reason}"

    def note(self, name: str, reason: str) -> None:
        """Add a note about a key that is known and read."""
        self.read.notes.append(self.sentence(name, reason))

    def ignore(self, name: str, reason: str) -> None:
        """Name a key, with all that is below it, that has no effect here."""
        if self._take(name) is not None:
            self.read.paths.add((*self.path, name, "*"))
            self.note(name, f"has no effect: {reason}")

    def refuse(self, name: str, reason: str, *, hint: str | None = None) -> None:
        """Raise where the key is there."""
        if self._take(name) is not None:
            raise self.error(name, reason, hint=hint)

    def has(self, name: str) -> bool:
        """Whether the key is there, and not null."""
        return self.values.get(name) is not None

    def text(self, name: str, default: str = "") -> str:
        """A text; one that is missing is ``default``."""
        raw = self._take(name)
        if raw is None:
            return default
        if not isinstance(raw, str):
            raise self.error(name, "must be a text")
        raw = _MARK.sub(lambda mark: self._variable(name, mark[1]), raw)
        if is_placeholder(raw):
            raise self.error(name, "still has the example's placeholder: fill in your own")
        if any(ord(letter) < 32 and letter not in "\t\n" for letter in raw):
            raise self.error(name, "contains a control character")
        return raw

    def demanded(self, name: str) -> str:
        """A text that must be there."""
        if not (text := self.text(name)):
            raise self.error("" if not self.has(name) else name, f"needs {name}")
        return text

    def one_of(self, name: str, *choices: str) -> str:
        """One of these words, in any case; empty where the key is missing."""
        text = self.text(name)
        found = {choice.lower(): choice for choice in choices}.get(text.lower(), "")
        if text and not found:
            raise self.error(name, f"is not one of {', '.join(choices)}")
        return found

    def whole(self, name: str, default: int | None = None) -> int | None:
        """A whole number of at least 1."""
        raw = self._take(name)
        if raw is None:
            return default
        if not isinstance(raw, int) or isinstance(raw, bool):
            raise self.error(name, "must be a whole number")
        if not 1 <= raw <= 65_536:
            raise self.error(name, f"is {raw}, and must be from 1 to 65,536")
        return raw

    def part(self, name: str) -> JsonPart | None:
        """An object; None where it is missing."""
        raw = self._take(name)
        if raw is None:
            return None
        if not isinstance(raw, Mapping):
            raise self.error(name, "must be an object")
        return JsonPart(self.document, (*self.path, name), raw, self.environ, self.read)

    def parts(self, name: str) -> Iterator[JsonPart]:
        """The objects of a list."""
        raw = self._take(name)
        if raw is None:
            return
        if not isinstance(raw, list):
            raise self.error(name, "must be a list")
        for number, item in enumerate(raw):
            path = (*self.path, name, str(number))
            if not isinstance(item, Mapping):
                raise self.document.error(path, "must be an object")
            self.read.paths.add(path)
            yield JsonPart(self.document, path, item, self.environ, self.read)

    def demand_all_read(self) -> None:
        """Raise for the first key that was not read: its name may be misspelled."""
        for path in _said(self.values, self.path):
            covering = ((*path[:size], "*") for size in range(1, len(path) + 1))
            if self.read.paths.isdisjoint((path, *covering)):
                known = self.read.asked.get(path[:-1], set())
                guess = nearest(path[-1], known)
                hint = f"did you mean '{guess}'?" if guess else "remove it, if the job does not need it"
                raise self.document.error(path, "is not a key of Batch AI's API 2018-05-01", hint=hint)

    def _take(self, name: str) -> Any:
        path = (*self.path, name)
        self.read.paths.add(path)
        self.read.asked.setdefault(self.path, set()).add(name)
        return self.values.get(name)

    def _variable(self, name: str, variable: str) -> str:
        value = self.environ.get(variable, "")
        if not value:
            hint = f"export {variable}=..., or write its value in the place of <{variable}>"
            raise self.error(name, f"needs the environment variable {variable}", hint=hint)
        return value


# The place of what was read from no file.
NOWHERE = JsonPart(Document("", {}, {}), (), {}, {}, ReadKeys())


def _said(value: Any, path: KeyPath) -> Iterator[KeyPath]:
    """Every key below that says something, objects before what they hold.

    `az` printed all keys of an object, those without a value as null, and beside the id of a resource its group.
    """
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for name, below in items:
        if below is not None and not (name == "resourceGroup" and "id" in value):
            yield (*path, str(name))
            yield from _said(below, (*path, str(name)))


def open_json(path: Path, environ: Mapping[str, str]) -> JsonPart:
    """The object that a file holds. Raises ``ConfigError`` and ``ConfigNotFoundError``."""
    document = read_document(path, str(path))
    if not document.values:
        raise ConfigError("is empty", file=str(path))
    return JsonPart(document, (), document.values, environ, ReadKeys())


def inner_properties(part: JsonPart, what: str, marks: Collection[str]) -> JsonPart:
    """The object ``properties``; a whole request or response of the API is accepted, too.

    `az` printed jobs and clusters flat, without ``properties``: so an object with one of ``marks`` is taken. ``what``
    the file is to be, for messages.
    """
    inner = part
    for name in ("parameters", "parameters"):
        if inner.has(name) and not inner.has("properties"):
            found = inner.part(name)
            inner = found or inner
    for outer in (part,) if inner is part else (part, inner):
        # For editors: it says nothing of the job.
        outer.text("$schema")
        for name in ("resourceGroupName", "workspaceName", "experimentName", "jobName", "clusterName"):
            outer.ignore(name, "Batch AI's resources are gone")
        for name in ("subscriptionId", "resourceGroup", "api-version", "id", "name", "type", "location", "tags"):
            outer.ignore(name, "Batch AI's resources are gone")
        outer.ignore("responses", "they are answers of the service")
    found = inner.part("properties") or (inner if inner.values.keys() & set(marks) else None)
    if found is None:
        raise ConfigNotFoundError(
            f"is no {what} of Batch AI: it has neither properties nor {', '.join(marks)}",
            file=part.document.file,
            hint="docs/batchai.md shows one",
        )
    return found
