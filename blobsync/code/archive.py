"""Writes the code archive: a zip whose bytes depend on the code alone.

Same snapshot and commit, same bytes: entries in the order of their names, one fixed date, modes 644 and 755
only. Another release of Python or zlib may produce other bytes; the digest does not depend on them.

The first entry is the manifest. Links are stored as Info-ZIP does: the target is the content, and the mode says link.
"""

from __future__ import annotations

import json
import stat
import zipfile
from collections.abc import Callable, Iterator
from typing import BinaryIO

from blobsync.code.digest import MANIFEST_NAME
from blobsync.code.git import GitState
from blobsync.code.packed_files import CodeFile
from blobsync.code.snapshot import CodeSnapshot, open_source
from blobsync.local.os_errors import ChangedWhileReadError

MANIFEST_VERSION = 1

# Of 1..9; 6, the default, takes 2.5 times as long and saves a tenth of the size.
_LEVEL = 1
# Bytes read at a time.
_PIECE = 4 * 1024 * 1024
# Of 1,024 random bytes 251 differ, give or take two; of 1,024 bytes of text or machine code far fewer do.
_SAMPLE, _NOISE = 1024, 240
# The first date that a zip can store.
_DATE = (1980, 1, 1, 0, 0, 0)
_UNIX = 3
_MODES = {"644": stat.S_IFREG | 0o644, "755": stat.S_IFREG | 0o755, "link": stat.S_IFLNK | 0o777}


def manifest(snapshot: CodeSnapshot, git: GitState | None) -> bytes:
    """The archive's manifest: JSON with the digest, the commit and every file."""
    document = {
        "blobsync_manifest": MANIFEST_VERSION,
        "digest": snapshot.digest,
        "git": git and {"commit": git.commit, "dirty": git.dirty, "uncommitted": list(git.uncommitted)},
        "files": [
            {"path": file.path, "mode": file.file.mode, "size": file.size, "sha256": file.sha256}
            # A folder of blobs has no links.
            | ({"target": file.file.target} if file.file.mode == "link" else {})
            for file in snapshot.files
        ],
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode() + b"\n"


def write_archive(
    snapshot: CodeSnapshot,
    git: GitState | None,
    out: BinaryIO,
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> int:
    """Write the zip to ``out`` (seekable, empty); returns its size in bytes.

    ``progress`` gets the number of newly packed files. Raises ``ChangedWhileReadError`` if a file differs from the
    snapshot, and ``LocalFileError``.
    """
    about = manifest(snapshot, git)
    with zipfile.ZipFile(out, "w") as archive:
        _add(archive, MANIFEST_NAME, "644", len(about), iter((about,)))
        for hashed in snapshot.files:
            pieces = _pieces(snapshot, hashed.file)
            if _add(archive, hashed.path, hashed.file.mode, hashed.size, pieces) != hashed.crc:
                raise ChangedWhileReadError(f"{hashed.path} changed while it was being packed", path=hashed.path)
            progress(1)
    return out.tell()


def _add(archive: zipfile.ZipFile, path: str, mode: str, size: int, pieces: Iterator[bytes]) -> int:
    """Add one entry; returns the CRC-32 of its content."""
    entry = zipfile.ZipInfo(path, _DATE)
    entry.create_system = _UNIX
    entry.external_attr = _MODES[mode] << 16
    # From the size zipfile knows whether the entry needs zip64.
    entry.file_size = size
    first = next(pieces, b"")
    entry.compress_type = zipfile.ZIP_STORED if not first or _is_noise(first) else zipfile.ZIP_DEFLATED
    # Python 3.13 calls it compress_level, and keeps this name.
    entry._compresslevel = _LEVEL  # type: ignore[attr-defined]
    with archive.open(entry, "w") as to:
        to.write(first)
        for piece in pieces:
            to.write(piece)
    return entry.CRC


def _pieces(snapshot: CodeSnapshot, file: CodeFile) -> Iterator[bytes]:
    if file.mode == "link":
        yield file.target.encode()
        return
    with open_source(snapshot.root, file) as source:
        for start in range(0, file.state.size, _PIECE):
            yield source.read_at(start, min(_PIECE, file.state.size - start))
        source.check_unchanged()


def _is_noise(data: bytes) -> bool:
    """Whether compression is useless: pictures, archives and weights have nearly every byte value in any kilobyte."""
    if len(data) < 8 * _SAMPLE:
        return False
    return all(len(set(data[at : at + _SAMPLE])) >= _NOISE for at in (len(data) * part // 4 for part in (1, 2, 3)))
