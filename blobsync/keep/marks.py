"""Marks: what says, in a container, that a set of files is complete and which files it has.

A mark is the last thing that is written of a set, and only if it is not there yet. Colleagues' jobs read it, so it has
no seal: every name in it passes the gate, its numbers are bounded, and its files are compared with a listing before
anything is believed. Below the container's root, outside of all that maps to local files:

    .blobsync/checkpoints/<entry path>/<lineage>/<set>.json

The entry's path and the set's name are percent-quoted to one part each. Beside them are the notes of a job's nodes
(:mod:`blobsync.keep.notes`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import quote, unquote

from blobsync.base.errors import BlobNotFoundError, PreconditionFailedError, StorageError
from blobsync.base.plain_json import demand_types, parse_object
from blobsync.local.names import blob_problem, local_problem
from blobsync.store.protocol import (
    MAX_BLOB_BYTES,
    BlobInfo,
    BlobProperties,
    BlobStore,
    Precondition,
)

FOLDER = ".blobsync/checkpoints"
VERSION = 1
_VERSION_KEY = "blobsync_checkpoint"
# A mark of 100,000 files has 20 MB; nothing larger is read.
_MAX_BYTES = 32 << 20
MAX_FILES = 100_000
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_MD5 = re.compile(r"[0-9a-f]{32}")
_CODE = re.compile(r"[0-9a-f]{0,64}")
# A container's root as one part of a name: an entry's path has no slash at its ends.
_ROOT = "%2F"


@dataclass(frozen=True, slots=True)
class MarkedFile:
    """A file of a set: its path below it (empty: the set is one file), bytes, MD5 (hexadecimal), ETag, and its node."""

    path: str
    size: int
    md5: str
    etag: str
    node: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """A set that was verified in the container.

    ``set`` is its name for the program, ``stored`` the one below the entry's path. ``time`` is when its last file
    changed, in seconds since 1970. ``generation`` counts the starts of the lineage's jobs. ``values`` are what
    ``keep_best`` compares; ``nodes`` is how many nodes wrote it.
    """

    set: str
    stored: str
    step: int | None
    time: float
    run_id: str
    lineage: str
    generation: int = 0
    code: str = ""
    values: Mapping[str, float] = field(default_factory=dict)
    nodes: int = 1
    files: tuple[MarkedFile, ...] = ()

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(each.size for each in self.files)

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps({_VERSION_KEY: VERSION, **asdict(self)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Mark:
        """The inverse of :meth:`to_json`. Raises ``ValueError`` for what is invalid, unsafe or out of bounds."""
        values = parse_object(text)
        if values.pop(_VERSION_KEY, None) != VERSION:
            raise ValueError("not a mark of this version of blobsync")
        try:
            files = tuple(MarkedFile(**_known(MarkedFile, each)) for each in values.pop("files"))
            mark = cls(**_known(cls, values), files=files)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a mark: {error}") from error
        demand_types(mark)
        _demand_sane(mark)
        return mark


def _known(kind: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Without what a later version may add."""
    return {name: values[name] for name in kind.__dataclass_fields__ if name in values}


def _demand_sane(mark: Mark) -> None:
    for name in (mark.set, mark.stored):
        if why := local_problem(name):
            raise ValueError(f"its name {name!a} {why}")
    stored = mark.stored.removeprefix(f"{mark.run_id}/")
    if mark.set not in (stored, mark.stored) and not stored.startswith(f"{mark.set}@"):
        raise ValueError(f"{mark.stored!a} is no version of {mark.set!a}")
    if not _ID.fullmatch(mark.run_id) or not _ID.fullmatch(mark.lineage) or not _CODE.fullmatch(mark.code):
        raise ValueError("its run id, its lineage or its code is none")
    step = mark.step or 0
    if not 0 <= step < 10**18 or not 0 <= mark.generation < 10**9 or not 0 < mark.nodes <= MAX_FILES:
        raise ValueError("its step, its generation or its number of nodes is out of bounds")
    if not 0 < len(mark.files) <= MAX_FILES:
        raise ValueError("it names no files, or too many")
    paths = {each.path for each in mark.files}
    if len(paths) != len(mark.files) or ("" in paths and len(paths) > 1):
        raise ValueError("a file is named twice")
    for each in mark.files:
        demand_sane_file(each)


def demand_sane_file(file: MarkedFile) -> None:
    """Raise ``ValueError`` for a file of a set that cannot be."""
    demand_types(file)
    if file.path and (why := local_problem(file.path)):
        raise ValueError(f"the name {file.path!a} {why}")
    if not 0 <= file.size <= MAX_BLOB_BYTES or not _MD5.fullmatch(file.md5) or file.node < 0:
        raise ValueError(f"the size, the MD5 or the node of {file.path!a} is none")


