"""Checks with a probe file whether a node sees the same files as the machine that made the plan.

It is our own file in the source or destination folder for as long as the transfer lasts: nobody else changes it. If
that folder cannot be written to, files that are to move are compared: size, time and inode of a file are the same
wherever its file system is mounted. Any of them may change meanwhile, so one that is the same is enough.
"""

from __future__ import annotations

import heapq
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from blobsync.base.errors import LocalFileError
from blobsync.base.file_states import LocalState
from blobsync.base.locations import LocalLocation
from blobsync.local.names import PROBE_PREFIX, is_temporary
from blobsync.local.os_errors import naming
from blobsync.plan.transfer_plan import Action, FileAction

_TEXT_LENGTH = 32
# How many files that are to move are named if there can be no probe file.
_MOST_FILES = 16


def own_probe(folder: Path, place: str) -> Path:
    """The probe file in ``folder``. Its name is derived from the transfer's ``place``: a command that runs again after
    it was killed removes the file in the end.

    Until then it keeps the content, because the job of the killed command may still run: a worker that this job
    restarts compares it with the content at the time of submission.
    """
    return folder / f"{PROBE_PREFIX}{place}"


def written_probe(file: Path) -> Mapping[str, Any]:
    """Write our probe; returns what every node has to find. Raises ``LocalFileError``."""
    with naming(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        text = _left_behind(file)
        if text is None:
            text = secrets.token_hex(_TEXT_LENGTH // 2)
            file.unlink(missing_ok=True)
            with file.open("x") as target:
                target.write(text)
    return {"own": {"file": str(file), "text": text}}


def _left_behind(file: Path) -> str | None:
    if file.is_symlink() or not file.is_file() or file.stat().st_size != _TEXT_LENGTH:
        return None
    text = file.read_text("ascii", "replace")
    return text if re.fullmatch("[0-9a-f]+", text) else None


def remove_own_probe(file: Path) -> None:
    """Remove our probe; idempotent."""
    with suppress(OSError):
        file.unlink()


def source_probe(own: Path, end: LocalLocation, actions: Iterable[FileAction]) -> Mapping[str, Any] | None:
    """What every node has to find at the source of an upload: ``own``, or files that are to move. None if neither is
    possible, and nothing moves."""
    try:
        return written_probe(own)
    except LocalFileError:
        found = files_probe(end, actions)
        return found if found["files"] else None


def files_probe(end: LocalLocation, actions: Iterable[FileAction]) -> Mapping[str, Any]:
    """The files that are unchanged for the longest time: they are the least likely to change now."""
    moving = (
        (action.source.mtime_ns, action.path, action.source)
        for action in actions
        if action.action is Action.TRANSFER and isinstance(action.source, LocalState)
    )
    oldest = heapq.nsmallest(_MOST_FILES, moving, key=lambda each: each[:2])
    return {
        "files": [
            {"file": str(end.at(path)), "size": state.size, "mtime_ns": state.mtime_ns, "inode": state.inode}
            for _, path, state in oldest
        ]
    }


def probe_problem(probe: Mapping[str, Any] | None) -> str | None:
    """Why a node does not see the same files, as a sentence; None if it does."""
    if probe is None:
        return None
    problems = map(_problem, [probe["own"]] if "own" in probe else probe["files"])
    first = next(problems, None)
    return None if first is None or None in problems else first


def remove_probe(probe: Mapping[str, Any] | None) -> None:
    """Remove the probe file, in the place of the command that wrote it. Idempotent."""
    own = (probe or {}).get("own")
    file = Path(own["file"]) if own else None
    if file is not None and is_temporary(file.name) and probe_problem(probe) is None:
        remove_own_probe(file)


def _problem(known: Mapping[str, Any]) -> str | None:
    file = Path(known["file"])
    try:
        if "text" in known:
            same = file.read_text("ascii", "replace") == known["text"]
        else:
            found = os.stat(file)
            wanted = (known["size"], known["mtime_ns"], known["inode"])
            same = (found.st_size, found.st_mtime_ns, found.st_ino) == wanted
    except OSError as error:
        return f"{file} cannot be read here ({error.strerror})"
    return None if same else f"{file} is another file here"
