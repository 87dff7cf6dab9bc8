"""Deletes what ``--mirror`` found at the destination only: the versions that the plan saw, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from blobsync.engines import LiveEnd, LocalEnd, Moved, RemoteEnd
from blobsync.fresh_look import look
from blobsync.plan import FileAction, LocalState, RemoteState


def delete(end: LiveEnd, doomed: Sequence[FileAction], seen: Callable[[int], None]) -> dict[str, str]:
    """Delete, then look; returns why by the path of each that is not gone. ``seen`` as in ``survey``."""
    failures = _delete_files(end, doomed) if isinstance(end, LocalEnd) else _delete_blobs(end, doomed)
    # That nobody complained is no success either.
    still_there = look(end, [Moved(action) for action in doomed if action.path not in failures], seen)
    return {**dict.fromkeys(still_there, "it is still there"), **failures}


def _delete_blobs(end: RemoteEnd, doomed: Sequence[FileAction]) -> dict[str, str]:
    """Only the versions that the plan saw: what somebody put there since is not extra."""
    paths = {end.at(action.path): action.path for action in doomed}
    seen = {end.at(each.path): each.destination.etag for each in doomed if isinstance(each.destination, RemoteState)}
    return {paths.get(name, name): reason for name, reason in end.store.delete_many(list(paths), etags=seen).items()}


def _delete_files(end: LocalEnd, doomed: Sequence[FileAction]) -> dict[str, str]:
    failures: dict[str, str] = {}
    folders: set[Path] = set()
    for action in doomed:
        file = end.at(action.path)
        try:
            if not isinstance(action.destination, LocalState) or not LocalState.of(os.stat(file)).same_file(
                action.destination
            ):
                failures[action.path] = "it changed since the plan was made"
                continue
            file.unlink()
            folders.update(parent for parent in file.parents if end.root in parent.parents)
        except FileNotFoundError:
            continue
        except OSError as error:
            failures[action.path] = error.strerror or str(error)
    for folder in sorted(folders, key=lambda path: len(path.parts), reverse=True):
        # Only folders that the deletions left empty go.
        with suppress(OSError):
            folder.rmdir()
    return failures
