"""Seals (HMACs) for documents that blobsync writes and reads back from a place that others can write to.

A seal is an HMAC-SHA-256 over the document's kind, its place, its name there and its content, so that a sealed document
is valid only as itself and only there. The key never enters that place, nor a command line. The user's own key is in
the user's configuration folder; a run's is derived from it, and a worker's from that of the run (HKDF-Expand with
SHA-256, RFC 5869), so a derived key cannot make another's seals.

What lets blobsync skip, trust, run or write something needs a seal. What only makes it stop or wait does not.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

KEY_BYTES = 32
_FIRST = b"blobsync-seal 1 "
# The length of the seal before a body.
HEAD_BYTES = len(_FIRST) + 2 * hashlib.sha256().digest_size + 1


class SealKey:
    """A secret key of ``KEY_BYTES`` bytes."""

    __slots__ = ("secret",)

    def __init__(self, secret: bytes) -> None:
        if len(secret) != KEY_BYTES:
            raise ValueError(f"a key for seals is {KEY_BYTES} long, in bytes")
        self.secret: Final = secret

    def derive(self, *purpose: str) -> SealKey:
        """The key for one purpose, such as ``"run", run_id``. It reveals neither this key nor those for other
        purposes."""
        return SealKey(hmac.new(self.secret, _joined(*purpose) + b"\x01", hashlib.sha256).digest())

    def seal(self, kind: str, place: str, name: str, body: bytes) -> bytes:
        """Return the document: the seal, then the body."""
        return _FIRST + self._mac(kind, place, name, body).encode() + b"\n" + body

    def opened(self, kind: str, place: str, name: str, document: bytes) -> bytes | None:
        """The body of a sealed document; None if the seal is wrong or missing: the document then counts as absent."""
        head, body = document[:HEAD_BYTES], document[HEAD_BYTES:]
        expected = _FIRST + self._mac(kind, place, name, body).encode() + b"\n"
        return body if hmac.compare_digest(head, expected) else None

    def _mac(self, kind: str, place: str, name: str, body: bytes) -> str:
        return hmac.new(self.secret, _joined("seal", kind, place, name) + body, hashlib.sha256).hexdigest()


def within(document: bytes) -> bytes | None:
    """The body of a document whose seal is **not** checked because its key is unknown: what came inside a sealed
    document, or what anybody may have written. None if there is no seal."""
    return document[HEAD_BYTES:] if document.startswith(_FIRST) and len(document) >= HEAD_BYTES else None


def _joined(*parts: str) -> bytes:
    """Each part with its length before it, so that two different lists never give the same bytes."""
    encoded = [part.encode("utf-8", "surrogateescape") for part in parts]
    return b"".join(len(each).to_bytes(4, "big") + each for each in (len(encoded).to_bytes(4, "big"), *encoded))
