"""The content of a local file, as an MD5 that belongs to one state of it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from blobsync.base.file_states import LocalState
from blobsync.base.regular_files import regular_only

_READ_BYTES = 1 << 20
_FEWEST_THREADS = 2


def hash_file(file: Path, opener: Callable[[str, int], int] = regular_only) -> LocalState | None:
    """A local file with the MD5 of its bytes; None when it cannot be read, is no file, or changed meanwhile."""
    try:
        with open(file, "rb", buffering=0, opener=opener) as stream:
            before = LocalState.of(os.fstat(stream.fileno()))
            digest = hashlib.md5(usedforsecurity=False)
            while chunk := stream.read(_READ_BYTES):
                digest.update(chunk)
            after = LocalState.of(os.fstat(stream.fileno()), digest.digest())
    except OSError:
        return None
    return after if after.same_file(before) else None


def reading_threads(processors: int | None = os.cpu_count()) -> int:
    """How many files to read at once: one for each processor, but two at least, as disks make a reader wait."""
    return max(_FEWEST_THREADS, processors or _FEWEST_THREADS)
