"""Tells of linked folders that a job would find empty, while their containers are not.

A link shows the job what is on the disk, not what is in the container: a job could train on nothing, end well, and
leave its results in no container. So both are looked at before the job is handed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from blobsync.backends.login import LoginNode
from blobsync.base.errors import BlobsyncError
from blobsync.config.model import Cluster, FolderEntry
from blobsync.jobs.service import Board, settings_of
from blobsync.jobspec.describe import is_output
from blobsync.jobspec.spec import FolderLink, JobSpec


def empty_links(board: Board, cluster: Cluster, spec: JobSpec) -> Iterator[str]:
    """A sentence for each; a place, or a container, that does not answer at once is passed over."""
    for folder in spec.folders:
        entry = cluster.folder(folder.name)
        if folder.mode != "link" or entry is None or entry.storage_type == "file":
            continue
        try:
            is_there = _look(board, cluster, folder)
            if is_there is not None and _has_blobs(board, cluster, entry):
                yield _sentence(folder, entry, is_there=is_there)
        except BlobsyncError:
            # No job is refused for it; what it needs of both, its own errors say.
            continue


def _look(board: Board, cluster: Cluster, folder: FolderLink) -> bool | None:
    """None: there is something in it. Else whether it is there at all. Raises ``BlobsyncError``."""
    settings = settings_of(cluster)
    if cluster.platform == "slurm" and settings.get("ssh"):
        login = LoginNode(board.process, str(settings["ssh"]), board.environ, str(settings.get("python") or "python3"))
        done = login.run(("ls", "-A", folder.source))
        return None if done.stdout.strip() else done.returncode == 0
    try:
        return None if any(Path(folder.source).iterdir()) else True
    except OSError:
        return False


def _has_blobs(board: Board, cluster: Cluster, entry: FolderEntry) -> bool:
    with board.impatient_store(cluster, entry.account) as store:
        return any(True for _ in store.list_blobs(f"{entry.path}/" if entry.path else ""))


def _sentence(folder: FolderLink, entry: FolderEntry, *, is_there: bool) -> str:
    what = "is empty" if is_there else "is not there"
    road = (
        "what the job writes stays on that disk; mode: upload brings it to the container"
        if is_output(entry)
        else f"blobsync d {entry.prefix} brings them here, mode: download to the job"
    )
    return f"{entry.key} is linked to {folder.source}, which {what}, while {entry.remote} has files: {road}"
