"""Unpacks a code archive, and says the digest of its code: checks everything before anything is written, and writes
nothing outside the folder.

The digest is the SHA-256 of one record per file, in the order of the names as Unicode: ``<mode> <sha256 of the content,
hex> <path in UTF-8>`` and a zero byte; mode is ``644``, ``755``, or ``link``, whose content is where it points. Nothing
else goes in: no clock, user, umask or commit.

The inverse of ``publish``; compute nodes run it. An archive is untrusted input: its names pass the gate of
``local.names``, its sizes are bounded before a byte is inflated, its links come last and must lead inside. Code that
came as a folder of blobs has the same digest, by the list of its files that lies among them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from blobsync.base.errors import ArchiveError, UnsafeNameError
from blobsync.base.plain_json import parse_object
from blobsync.base.records import NamedTuple
from blobsync.local.names import relative_name

# What init writes into the archive about itself; not part of the code.
MANIFEST_NAME = ".blobsync-manifest.json"


class DigestRecord(NamedTuple):
    """One file of the code; ``sha256`` of its content, in hex. ``target`` is where a link points, empty in lists of an
    older blobsync; it is not part of the digest, as the content of a link says it."""

    mode: str
    sha256: str
    path: str
    target: str = ""


def digest_of_records(records: Iterable[DigestRecord]) -> str:
    """The digest, in hex; ``records`` come in the order of their paths."""
    whole = hashlib.sha256()
    for mode, sha256, path, _ in records:
        # Names in an archive may not be UTF-8; such a digest matches no code.
        whole.update(f"{mode} {sha256} {path}\0".encode("utf-8", "surrogateescape"))
    return whole.hexdigest()


def read_listed(document: bytes) -> tuple[DigestRecord, ...]:
    """The files that a manifest lists. Raises ``ValueError`` for what init did not write."""
    try:
        return tuple(
            DigestRecord(str(file["mode"]), str(file["sha256"]), str(file["path"]), str(file.get("target") or ""))
            for file in parse_object(document)["files"]
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("it lists no files") from error


# Limits: what an archive contains besides the code, and the size of code whose size is unknown (bytes), and its
# ratio to the archive's own size.
_OWN_BYTES, _SMALL_CODE, _UNPACKED_RATIO = 1 << 26, 1 << 30, 100
_PIECE = 1 << 20


def unpack_archive(archive: Path, target: Path, digest: str, size: int) -> None:
    """Unpack into the empty folder ``target``, with run bits and symbolic links.

    ``size`` is how many bytes all files have (0: not known), ``digest`` that of the code (empty: not known).
    Raises ``ArchiveError`` for an archive that differs from the submitted one or would write outside the folder, and
    what ``zipfile`` raises for one that is damaged.
    """
    base = os.path.realpath(target)
    limit = size + _OWN_BYTES if size else max(_SMALL_CODE, _UNPACKED_RATIO * archive.stat().st_size)
    with zipfile.ZipFile(archive) as source:
        members = _checked(source, base, limit)
        if digest and digest != digest_of_records(_records(source)):
            raise ArchiveError("the code archive does not hold the code that was submitted")
        links = _write_files(source, members)
    _place_links(base, links)


def digest_of_archive(archive: Path) -> str:
    """The digest of the code in an archive, whoever created it, as ``unpack_archive`` checks it.

    Raises ``ArchiveError`` for one that no node would unpack.
    """
    limit = max(_SMALL_CODE, _UNPACKED_RATIO * archive.stat().st_size)
    try:
        with zipfile.ZipFile(archive) as source:
            _checked(source, os.sep, limit)
            return digest_of_records(_records(source))
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise ArchiveError(f"it is not an archive that nodes can unpack: {error}") from error


def keep_listed(folder: Path, digest: str) -> None:
    """Make a folder of downloaded code exactly the code of ``digest``: set run bits and links, remove other files.

    Raises ``ArchiveError`` where a file differs from the list, or the list from the digest.
    """
    base = os.path.realpath(folder)
    try:
        listed = read_listed((folder / MANIFEST_NAME).read_bytes())
    except (OSError, ValueError) as error:
        raise ArchiveError("the folder of code has no list of its files any more") from error
    if digest_of_records(listed) != digest:
        raise ArchiveError("the folder of code does not hold the code that was submitted")
    paths = {os.path.join(base, relative_name(one.path, base)): one for one in listed}
    for path in sorted(Path(base).rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            with suppress(OSError):
                path.rmdir()
        elif str(path) not in paths or paths[str(path)].mode == "link":
            path.unlink()
    links = []
    for place, one in paths.items():
        if one.mode == "link" and hashlib.sha256(os.fsencode(one.target)).hexdigest() == one.sha256:
            os.makedirs(os.path.dirname(place), exist_ok=True)
            links.append((place, one.target))
            continue
        if not os.path.isfile(place) or _sha256_of(place) != one.sha256:
            raise ArchiveError(f"the folder of code does not hold {one.path} as it was submitted")
        os.chmod(place, 0o755 if one.mode == "755" else 0o644)
    _place_links(base, links)


def _sha256_of(path: str) -> str:
    with open(path, "rb") as stream:
        return _sha256(stream)


def _checked(source: zipfile.ZipFile, base: str, limit: int) -> Mapping[str, zipfile.ZipInfo]:
    """The members by their paths below ``base``; unpacking never exceeds the sizes stated here."""
    members: dict[str, zipfile.ZipInfo] = {}
    for item in source.infolist():
        name = item.filename[:-1] if item.is_dir() else item.filename
        try:
            path = os.path.join(base, relative_name(name, base))
        except UnsafeNameError as error:
            raise ArchiveError(f"the code archive has a file outside, or where none can be: {error.message}") from error
        limit -= item.file_size
        if limit < 0 or members.setdefault(path, item) is not item:
            raise ArchiveError(f"the code archive holds {item.filename!a} twice, or is larger than it should be")
    return members


def _write_files(source: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo]) -> list[tuple[str, str]]:
    """Write everything except links; returns those as (path, target)."""
    links = []
    for path, item in members.items():
        os.makedirs(path if item.is_dir() else os.path.dirname(path), exist_ok=True)
        if _mode_of(item) == "link":
            links.append((path, os.fsdecode(source.read(item))))
        elif not item.is_dir():
            with source.open(item) as stream, open(path, "xb") as sink:
                shutil.copyfileobj(stream, sink, _PIECE)
            os.chmod(path, int(_mode_of(item), 8))
    return links


def _place_links(base: str, links: list[tuple[str, str]]) -> None:
    """Create the links last, never in place of a folder: nothing is written through one, and all targets are known."""
    for path, to in links:
        os.symlink(to, path)
    for path, to in links:
        if os.path.isabs(to) or not (os.path.realpath(path) + os.sep).startswith(base + os.sep):
            raise ArchiveError(f"the code archive holds a link that leads outside: {path[len(base) + 1 :]} -> {to}")


def _records(source: zipfile.ZipFile) -> Iterator[DigestRecord]:
    for item in sorted(source.infolist(), key=lambda item: item.filename):
        if not item.is_dir() and item.filename != MANIFEST_NAME:
            with source.open(item) as stream:
                yield DigestRecord(_mode_of(item), _sha256(stream), item.filename)


def _sha256(stream: IO[bytes]) -> str:
    digest = hashlib.sha256()
    for chunk in iter(lambda: stream.read(_PIECE), b""):
        digest.update(chunk)
    return digest.hexdigest()


def _mode_of(item: zipfile.ZipInfo) -> str:
    mode = item.external_attr >> 16
    return "link" if stat.S_ISLNK(mode) else "755" if mode & 0o100 else "644"
