"""Deletes the extra files of a ``--mirror``: only the versions that the plan saw."""

from __future__ import annotations

from collections.abc import Sequence

from blobsync.base.errors import BlobsyncError
from blobsync.base.file_states import RemoteState
from blobsync.local.files import LocalFolder
from blobsync.local.names import relative_name
from blobsync.plan.events import Emit
from blobsync.plan.transfer_plan import FileAction
from blobsync.store.ends import LiveEnd, LocalEnd, RemoteEnd
from blobsync.transfer.engines import Moved
from blobsync.transfer.fresh_look import states_at_destination


def delete(end: LiveEnd, deletions: Sequence[FileAction], emit: Emit) -> dict[str, str]:
    """Delete, then look again; returns the reason by path for each file that remains. ``emit`` as in ``survey``."""
    failures = _delete_files(end, deletions) if isinstance(end, LocalEnd) else _delete_blobs(end, deletions)
    # No error is not proof of success.
    still_there = states_at_destination(
        end, [Moved(action) for action in deletions if action.path not in failures], emit
    )
    return {**dict.fromkeys(still_there, "it is still there"), **failures}


def _delete_blobs(end: RemoteEnd, deletions: Sequence[FileAction]) -> dict[str, str]:
    """Delete only the versions that the plan saw: a blob that was written since is not extra."""
    paths = {end.at(action.path): action.path for action in deletions}
    seen = {end.at(each.path): each.destination.etag for each in deletions if isinstance(each.destination, RemoteState)}
    return {paths.get(name, name): reason for name, reason in end.store.delete_many(list(paths), etags=seen).items()}


def _delete_files(end: LocalEnd, deletions: Sequence[FileAction]) -> dict[str, str]:
    failures: dict[str, str] = {}
    folders: set[str] = set()
    below = LocalFolder(end.root, end.boundary)
    for action in deletions:
        try:
            below.remove(relative_name(action.path), action.destination)
        except BlobsyncError as error:
            failures[action.path] = error.message
            continue
        parent = action.path.rpartition("/")[0]
        while parent:
            folders.add(parent)
            parent = parent.rpartition("/")[0]
    for folder in sorted(folders, key=lambda path: path.count("/"), reverse=True):
        # Remove only folders that the deletions left empty.
        below.remove_if_empty(relative_name(folder))
    return failures
