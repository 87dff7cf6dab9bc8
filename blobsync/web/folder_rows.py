"""The names of a folder as rows of a table: which are shown, in which order, and what is said of each. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from blobsync.project.folders import FolderName, FolderStatus

_UPLOAD = ("local_only", "changed_here")
_DOWNLOAD = ("remote_only", "changed_there")
_CONFLICT = ("differs", "unknown", "damaged", "unreadable")
# What may be shown: the word in the address -> its name, and the classes of files.
SHOWN = MappingProxyType(
    {
        "": ("Everything", ()),
        "differs": ("What differs", (*_UPLOAD, *_DOWNLOAD, *_CONFLICT)),
        "upload": ("To upload", _UPLOAD),
        "download": ("To download", _DOWNLOAD),
        "conflict": ("In conflict", _CONFLICT),
        "same": ("In sync", ("equal",)),
    }
)
# The class of a file -> the colour and the words of its badge.
_WORDS = {
    "equal": ("good", "in sync"),
    "local_only": ("up", "only here"),
    "changed_here": ("up", "changed here"),
    "remote_only": ("down", "only in the container"),
    "changed_there": ("down", "newer in the container"),
    "differs": ("warn", "in conflict"),
    "unknown": ("warn", "never compared"),
    "damaged": ("bad", "damaged"),
    "unreadable": ("bad", "unreadable"),
    "left_out": ("", "left out"),
}
# By what rows can be sorted; folders come first by name only.
COLUMNS: MappingProxyType[str, tuple[str, Callable[[FolderName], Any]]] = MappingProxyType(
    {
        "name": ("Name", lambda each: (not each.is_folder, each.name)),
        "state": ("State", lambda each: _weight(each)),
        "here": ("Here", lambda each: each.here.bytes),
        "there": ("Container", lambda each: each.there.bytes),
        "modified": ("Modified here", lambda each: each.modified or 0.0),
    }
)


@dataclass(frozen=True, slots=True)
class FolderRow:
    """One name; ``badges`` are the class and the words of each."""

    entry: FolderName
    badges: tuple[tuple[str, str], ...]
    uploads: bool
    downloads: bool
    in_conflict: bool


@dataclass(frozen=True, slots=True)
class FolderView:
    """The rows that were asked for, and the files and bytes of the whole folder."""

    rows: tuple[FolderRow, ...]
    files_here: int
    bytes_here: int
    files_there: int
    bytes_there: int


def folder_view(status: FolderStatus, show: str, text: str, sort: str) -> FolderView:
    """``show`` and ``sort`` as in the address; ``text`` is a part of a name, in whatever case."""
    # It may grow at this moment.
    names = list(status.names.values())
    classes, wanted = set(SHOWN[show][1]), text.casefold()
    chosen = [
        each
        for each in names
        if (not classes or classes & each.states.keys()) and (not wanted or wanted in each.name.casefold())
    ]
    chosen.sort(key=COLUMNS["name"][1])
    chosen.sort(key=COLUMNS[sort.removeprefix("-") or "name"][1], reverse=sort.startswith("-"))
    return FolderView(
        tuple(map(_row, chosen)),
        sum(each.here.files for each in names),
        sum(each.here.bytes for each in names),
        sum(each.there.files for each in names),
        sum(each.there.bytes for each in names),
    )


def _row(entry: FolderName) -> FolderRow:
    up, down, conflict = (_count(entry, classes) for classes in (_UPLOAD, _DOWNLOAD, _CONFLICT))
    badges = tuple(_folder_badges(entry)) if entry.is_folder else tuple(_WORDS[kind] for kind in entry.states)
    return FolderRow(entry, badges, up > 0, down > 0, conflict > 0)


def _folder_badges(entry: FolderName) -> Iterator[tuple[str, str]]:
    counts = (("warn", _CONFLICT, "in conflict"), ("up", _UPLOAD, "to upload"), ("down", _DOWNLOAD, "to download"))
    told = [(look, f"{count:,} {words}") for look, classes, words in counts if (count := _count(entry, classes))]
    yield from told
    if not told:
        yield _WORDS["equal"] if entry.states.get("equal") else _WORDS["left_out"]


def _count(entry: FolderName, classes: tuple[str, ...]) -> int:
    return sum(entry.states.get(each, 0) for each in classes)


def _weight(entry: FolderName) -> tuple[int, int, int]:
    """Conflicts first, then what is to move."""
    return (-_count(entry, _CONFLICT), -_count(entry, _UPLOAD), -_count(entry, _DOWNLOAD))