class Marks:
    """The marks of one folder entry in its container; ``warn`` is told of those that cannot be read."""

    def __init__(self, store: BlobStore, path: str, warn: Callable[[str], None]) -> None:
        self._store, self._path, self._warn = store, path, warn
        self._folder = marks_folder(path)
        # Marks never change: one that was read is not read again.
        self._read_before: dict[tuple[str, str], Mark] = {}

    def lineages(self) -> Mapping[str, tuple[str, ...]]:
        """The lineages that have marked each set, by its stored name."""
        found: dict[str, tuple[str, ...]] = {}
        for blob in self._store.list_blobs(f"{self._folder}/"):
            lineage, _, name = blob.name[len(self._folder) + 1 :].partition("/")
            if "/" not in name and name.endswith(".json"):
                stored = unquote(name.removesuffix(".json"))
                found[stored] = (*found.get(stored, ()), lineage)
        return found

    def of(self, lineage: str) -> list[Mark]:
        """The marks of one lineage."""
        demand_id(lineage)
        prefix = f"{self._folder}/{lineage}/"
        found = []
        for blob in self._store.list_blobs(prefix):
            if "/" not in blob.name[len(prefix) :] and blob.name.endswith(".json"):
                mark = self._read_mark(blob, lineage)
                found += [mark] if mark else []
        return found

    def named(self, job: str) -> list[Mark]:
        """The marks of a job: of its lineage, else those that it wrote in another's."""
        if found := self.of(job):
            return found
        known = sorted({lineage for each in self.lineages().values() for lineage in each if _ID.fullmatch(lineage)})
        return [mark for lineage in known for mark in self.of(lineage) if mark.run_id == job]

    def write(self, mark: Mark) -> bool:
        """Write a mark; False if the set has one already."""
        try:
            put_document(self._store, self._name_of(mark), mark.to_json().encode(), Precondition(absent=True))
        except PreconditionFailedError:
            return False
        return True

    def remove(self, mark: Mark) -> None:
        """Remove a mark, then the files that it names, unless another lineage has marked the same ones."""
        self._store.delete(self._marks_name(mark))
        if any(lineage != mark.lineage for lineage in self.lineages().get(mark.stored, ())):
            return
        etags = {self.blob_of(mark, each.path): each.etag for each in mark.files}
        for name, why in self._store.delete_many(list(etags), etags=etags).items():
            # Another version, or gone: not this set's any more.
            self._warn(f"{name} stays in the container: {why}")

    def mismatch(self, mark: Mark) -> str:
        """What of a set in the container is not as its mark says; empty if all is."""
        there = self.listing(mark.stored)
        for each in mark.files:
            name = self.blob_of(mark, each.path)
            blob = there.get(each.path)
            if blob is None:
                return f"{name} is missing"
            if blob.size != each.size:
                return f"{name} has {blob.size:,} bytes, not {each.size:,}"
            if blob.etag != each.etag and (blob.md5 is None or blob.md5.hex() != each.md5):
                return f"{name} has other content"
        return ""

    def listing(self, stored: str) -> Mapping[str, BlobInfo]:
        """What is in the container below a set's name there, by paths below it (``""``: a blob of that very name)."""
        root = "/".join(part for part in (self._path, stored) if part)
        return {
            blob.name[len(root) + 1 :]: blob
            for blob in self._store.list_blobs(root)
            if blob.name == root or blob.name.startswith(f"{root}/")
        }

    def blob_of(self, mark: Mark, path: str) -> str:
        """The blob of a file of a set."""
        return "/".join(part for part in (self._path, mark.stored, path) if part)

    # -- inside -------------------------------------------------------------------------------------------------

    def _marks_name(self, mark: Mark) -> str:
        return f"{self._folder}/{mark.lineage}/{quote(mark.stored, safe='')}.json"

    def _name_of(self, mark: Mark) -> str:
        """The name of a mark that is to be written. Raises ``StorageError`` if no blob can have it."""
        name = self._marks_name(mark)
        if why := blob_problem(name):
            raise StorageError(f"the checkpoint {mark.stored!a} cannot be marked: the mark's name {why}")
        return name

    def _read_mark(self, blob: BlobInfo, lineage: str) -> Mark | None:
        if known := self._read_before.get((blob.name, blob.etag)):
            return known
        try:
            mark = Mark.from_json(read_document(self._store, blob.name))
        except BlobNotFoundError:
            # Rotated since the listing.
            return None
        except ValueError as error:
            self._warn(f"the mark {blob.name} is left alone: {error}")
            return None
        if mark.lineage != lineage or self._marks_name(mark) != blob.name:
            self._warn(f"the mark {blob.name} is left alone: it is another set's")
            return None
        self._read_before[blob.name, blob.etag] = mark
        return mark


def marks_folder(path: str) -> str:
    """The folder in the container of what belongs to the sets of a folder entry."""
    return f"{FOLDER}/{quote(path, safe='') or _ROOT}"


def put_document(store: BlobStore, name: str, body: bytes, condition: Precondition) -> None:
    """Write a mark, or a note of a node."""
    md5 = hashlib.md5(body, usedforsecurity=False).digest()
    store.put(name, body, md5=md5, properties=BlobProperties(content_type="application/json"), condition=condition)


def read_document(store: BlobStore, name: str) -> bytes:
    """Read one. Raises ``BlobNotFoundError``, and ``ValueError`` for one that is too large."""
    with store.open(name) as reader:
        if reader.info.size > _MAX_BYTES:
            raise ValueError(f"it has {reader.info.size:,} bytes")
        body = bytearray()
        while block := reader.read(_MAX_BYTES - len(body) + 1):
            body += block
            if len(body) > _MAX_BYTES:
                raise ValueError("it is too large")
        return bytes(body)


def demand_id(lineage: str) -> str:
    """A job's id. Raises ``ValueError`` for anything else."""
    if not _ID.fullmatch(lineage):
        raise ValueError(f"{lineage!a} is no id of a job")
    return lineage
