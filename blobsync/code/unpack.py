"""Unpacks a code archive: everything is checked before anything is written, and nothing comes to lie outside.

The inverse of ``archive``; compute nodes run it. An archive is untrusted input: its names pass the gate of
``local.names``, its sizes are bounded before a byte is inflated, its links come last and must lead inside.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from blobsync.base.errors import ArchiveError, UnsafeNameError
from blobsync.code.digest import MANIFEST_NAME, DigestRecord, digest_of_records
from blobsync.local.names import relative_name

# What an archive holds beside the code, at most; and how large code may become where nobody knows its size. Bytes,
# and the ratio to the archive's own size.
_OWN_BYTES, _SMALL_CODE, _UNPACKED_RATIO = 1 << 26, 1 << 30, 100
_PIECE = 1 << 20


def unpack_archive(archive: Path, target: Path, digest: str, size: int) -> None:
    """Unpack into the empty folder ``target``, with run bits and symbolic links.

    ``size`` is how many bytes all files have (0: not known), ``digest`` that of ``code.digest`` (empty: not known).
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


def _checked(source: zipfile.ZipFile, base: str, limit: int) -> Mapping[str, zipfile.ZipInfo]:
    """The members by their paths below ``base``; no more of one is ever unpacked than its size says here."""
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
    """Everything but the links, which are returned as (path, where it points)."""
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
    """They come last, never in a folder's place: nothing is written through one, and it is known where each leads."""
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
