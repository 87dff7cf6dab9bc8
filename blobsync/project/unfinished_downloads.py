"""What downloads that were killed left in the project: for ``doctor``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from blobsync.base.check_results import CheckResult, CheckStatus, failed_check
from blobsync.base.errors import LocalFileError, UntrustedStateError
from blobsync.local.range_records import RangeRecords, UnfinishedDownload
from blobsync.local.state_dir import open_state_dir

_ABOUT = "this project"
_NAMED = 20


def examine_downloads(root: Path, environ: Mapping[str, str]) -> Iterator[CheckResult]:
    """Each unfinished download of the project at ``root``, with what lies on the disk of it. Changes nothing."""
    try:
        found = sorted(RangeRecords(open_state_dir(root, environ)).all(), key=lambda each: each[0].destination)
    except (LocalFileError, UntrustedStateError) as error:
        yield failed_check(_ABOUT, "state", error)
        return
    for of, size in found[:_NAMED]:
        shown = _shown(root, of.destination)
        detail = (
            f"{shown} is not finished: {size:,} of {of.size:,} bytes are here, in"
            f" {_shown(root, of.part_path)} ({_on_disk(of):,} bytes on disk)"
        )
        hint = f"'blobsync d {shlex.quote(shown)}' goes on from there; after a week the next transfer removes it"
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
        # Blocks of 512 bytes, whatever the file system's own are: stat(2).
        return os.lstat(of.part_path).st_blocks * 512
    except OSError:
        return 0
