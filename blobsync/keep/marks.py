"""Marks: what says, in a container, that a set of files is complete and which files it has.

A mark is the last thing that is written of a set, and only if it is not there yet. Others can write to the container,
so a job believes only the marks with its lineage's seal: they alone are rotated, counted, or the latest. Others can be
restored by name: every name in a mark passes the gate, its numbers are bounded, as is what is read of marks without a
seal, and its files are compared with a listing. Below the container's root, outside of all that maps to local files:

    .blobsync/checkpoints/<entry path>/<lineage>/<set>.json
    .blobsync/checkpoints/<entry path>/.claims/<set>/lineage.json       which one alone writes below that name

The entry's path and the set's name are percent-quoted to one part each. Beside them are the notes of a job's nodes
(:mod:`blobsync.keep.node_messages`). All are sealed: the first line of a document is the seal of the second, which is
the digest of the rest, so what has no seal costs no more than its head, however large it is.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, field
from urllib.parse import quote, unquote

from blobsync.base.errors import BlobNotFoundError, PreconditionFailedError, StorageError
from blobsync.base.locations import at_and_above, below
from blobsync.base.plain_json import made_of, parse_object
from blobsync.base.records import NamedTuple, dataclass
from blobsync.base.seals import HEAD_BYTES, SealKey, within
from blobsync.local.names import blob_problem, local_problem
from blobsync.store.protocol import MAX_BLOB_BYTES, BlobInfo, BlobProperties, BlobReader, BlobStore, Precondition

# The key of a lineage; None where it is not known.
Keys = Callable[[str], SealKey | None]

# A mark of 100,000 files has 20 MB; nothing larger is read.
_MAX_BYTES = 32 << 20
# Of documents without a seal, of one and of all together: marks with 20,000 files, and 80,000.
_MAX_UNSEALED, _MOST_UNSEALED = 4 << 20, 16 << 20
_KIND = "checkpoints"
_DIGEST_BYTES = hashlib.sha256().digest_size * 2 + 1
_HEAD = HEAD_BYTES + _DIGEST_BYTES


class Read(NamedTuple):
    """A document's body, and whether it has the seal; None: it has none, and was not read."""

    body: bytes | None
    is_sealed: bool


class Documents:
    """The documents of a container, with the keys of their lineages."""

    def __init__(self, store: BlobStore, keys: Keys) -> None:
        self._store, self._keys, self._place = store, keys, str(store.container)
        self._unsealed_bytes = 0

    def put(self, name: str, lineage: str, text: str, condition: Precondition) -> None:
        """Seal and write one. Raises the store's errors, and ``StorageError`` without the key."""
        key = self._keys(lineage)
        if key is None:
            raise StorageError(
                f"{name} cannot be sealed: this job came without the key of {lineage}",
                hint="submit it again: blobsync resubmit ID",
            )
        plain = text.encode()
        body = key.seal(_KIND, self._place, name, _digest(plain)) + plain
        md5 = hashlib.md5(body, usedforsecurity=False).digest()
        properties = BlobProperties(content_type="application/json")
        self._store.put(name, body, md5=md5, properties=properties, condition=condition)

    def read(self, name: str, lineage: str, *, unsealed: bool = False) -> Read:
        """Read one; with ``unsealed`` also without the seal of its lineage, within bounds.

        Raises ``BlobNotFoundError``, and ``ValueError`` for one that is too large or is not what was sealed.
        """
        key = self._keys(lineage)
        with self._store.open(name) as reader:
            if reader.info.size > _MAX_BYTES:
                raise ValueError(f"it has {reader.info.size:,} bytes")
            head = _read_up_to(reader, _HEAD)
            said = key.opened(_KIND, self._place, name, head) if key else None
            if said is not None:
                body = _read_up_to(reader, _MAX_BYTES)
                if _digest(body) != said:
                    raise ValueError("it is not what was sealed")
                return Read(body, is_sealed=True)
            if not unsealed:
                return Read(None, is_sealed=False)
            self._count_unsealed(reader.info.size)
            document = head + _read_up_to(reader, _MAX_UNSEALED)
        # Somebody else's seal says nothing here.
        inner = within(document)
        return Read(document if inner is None else inner[_DIGEST_BYTES:], is_sealed=False)

    def _count_unsealed(self, size: int) -> None:
        if size > _MAX_UNSEALED or self._unsealed_bytes + size > _MOST_UNSEALED:
            raise ValueError(f"it has {size:,} bytes and no seal of yours, and what is read of such marks is limited")
        self._unsealed_bytes += size


