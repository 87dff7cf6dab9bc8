"""Names of blocks: the SHA-256 of what a block holds, behind a tag that says so.

A blob's block ids have one length (https://learn.microsoft.com/rest/api/storageservices/put-block). azcopy's are 36
bytes before base64; with the same length, each of the two can write a blob for which the other left uncommitted
blocks. An id proves nothing about bytes that somebody else wrote: whoever can write a blob can write any id.
"""

from __future__ import annotations

import binascii
from base64 import b64encode

# The version of the scheme is part of it: blocks of another scheme are not ours.
_TAG = b"bsc1"
_DIGEST_BYTES = 32
_CHARACTERS = (len(_TAG) + _DIGEST_BYTES) // 3 * 4


def block_id_of(sha256: bytes) -> str:
    """The id of a block whose content has this SHA-256 (32 bytes): 48 characters of base64, without padding."""
    if len(sha256) != _DIGEST_BYTES:
        raise ValueError(f"a SHA-256 has {_DIGEST_BYTES:,} bytes, not {len(sha256)}")
    return b64encode(_TAG + sha256).decode()


def sha256_of_block(block_id: str) -> bytes | None:
    """The SHA-256 that an id names, or None where the id is not one of ours."""
    if len(block_id) != _CHARACTERS:
        return None
    try:
        raw = binascii.a2b_base64(block_id.encode("ascii"))
    except (UnicodeEncodeError, binascii.Error):
        return None
    # Characters that are not base64 are skipped, which makes the result too short.
    ours = len(raw) == len(_TAG) + _DIGEST_BYTES and raw.startswith(_TAG)
    return raw[len(_TAG) :] if ours else None
