"""CRC-64/NVME, a bit at a time and then a byte at a time: slow, and independent of the package that blobsync uses."""

from __future__ import annotations

from functools import lru_cache

_POLYNOMIAL = 0x9A6C9329AC4BC9B5


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = [_entry(byte) for byte in range(256)]


# Tests move the same blocks again and again, and each MiB takes a third of a second.
@lru_cache(maxsize=32)
def crc64(body: bytes) -> int:
    """The checksum of ``body``."""
    found = (1 << 64) - 1
    for byte in body:
        found = found >> 8 ^ _TABLE[(found ^ byte) & 255]
    return found ^ ((1 << 64) - 1)
