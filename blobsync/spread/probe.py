"""Whether a node sees the same files as the machine that made the plan: a probe file tells.

Of an upload it is a file that is to move: its size, time and inode are the same wherever its file system is mounted.
Of a download it is one that the parent puts into the destination's folder for as long as the transfer lasts.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from blobsync.base.file_states import LocalState
from blobsync.local.errors import naming
from blobsync.plan.transfer_plan import Action, FileAction
from blobsync.spread.hauler import Ends
from blobsync.store.ends import LocalEnd


def upload_probe(actions: Iterable[FileAction]) -> Mapping[str, Any] | None:
    """What every node has to find at the source; None where nothing moves."""
    for action in actions:
        if action.action is Action.TRANSFER and isinstance(action.source, LocalState) and action.path:
            source = action.source
            return {"file": action.path, "size": source.size, "mtime_ns": source.mtime_ns, "inode": source.inode}
    return None


class DownloadProbe:
    """A file in the destination's folder. Its name is that of the transfer's ``place``: the command that is run again
    after one that was killed removes it."""

    def __init__(self, root: Path, place: str) -> None:
        self._file = root / f".probe-of-blobsync-{place}"
        self._text = secrets.token_hex(16)

    def write(self) -> Mapping[str, Any]:
        """What every node has to find there."""
        with naming(self._file):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.write_text(self._text)
        return {"file": self._file.name, "text": self._text}

    def remove(self) -> None:
        """Safe to repeat."""
        with suppress(OSError):
            self._file.unlink()


def probe_problem(ends: Ends, probe: Mapping[str, Any] | None) -> str | None:
    """What a node finds wrong with a probe, as a sentence; None where it sees the same file."""
    end = ends.source if isinstance(ends.source, LocalEnd) else ends.destination
    if probe is None or not isinstance(end, LocalEnd):
        return None
    file = end.root / str(probe["file"])
    try:
        found, text = os.stat(file), file.read_text() if "text" in probe else None
    except OSError as error:
        return f"{file} cannot be read here ({error.strerror})"
    if "text" in probe:
        return None if text == probe["text"] else f"{file} is another file here"
    same = (found.st_size, found.st_mtime_ns, found.st_ino) == (probe["size"], probe["mtime_ns"], probe["inode"])
    return None if same else f"{file} is another file here"
