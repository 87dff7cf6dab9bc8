"""The list of files that published code holds: in an archive the manifest comes first, in a folder it is a blob.

An archive is untrusted input: what is inflated is bounded, and a list counts only if it gives the archive's own digest.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping

from blobsync.base.errors import ArchiveError, BlobNotFoundError
from blobsync.code.digest import MANIFEST_NAME, digest_of_records, read_listed
from blobsync.store.protocol import BlobStore

# The local header of a member, without its name. PKWARE, APPNOTE.TXT 4.3.7.
_HEADER = struct.Struct("<4sHHHHHIIIHH")
_MAGIC = b"PK\x03\x04"
_DEFLATED = 8
# A million files (bytes).
_LARGEST = 200_000_000
_PIECE = 1 << 16


def published_files(store: BlobStore, name: str, digest: str) -> Mapping[str, str]:
    """Each file's path, with its mode and the SHA-256 of its content, of the archive ``name``.

    Raises ``ArchiveError`` for one that init did not write, or that is not that of ``digest``, and ``StorageError``.
    """
    try:
        in_folder = not name.endswith(".zip")
        records = [one.record for one in read_listed(_list_in(store, name) if in_folder else _manifest(store, name))]
    except (ValueError, zlib.error, struct.error, BlobNotFoundError) as error:
        raise ArchiveError(f"{name} has no list of its files: blobsync init did not make it") from error
    if digest_of_records(records) != digest:
        raise ArchiveError(f"the list of files in {name} does not match its digest")
    return {record.path: f"{record.mode} {record.sha256}" for record in records}


def listed_digest(store: BlobStore, folder: str) -> str | None:
    """The digest of the list that a blob folder of code holds; None where it holds none of ours."""
    try:
        return digest_of_records(one.record for one in read_listed(_list_in(store, folder)))
    except (ValueError, BlobNotFoundError):
        return None


def _list_in(store: BlobStore, folder: str) -> bytes:
    with store.open(f"{folder.rstrip('/')}/{MANIFEST_NAME}") as reader:
        found = b""
        while piece := reader.read(_PIECE):
            found += piece
            if len(found) >= _LARGEST:
                raise ValueError("the list is too large")
    return found


def _manifest(store: BlobStore, name: str) -> bytes:
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    with store.open(name) as reader:
        header = reader.read(_HEADER.size)
        magic, _, _, method, *_, name_length, extra_length = _HEADER.unpack(header)
        member = reader.read(name_length)
        reader.read(extra_length)
        if magic != _MAGIC or method != _DEFLATED or member != MANIFEST_NAME.encode():
            raise ValueError("the manifest is not the first member")
        found = b""
        while not inflate.eof and (piece := reader.read(_PIECE)):
            found += inflate.decompress(piece, _LARGEST - len(found))
            if len(found) >= _LARGEST:
                raise ValueError("the manifest is too large")
    return found
