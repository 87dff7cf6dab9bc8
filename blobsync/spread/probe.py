"""Whether a node sees the same files as the machine that made the plan: a probe file tells.

Of an upload it is a file that is to move: its size, time and inode are the same wherever its file system is mounted.
Of a download it is one that the parent puts into the destination's folder for as long as the transfer lasts.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from blobsync.base.file_states import LocalState
from blobsync.local.errors import naming
from blobsync.local.names import PROBE_PREFIX
from blobsync.plan.transfer_plan import Action, FileAction
from blobsync.spread.hauler import Ends
from blobsync.store.ends import LocalEnd

_TEXT_LENGTH = 32


def upload_probe(actions: Iterable[FileAction]) -> Mapping[str, Any] | None:
    """What every node has to find at the source; None where nothing moves."""
    for action in actions:
        if action.action is Action.TRANSFER and isinstance(action.source, LocalState):
            source = action.source
            return {"file": action.path, "size": source.size, "mtime_ns": source.mtime_ns, "inode": source.inode}
    return None


class DownloadProbe:
    """A file in the destination's folder. Its name is that of the transfer's ``place``: the command that is run again
    after one that was killed removes it in the end.

    Until then it leaves the text as it is, because the job of the killed command may go on: a worker that this job
    starts again looks for the text that the job was submitted with.
    """

    def __init__(self, root: Path, place: str) -> None:
        self._file = root / f"{PROBE_PREFIX}{place}"

    def write(self) -> Mapping[str, Any]:
        """What every node has to find there."""
        with naming(self._file):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            text = self._left_behind()
            if text is None:
                text = secrets.token_hex(_TEXT_LENGTH // 2)
                self._file.unlink(missing_ok=True)
                with self._file.open("x") as target:
                    target.write(text)
        return {"file": self._file.name, "text": text}

    def _left_behind(self) -> str | None:
        if self._file.is_symlink() or not self._file.is_file() or self._file.stat().st_size != _TEXT_LENGTH:
            return None
        text = self._file.read_text("ascii", "replace")
        return text if re.fullmatch("[0-9a-f]+", text) else None

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
