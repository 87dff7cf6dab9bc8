"""The digest that names a code archive, and its manifest's name: shared by packing and unpacking. Pure.

SHA-256 of one record per file, in the order of the names as Unicode: ``<mode> <sha256 of the content, hex> <path in
UTF-8>`` and a zero byte; mode is ``644``, ``755``, or ``link``, whose content is where it points. Nothing else goes
in: no clock, user, umask or commit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

from blobsync.base.plain_json import parse_object

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
