"""What the service checks a block by: its CRC64, or its MD5.

A CRC64 costs a thirtieth of an MD5. It needs the package anycrc (``blobsync[crc64]``) and a service that checks it: the
answer to such a block has the CRC64 of the bytes that arrived
(https://learn.microsoft.com/rest/api/storageservices/put-block#response-headers). Without that answer nothing was
checked, so the block is sent again with an MD5, and all after it have one. A block may not have both.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Callable
from typing import final

# The CRC-64/NVME of bytes, a number of 64 bits: the service's CRC64.
Crc64 = Callable[[bytes], int]
FindCrc64 = Callable[[], "Crc64 | None"]

CRC64_HEADER = "x-ms-content-crc64"

# Statuses with which a service may refuse a header that it does not know, or a value that it reads in another way.
_REFUSALS = frozenset({400, 500, 501})
# The first word of the header Server. Azurite 3.35 refuses a CRC64, and ignores it with --loose.
_WITHOUT_CRC64 = "Azurite-Blob/"


def installed_crc64() -> Crc64 | None:
    """That of anycrc; None if it is not installed."""
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
