"""Locks: the files that a folder of a container held, written into the project, to be committed.

``aux_data/locks/PATH.lock`` is YAML: where the files are, how many, and the SHA-256 of their sorted list. The list is
beside it, compressed, or, if it is long, in the container, under its digest. A line is the path below PATH, the size,
the MD5, the ETag and the version's id, with tabs between them. The digest covers the first three:

    zcat PATH.lock.gz | cut -f 1-3 | sha256sum

A lock comes with a clone, and a long list out of a container that others write to. So whatever is read passes
:func:`parse_lock` and :func:`unpack`, which check every name, the order, the counts and the digest before any of it
counts, in bounded memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from blobsync.base.errors import BlobsyncError, ConfigError, LockError
from blobsync.base.file_states import LocalState
from blobsync.base.lazy_regexes import pattern
from blobsync.base.locations import at_and_above
from blobsync.base.plain_json import made_of
from blobsync.base.records import NamedTuple, dataclass
from blobsync.config.project_root import LOCK_FOLDER
from blobsync.config.yaml_document import parse_document
from blobsync.local.files import LocalFolder, SourceFolder
from blobsync.local.names import OWN_BLOBS, local_problem, relative_name
from blobsync.local.sorted_runs import Packing, Spill, Spool

SUFFIX = ".lock"
# Files from which on the list is in the container: git keeps each version of it as a whole.
MOST_BESIDE = 100_000
# Bytes of a lock and of its list, and files: more than any folder has that somebody locks as one.
MOST_TEXT = 64 * 1024
MOST_PACKED = 1 << 30
_MOST_FILES = 50_000_000
# A name has up to 1,024 characters of up to 4 bytes.
_LONGEST_LINE = 8 * 1024
_PIECE = 1 << 20
_VERSION = 1
_DIGEST = pattern(r"[0-9a-f]{64}")
# Size, MD5, ETag (as the service returns it, without quotes: see ``store.rest.xml``) and version.
_FACTS = pattern(r"([0-9]{1,15})\t([0-9a-f]{32})\t([\x21\x23-\x7e]{0,256})\t([0-9A-Za-z:.\-]{0,64})")
_FIELDS = 5
_BESIDE, _FAR = "beside this file", "in the container"


class LockedFile(NamedTuple):
    """A line of a list: ``path`` is below the lock's, empty if the lock is of one file."""

    path: str
    size: int
    md5: bytes
    etag: str = ""
    version: str = ""


# On the disk a file is a plain tuple.
_PACKED = Packing(tuple, LockedFile._make)


@dataclass(frozen=True, slots=True)
class Lock:
    """What a lock says; ``digest`` is the SHA-256 of the list. ``folder`` is the blob or folder in the container."""

    path: str
    digest: str
    files: int
    bytes: int
    account: str
    container: str
    folder: str
    is_far: bool = False

    @property
    def far_name(self) -> str:
        """The blob that has the list, if that is long."""
        return f"{OWN_BLOBS}locks/{self.digest}.gz"


class Packed(NamedTuple):
    """A list, compressed: equal lists have equal ``data``. ``size`` is that of all files together, in bytes."""

    digest: str
    files: int
    size: int
    data: bytes


def lock_name(path: str) -> str:
    """The lock of ``path``, from the project's root."""
    return f"{LOCK_FOLDER}/{path}{SUFFIX}"


def list_name(path: str) -> str:
    """The list beside it."""
    return f"{lock_name(path)}.gz"


def lock_above(root: Path, path: str) -> str | None:
    """The path of the lock that covers ``path``: its own, or that of the nearest folder above; None without one."""
    return next((each for each in at_and_above(path) if (root / lock_name(each)).is_file()), None)


def name_problem(path: str) -> str | None:
    """Why no list can have this name."""
    if "\t" in path or "\n" in path:
        return "contains a tab or a line break"
    return local_problem(path)


