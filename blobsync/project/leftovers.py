"""Finds what interrupted transfers left, for ``doctor``: uncommitted blocks and unfinished downloads.

Such blocks take space, and are in no ordinary listing."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from blobsync.base.check_results import CheckResult, CheckStatus, failed_check
from blobsync.base.errors import LocalFileError, UntrustedStateError
from blobsync.local.resume_records import RangeRecords, UnfinishedDownload
from blobsync.local.state_dir import open_state_dir

if TYPE_CHECKING:
    from blobsync.store.rest.store import RestBlobStore

# To be quick, only the first 10,000 names below each folder are searched, and this many are examined.
_PAGES = 2
_CLOSER = 50
_ABOUT = "this project"
# Maximum number of unfinished downloads that are listed.
_NAMED = 20


def leftover_blocks(store: RestBlobStore, folders: Iterable[str]) -> dict[str, int]:
    """The names of blobs with only uncommitted blocks, and the bytes of these. Searches quickly below ``folders`` (each
    ends with ``/``, or is empty)."""
    found: dict[str, int] = {}
    for folder in folders:
        for name in islice(store.without_content(folder, _PAGES), _CLOSER):
            blocks = store.block_list(name)
            # An existing blob may have such blocks as well, but the listing does not show it.
            if blocks is not None and blocks.uncommitted and not blocks.committed and store.head(name) is None:
                found[name] = sum(block.size for block in blocks.uncommitted)
    return found


def examine_downloads(root: Path, environ: Mapping[str, str]) -> Iterator[CheckResult]:
    """Each unfinished download of the project at ``root``, with its bytes on the disk. Changes nothing."""
    said: list[str] = []
    try:
        records = RangeRecords(open_state_dir(root, environ, said.append))
        found = sorted(records.all(), key=lambda each: each[0].destination)
    except (LocalFileError, UntrustedStateError) as error:
        yield failed_check(_ABOUT, "state", error)
        return
    for text in said:
        yield CheckResult(_ABOUT, "state", CheckStatus.WARN, text)
    for of, size in found[:_NAMED]:
        shown = _shown(root, of.destination)
        detail = (
            f"{shown} is not finished: {size:,} of {of.size:,} bytes are here, in"
            f" {_shown(root, of.part_path)} ({_on_disk(of):,} bytes on disk)"
        )
        hint = f"'blobsync d {shlex.quote(shown)}' resumes from there; after a week the next transfer removes it"
        yield CheckResult(_ABOUT, "downloads", CheckStatus.WARN, detail, hint)
    if len(found) > _NAMED:
        size = sum(size for _, size in found[_NAMED:])
        detail = f"{len(found) - _NAMED:,} more are not finished, with {size:,} bytes"
        yield CheckResult(_ABOUT, "downloads", CheckStatus.WARN, detail)


def _shown(root: Path, path: str) -> str:
    """As a user types it: from the project's root, if it is below."""
    relative = os.path.relpath(path, root)
    return path if relative.startswith("..") else relative


def _on_disk(of: UnfinishedDownload) -> int:
    try:
        # Blocks of 512 bytes on every file system: stat(2).
        return os.lstat(of.part_path).st_blocks * 512
    except OSError:
        return 0
