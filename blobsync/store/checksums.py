"""Checksums of whole objects outside Azure: what is computed of bytes that pass, and of blocks that a service fetched.

Azure's CRC64 and S3's CRC64NVME are one polynomial. Azure writes the value's bytes from the small end
(https://learn.microsoft.com/rest/api/storageservices/put-block-from-url#response-headers), S3 from the great one
(https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity.html).
"""

from __future__ import annotations

import binascii
import hashlib
import zlib
from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import Protocol

from blobsync.store.protocol import Checksum

CRC64 = "crc64nvme"
CRC32_BYTES = 4
_CRC64_BYTES = 8


class Running(Protocol):
    """A checksum of bytes that arrive one after the other."""

    def update(self, data: bytes, /) -> object: ...

    def digest(self) -> bytes: ...


class _Crc:
    """A CRC of bytes that arrive one part after the other; ``calc`` continues one with more bytes."""

    def __init__(self, calc: Callable[[bytes, int], int], size: int) -> None:
        self._calc, self._size, self._value = calc, size, 0

    def update(self, data: bytes, /) -> None:
        """Add bytes."""
        self._value = self._calc(data, self._value)

    def digest(self) -> bytes:
        """The value, the great end first, as S3 writes it."""
        return self._value.to_bytes(self._size, "big")


class Crc32(_Crc):
    """A CRC32, as zlib's."""

    def __init__(self) -> None:
        super().__init__(zlib.crc32, CRC32_BYTES)


class _Crc32c(_Crc):
    def __init__(self) -> None:
        from anycrc import Model

        super().__init__(Model("CRC32C").calc, CRC32_BYTES)


class JoinedCrc64(_Crc):
    """A CRC64 of bytes that arrive one part after the other, and of parts whose CRC64 is known.

    Raises ``ImportError`` where anycrc is not installed.
    """

    def __init__(self) -> None:
        from anycrc import Model

        model = Model("CRC64-NVME")
        super().__init__(model.calc, _CRC64_BYTES)
        self._combine = model.combine

    def add(self, crc64: int, length: int) -> None:
        """Add ``length`` bytes that have this CRC64."""
        self._value = self._combine(self._value, crc64, length)


class Comparison:
    """Whether bytes that arrive one after the other have the checksum that their source keeps of them."""

    def __init__(self, kept: Checksum, running: Running) -> None:
        self._kept = kept
        self._running = running

    @property
    def name(self) -> str:
        """The checksum's."""
        return self._kept.name

    def update(self, data: bytes) -> None:
        """Add bytes."""
        self._running.update(data)

    def is_right(self) -> bool:
        """All bytes together have this checksum."""
        return self._running.digest() == self._kept.value


def comparison(kept: Checksum | None) -> Comparison | None:
    """What compares with this checksum; None if there is none, or nothing here computes it."""
    if kept is None:
        return None
    if kept.name in ("sha256", "sha1"):
        return Comparison(kept, hashlib.new(kept.name, usedforsecurity=False))
    kinds: Mapping[str, Callable[[], Running]] = {CRC64: JoinedCrc64, "crc32": Crc32, "crc32c": _Crc32c}
    try:
        return Comparison(kept, kinds[kept.name]())
    except (KeyError, ImportError):
        return None


def new_crc64() -> JoinedCrc64 | None:
    """A CRC64 of no bytes yet; None where anycrc is not installed."""
    try:
        return JoinedCrc64()
    except ImportError:
        return None


def crc64_in(checksum: Checksum | None) -> bytes | None:
    """The CRC64 of an object, if that is what its source keeps."""
    return checksum.value if checksum is not None and checksum.name == CRC64 else None


def crc64_of_header(text: str | None) -> int | None:
    """The CRC64 in an answer of Azure; None if there is none, or it has another form."""
    try:
        raw = b64decode(text or "", validate=True)
    except (binascii.Error, ValueError):
        return None
    return int.from_bytes(raw, "little") if len(raw) == _CRC64_BYTES else None