def digest_of(files: Iterable[LockedFile]) -> str:
    """The digest of a list of these files, which come in the order of their paths."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.path}\t{file.size}\t{file.md5.hex()}\n".encode())
    return digest.hexdigest()


def locks_in(root: Path, path: str) -> Iterator[str]:
    """The paths of the locks at or below ``path``, in order. Those that links lead to are left out."""
    folder = root / LOCK_FOLDER / path
    if os.path.realpath(folder) != os.path.join(os.path.realpath(root), LOCK_FOLDER, path):
        return
    if (root / lock_name(path)).is_file():
        yield path
    for above, _, names in sorted(os.walk(folder)):
        inner = os.path.relpath(above, root / LOCK_FOLDER)
        yield from (f"{inner}/{name.removesuffix(SUFFIX)}" for name in sorted(names) if name.endswith(SUFFIX))


def pack(files: Iterable[LockedFile]) -> Packed:
    """The list of these files, in the order of their paths."""
    digest, deflate, parts = hashlib.sha256(), zlib.compressobj(9, wbits=31), list[bytes]()
    count = size = 0
    for file in files:
        head = f"{file.path}\t{file.size}\t{file.md5.hex()}"
        digest.update(f"{head}\n".encode())
        parts.append(deflate.compress(f"{head}\t{file.etag}\t{file.version}\n".encode()))
        count += 1
        size += file.size
    return Packed(digest.hexdigest(), count, size, b"".join([*parts, deflate.flush()]))


def lock_text(lock: Lock) -> str:
    """The lock's file. It has no time: a lock that says the same is the same file."""
    values = {
        "blobsync_lock": _VERSION,
        "path": lock.path,
        "sha256": lock.digest,
        "files": lock.files,
        "bytes": lock.bytes,
        "account": lock.account,
        "container": lock.container,
        "folder": lock.folder,
        "list": _FAR if lock.is_far else _BESIDE,
    }
    # Every JSON text is one of YAML, too.
    lines = (f"{name}: {json.dumps(value, ensure_ascii=False)}\n" for name, value in values.items())
    return "# Written by 'blobsync lock'; 'blobsync d --locked' brings exactly these files.\n" + "".join(lines)


def parse_lock(text: bytes, shown: str, path: str | None = None) -> Lock:
    """The lock in a file's ``text``, of ``path`` if given; ``shown`` is the file for messages. Raises ``LockError``."""
    try:
        values = parse_document(text.decode(), shown).values
        made = _lock(values)
    except ConfigError as error:
        raise _refused(shown, error.message) from error
    except UnicodeDecodeError as error:
        raise _refused(shown, "it is not UTF-8 text") from error
    except ValueError as error:
        raise _refused(shown, str(error)) from error
    if path is not None and made.path != path:
        raise _refused(shown, f"it is of {made.path!a}, not of {path!a}")
    return made


def _lock(values: Mapping[str, Any]) -> Lock:
    if values.get("blobsync_lock") != _VERSION:
        raise ValueError(f"it is no lock of version {_VERSION}")
    where = values.get("list")
    # What is no digest is refused below.
    lock = made_of(Lock, {**values, "digest": str(values.get("sha256")), "is_far": where == _FAR}, newer=True)
    if not 0 <= lock.files <= _MOST_FILES or not 0 <= lock.bytes < 10**18:
        raise ValueError(f"it says that it has {lock.files:,} files, {lock.bytes:,} bytes, which no lock may have")
    if why := name_problem(lock.path):
        raise ValueError(f"its path {why}")
    if not _DIGEST.fullmatch(lock.digest) or where not in (_BESIDE, _FAR):
        raise ValueError("its sha256 or list is not what blobsync writes")
    return lock


def _refused(shown: str, why: str) -> LockError:
    hint = "restore it with git, or make it again: blobsync lock PATH"
    return LockError(f"{shown} is not a lock to go by: {why}", hint=hint, path=shown)


