"""Checksums: of blocks, by which the service checks them; and of whole objects outside Azure.

Azure's CRC64 and S3's CRC64NVME are one polynomial. Azure writes the value's bytes from the small end
(https://learn.microsoft.com/rest/api/storageservices/put-block-from-url#response-headers), S3 from the great one
(https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity.html).

A CRC64 costs a thirtieth of an MD5. It needs the package anycrc (``blobsync[crc64]``) and a service that checks it: the
answer to such a block has the CRC64 of the bytes that arrived
(https://learn.microsoft.com/rest/api/storageservices/put-block#response-headers). Without that answer nothing was
checked, so the block is sent again with an MD5, and all after it have one. A block may not have both.
"""

from __future__ import annotations

import binascii
import hashlib
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Protocol, final

from blobsync.store.protocol import Checksum

CRC64 = "crc64nvme"
CRC32_BYTES = 4
_CRC64_BYTES = 8
# The CRC-64/NVME of bytes, a number of 64 bits: the service's CRC64.
Crc64 = Callable[[bytes], int]
FindCrc64 = Callable[[], "Crc64 | None"]

CRC64_HEADER = "x-ms-content-crc64"

# Statuses with which a service may refuse a header that it does not know, or a value that it reads in another way.
_REFUSALS = frozenset({400, 500, 501})
# The first word of the header Server. Azurite 3.35 refuses a CRC64, and ignores it with --loose.
_WITHOUT_CRC64 = "Azurite-Blob/"


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


def installed_crc64() -> Crc64 | None:
    """The function of anycrc; None if it is not installed."""
    try:
        from anycrc import Model
    except ImportError:
        return None
    calc: Crc64 = Model("CRC64-NVME").calc
    return calc


@final
class BlockChecks:
    """By what the blocks of one container are checked. Safe to use from several threads."""

    def __init__(self, crc64: Crc64 | None) -> None:
        """Without ``crc64`` all have an MD5."""
        self._crc64 = crc64
        self._proven = False

    def crc64(self, body: bytes, server: str) -> str | None:
        """The value of the header for a block; None if the block has to have an MD5. ``server`` is what the service
        calls itself, empty if unknown."""
        crc64 = self._crc64
        if crc64 is None or (not self._proven and server.startswith(_WITHOUT_CRC64)):
            return None
        return b64encode(crc64(body).to_bytes(8, "little")).decode()

    def verified(self, sent: str, status: int, answered: str | None) -> bool | None:
        """Whether the service has verified a block that it answered with ``status`` and this CRC64 (None: with none).

        False: it checks no CRC64, so send the block with an MD5. None: it refused the block for another reason.
        """
        if status == 201 and answered == sent:
            self._proven = True
            return True
        if status != 201 and (self._proven or status not in _REFUSALS):
            return None
        self._crc64 = None
        return False


def content_md5(body: bytes) -> str:
    """The value of Content-MD5."""
    return b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
