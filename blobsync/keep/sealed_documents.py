"""Small sealed documents in a container, of one lineage of jobs: the marks of its sets, and the notes of its nodes.

The first line of a document is the seal of the second, which is the digest of the rest: what has no seal costs no more
than its head, however large it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NamedTuple

from blobsync.base.errors import StorageError
from blobsync.base.seals import HEAD_BYTES, SealKey, within
from blobsync.store.protocol import BlobProperties, BlobReader, BlobStore, Precondition

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