def unpack(data: bytes, lock: Lock, shown: str, spill: Spill) -> Iterable[LockedFile]:
    """The files of a list, to be read any number of times. Raises ``LockError`` unless all is as the lock says."""
    rows, digest, size, last = Spool(spill, _PACKED), hashlib.sha256(), 0, None
    try:
        for line in _lines(data):
            file, head = _file_in(line)
            if (last is not None and file.path <= last) or len(rows) == lock.files:
                raise ValueError(f"line {len(rows) + 1:,} is out of order, or one too many")
            if not file.path and lock.files != 1:
                raise ValueError(f"line {len(rows) + 1:,} has no name")
            last = file.path
            digest.update(head + b"\n")
            size += file.size
            rows.append(file)
    except (ValueError, zlib.error) as error:
        raise _refused(shown, f"its list cannot be read: {error}") from error
    if (len(rows), size, digest.hexdigest()) != (lock.files, lock.bytes, lock.digest):
        raise _refused(shown, "its list is not the one that it names by its sha256")
    return rows


def _lines(data: bytes) -> Iterator[bytes]:
    # Not the gzip module: it reads any number of empty archives one after the other, and a header byte by byte.
    inflate, rest, at = zlib.decompressobj(wbits=31), b"", 0
    while not inflate.eof:
        if not (packed := inflate.unconsumed_tail):
            packed, at = data[at : at + _PIECE], at + _PIECE
        piece = inflate.decompress(packed, _PIECE)
        if not piece and not packed:
            raise ValueError("it is cut short")
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
        if len(rest) > _LONGEST_LINE:
            raise ValueError("a line is too long")
    if rest or inflate.unused_data or at < len(data):
        raise ValueError("something follows its last line")


def _file_in(line: bytes) -> tuple[LockedFile, bytes]:
    """A line's file, and the part of the line that the digest covers. Raises ``ValueError``."""
    path, _, rest = line.decode().partition("\t")
    if path and (why := local_problem(path)):
        raise ValueError(f"the name {path[:80]!a} {why}")
    found = _FACTS.fullmatch(rest)
    if found is None:
        if line.count(b"\t") != _FIELDS - 1:
            raise ValueError(f"a line has not {_FIELDS} fields")
        raise ValueError(f"the size, the MD5, the ETag or the version of {path[:80]!a} has an invalid form")
    size, md5, etag, version = found.groups()
    head = line[: len(line) - len(etag) - len(version) - 2]
    return LockedFile(path, int(size), bytes.fromhex(md5), etag, version), head


def demand_packed(size: int, shown: str) -> None:
    """Raise ``LockError`` for a list of more bytes than are read."""
    if size > MOST_PACKED:
        raise _refused(shown, f"its list has {size:,} bytes")


def read_lock(root: Path, path: str) -> Lock:
    """The lock of ``path`` in the working tree. Raises ``LockError``."""
    name = lock_name(path)
    return parse_lock(_read(root, name, MOST_TEXT), name, path)


def read_list(root: Path, path: str) -> bytes:
    """The list beside it, as it is. Raises ``LockError``."""
    return _read(root, list_name(path), MOST_PACKED)


def _read(root: Path, name: str, most: int) -> bytes:
    try:
        file = SourceFolder(root, (root,)).open(name)
        try:
            if file.state.size > most:
                raise _refused(name, f"it has {file.state.size:,} bytes")
            return file.read_at(0, file.state.size)
        finally:
            file.close()
    except LockError:
        raise
    except BlobsyncError as error:
        raise LockError(error.message, hint=f"git restore {name}, or blobsync lock again", path=name) from error


def write_lock(root: Path, lock: Lock, data: bytes) -> bool:
    """Write the lock, and its list unless that is far; whether anything changed. Raises ``LocalFileError``."""
    folder = LocalFolder(root / LOCK_FOLDER, root)
    # The list first: a lock whose list is another one is refused.
    changed = not lock.is_far and _write(root, folder, f"{lock.path}{SUFFIX}.gz", data)
    return _write(root, folder, f"{lock.path}{SUFFIX}", lock_text(lock).encode()) or changed


def _write(root: Path, folder: LocalFolder, name: str, data: bytes) -> bool:
    before: LocalState | None = None
    file = root / LOCK_FOLDER / name
    if file.is_file():
        with file.open("rb") as stream:
            before = LocalState.of(file.stat())
            if before.size == len(data) and stream.read() == data:
                return False
    part = folder.create(relative_name(name), len(data))
    part.write_at(0, data)
    part.commit(before)
    return True