def _read_up_to(reader: BlobReader, most: int) -> bytes:
    body = bytearray()
    while len(body) < most and (block := reader.read(most - len(body))):
        body += block
    return bytes(body)


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode() + b"\n"


FOLDER = ".blobsync/checkpoints"
VERSION = 1
_VERSION_KEY = "blobsync_checkpoint"
MAX_FILES = 100_000
# The end of the year 9999, in seconds since 1970.
_MAX_TIME = 253_402_300_799
MAX_VALUE = 1e300
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_MD5 = re.compile(r"[0-9a-f]{32}")
_CODE = re.compile(r"[0-9a-f]{0,64}")
_VERSION_PART = re.compile(r"@[0-9A-Za-z-]{1,64}")
# So many marks that are left alone are named.
_MOST_WARNED = 20
# No lineage is called so.
_CLAIMS = ".claims"
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
        # A later version may add fields.
        mark = made_of(cls, values, newer=True)
        _demand_sane(mark)
        return mark


def _demand_sane(mark: Mark) -> None:
    for name in (mark.set, mark.stored):
        if why := local_problem(name):
            raise ValueError(f"its name {name!a} {why}")
    if not any(_is_version(stored, mark.set) for stored in (mark.stored, mark.stored.removeprefix(f"{mark.run_id}/"))):
        raise ValueError(f"{mark.stored!a} is no version of {mark.set!a}")
    if not _ID.fullmatch(mark.run_id) or not _ID.fullmatch(mark.lineage) or not _CODE.fullmatch(mark.code):
        raise ValueError("its run id, its lineage or its code is none")
    step = mark.step or 0
    if not 0 <= step < 10**18 or not 0 <= mark.generation < 10**9 or not 0 < mark.nodes <= MAX_FILES:
        raise ValueError("its step, its generation or its number of nodes is out of bounds")
    if not 0 <= mark.time <= _MAX_TIME or not all(abs(value) <= MAX_VALUE for value in mark.values.values()):
        raise ValueError("its time or one of its values is out of bounds")
    if not 0 < len(mark.files) <= MAX_FILES:
        raise ValueError("it names no files, or too many")
    paths = {each.path for each in mark.files}
    if len(paths) != len(mark.files) or ("" in paths and len(paths) > 1):
        raise ValueError("a file is named twice")
    for each in mark.files:
        demand_sane_file(each)


def _is_version(stored: str, name: str) -> bool:
    """Whether a set of that name may be stored so: as it is called, or as :func:`.checkpoints.stored_names` says."""
    return stored == name or (stored.startswith(name) and _VERSION_PART.fullmatch(stored[len(name) :]) is not None)


def demand_sane_file(file: MarkedFile) -> None:
    """Raise ``ValueError`` for a file of a set that cannot be."""
    if file.path and (why := local_problem(file.path)):
        raise ValueError(f"the name {file.path!a} {why}")
    if not 0 <= file.size <= MAX_BLOB_BYTES or not _MD5.fullmatch(file.md5) or not 0 <= file.node <= MAX_FILES:
        raise ValueError(f"the size, the MD5 or the node of {file.path!a} is none")


class _Seen(NamedTuple):
    """What is known of a mark in the container; ``mark`` is None if it was not read, or is left alone."""

    mark: Mark | None
    is_sealed: bool
    is_left: bool = False


