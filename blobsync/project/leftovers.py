"""Uploads that began and never ended: uncommitted blocks, which take space and are in no ordinary listing."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from blobsync.store.rest.store import RestBlobStore

# Doctor is quick: it looks at the first 10,000 names below each folder, and closer at so many of them.
_PAGES = 2
_CLOSER = 50


class Leftovers(NamedTuple):
    """The names of blobs that are nothing but uncommitted blocks, and how many bytes these have."""

    names: tuple[str, ...]
    size: int


def leftover_blocks(store: RestBlobStore, folders: Iterable[str]) -> Leftovers:
    """What is found below ``folders`` (each ends with ``/``, or is empty) on a quick look."""
    found: dict[str, int] = {}
    for folder in folders:
        for name in islice(store.without_content(folder, _PAGES), _CLOSER):
            blocks = store.block_list(name)
            # A blob that exists may have such blocks as well, but shows no sign of it.
            if blocks is not None and blocks.uncommitted and not blocks.committed and store.head(name) is None:
                found[name] = sum(block.size for block in blocks.uncommitted)
    return Leftovers(tuple(found), sum(found.values()))