class Marks:
    """The marks of one folder entry in its container; ``warn`` is told of those that cannot be read."""

    def __init__(self, store: BlobStore, path: str, warn: Callable[[str], None], keys: Keys) -> None:
        self._store, self._path, self._warn = store, path, warn
        self._documents = Documents(store, keys)
        self._folder = marks_folder(path)
        # Marks never change: one that was read is not read again.
        self._read_before: dict[tuple[str, str], _Seen] = {}
        self._warned = set[str]()
        self._claimed = set[tuple[str, str]]()

    def lineages(self) -> Mapping[str, tuple[str, ...]]:
        """The lineages that have marked each set, by its stored name. Anybody may have written these names."""
        found: dict[str, tuple[str, ...]] = {}
        for blob in self._store.list_blobs(f"{self._folder}/"):
            lineage, _, name = blob.name[len(self._folder) + 1 :].partition("/")
            if "/" not in name and name.endswith(".json") and _ID.fullmatch(lineage):
                stored = unquote(name.removesuffix(".json"))
                found[stored] = (*found.get(stored, ()), lineage)
        return found

    def of(self, lineage: str) -> list[Mark]:
        """The marks of one lineage, with its seal."""
        return [seen.mark for seen in self._in(lineage, unsealed=False) if seen.mark and seen.is_sealed]

    def unsealed(self, lineage: str) -> list[Mark]:
        """Its marks without the seal: perhaps a colleague's, or of an earlier version, or anybody's."""
        return [seen.mark for seen in self._in(lineage, unsealed=True) if seen.mark and not seen.is_sealed]

    def at(self, lineage: str, stored: str) -> Mark | None:
        """The mark of one set, with a seal or without."""
        return self._look_at(self._marks_name(lineage, stored), lineage, unsealed=True).mark

    def named(self, job: str, *, sealed: bool = True) -> list[Mark]:
        """The marks of a job: of its lineage, else those that it wrote in another's."""
        look = self.of if sealed else self.unsealed
        if found := look(job):
            return found
        known = sorted({lineage for each in self.lineages().values() for lineage in each})
        return [mark for lineage in known for mark in look(lineage) if mark.run_id == job]

    def claim(self, lineage: str, stored: str) -> bool:
        """Whether this lineage alone writes below a set's name: it claimed it, or does now, and it was empty."""
        if (lineage, stored) in self._claimed:
            return True
        name, text = self._claims_name(stored), json.dumps({"lineage": demand_id(lineage)})
        is_ours = self._is_claimed(name, lineage, text)
        if is_ours is None:
            is_ours = not self.listing(stored) and self._make_claim(name, lineage, text)
            # Another node of the job may have claimed it, and begun to write, since the look above.
            is_ours = is_ours or self._is_claimed(name, lineage, text)
        if is_ours:
            self._claimed.add((lineage, stored))
        return bool(is_ours)

    def write(self, mark: Mark) -> bool:
        """Write a mark; False if the set has one already."""
        try:
            name = _demand_name(self._marks_name(mark.lineage, mark.stored), mark.stored)
            self._documents.put(name, mark.lineage, mark.to_json(), Precondition(absent=True))
        except PreconditionFailedError:
            return False
        return True

    def remove(self, mark: Mark) -> None:
        """Remove a mark, then the files that it names, but none at or below a name that has another mark."""
        self._store.delete(self._marks_name(mark.lineage, mark.stored))
        others = {self.blob_of(stored) for stored in self.lineages()}
        etags = {self.blob_of(mark.stored, each.path): each.etag for each in mark.files}
        own = {name: etag for name, etag in etags.items() if others.isdisjoint(at_and_above(name))}
        stays = dict.fromkeys(etags.keys() - own.keys(), "another mark names it, or a folder that it is in")
        if own:
            # Another version, or gone: not this set's any more.
            stays.update(self._store.delete_many(list(own), etags=own))
        for name, why in stays.items():
            self._warn(f"{name} stays in the container: {why}")
        if not stays:
            self._store.delete_many([self._claims_name(mark.stored)])
            self._claimed.discard((mark.lineage, mark.stored))

    def mismatch(self, mark: Mark) -> str:
        """What of a set in the container is not as its mark says; empty if all is."""
        there = self.listing(mark.stored)
        for each in mark.files:
            name = self.blob_of(mark.stored, each.path)
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
        root = self.blob_of(stored)
        found = {blob.name[len(root) + 1 :]: blob for blob in self._store.list_blobs(f"{root}/")}
        # Without the slash it is also all of the sets whose names begin so; a blob of that very name is the first.
        alone = None if found else next(iter(self._store.list_blobs(root)), None)
        return {"": alone} if alone and alone.name == root else found

    def blob_of(self, stored: str, path: str = "") -> str:
        """The blob of a file of a set, by the set's name in the container."""
        return below(self._path, below(stored, path))

    # -- inside -------------------------------------------------------------------------------------------------

    def _marks_name(self, lineage: str, stored: str) -> str:
        return f"{self._folder}/{lineage}/{quote(stored, safe='')}.json"

    def _claims_name(self, stored: str) -> str:
        return _demand_name(f"{self._folder}/{_CLAIMS}/{quote(stored, safe='')}/lineage.json", stored)

    def _make_claim(self, name: str, lineage: str, text: str) -> bool:
        with suppress(PreconditionFailedError):
            self._documents.put(name, lineage, text, Precondition(absent=True))
            return True
        return False

    def _is_claimed(self, name: str, lineage: str, text: str) -> bool | None:
        """Whether a claim is the lineage's own; None: there is none. Anybody's other one stops us."""
        try:
            return self._documents.read(name, lineage).body == text.encode()
        except BlobNotFoundError:
            return None
        except ValueError:
            return False

    def _in(self, lineage: str, *, unsealed: bool) -> Iterator[_Seen]:
        prefix = f"{self._folder}/{demand_id(lineage)}/"
        for blob in self._store.list_blobs(prefix):
            if "/" in blob.name[len(prefix) :] or not blob.name.endswith(".json"):
                continue
            seen = self._read_before.get((blob.name, blob.etag))
            if seen is None or (unsealed and not (seen.mark or seen.is_left)):
                seen = self._read_before[blob.name, blob.etag] = self._look_at(blob.name, lineage, unsealed=unsealed)
            yield seen

    def _look_at(self, name: str, lineage: str, *, unsealed: bool) -> _Seen:
        try:
            found = self._documents.read(name, lineage, unsealed=unsealed)
            if found.body is None:
                return _Seen(None, is_sealed=False)
            mark = Mark.from_json(found.body)
            if mark.lineage != lineage or self._marks_name(lineage, mark.stored) != name:
                raise ValueError("it is another set's")
        except BlobNotFoundError:
            # Rotated since the listing.
            return _Seen(None, is_sealed=False)
        except ValueError as error:
            self._left_alone(name, str(error))
            return _Seen(None, is_sealed=False, is_left=True)
        return _Seen(mark, found.is_sealed)

    def _left_alone(self, name: str, why: str) -> None:
        """Said once: it is looked at in each round. Somebody may have put any number there."""
        if name not in self._warned and len(self._warned) <= _MOST_WARNED:
            self._warned.add(name)
            self._warn(f"{name} is left alone: {why}" if len(self._warned) <= _MOST_WARNED else "so are more of them")


def _demand_name(name: str, stored: str) -> str:
    """The name of a document that is to be written. Raises ``StorageError`` if no blob can have it."""
    if why := blob_problem(name):
        raise StorageError(f"the checkpoint {stored!a} cannot be marked: the mark's name {why}")
    return name


def marks_folder(path: str) -> str:
    """The folder in the container of what belongs to the sets of a folder entry."""
    return f"{FOLDER}/{quote(path, safe='') or _ROOT}"


def demand_id(lineage: str) -> str:
    """A job's id. Raises ``ValueError`` for anything else."""
    if not _ID.fullmatch(lineage):
        raise ValueError(f"{lineage!a} is no id of a job")
    return lineage
