"""Folders that a job will find empty on the disk while its container has files for them.

No job is refused for one: what it needs of both is checked elsewhere, and what does not answer is skipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from blobsync.backends.login_node import LoginNode
from blobsync.base.errors import BlobsyncError
from blobsync.base.locations import below
from blobsync.config.model import Cluster, FolderEntry
from blobsync.jobs.context import JobContext
from blobsync.jobspec.spec import FolderLink, JobSpec

# How deep below an entry folders are looked at, how many names are read for that, and how many empty ones the container
# is asked about: a submission is not to wait for it.
_DEEPEST, _MOST_NAMES, _MOST_ASKED = 3, 10_000, 8
# Without Python, because a login node may have none that fits. $0 is the folder.
_LOOK = f'[ -d "$0" ] || exit 3; timeout 5 find -L "$0" -maxdepth {_DEEPEST} -type d -empty | head -n {_MOST_ASKED}'


def empty_links(context: JobContext, cluster: Cluster, spec: JobSpec) -> Iterator[str]:
    """A sentence for each linked folder that is empty, or has an empty one in it, while its container is not."""
    for folder in spec.folders:
        entry = cluster.folder(folder.name)
        if folder.mode != "link" or entry is None or entry.storage_type == "file":
            continue
        try:
            empty = _look(context, cluster, folder)
            inner = _first_with_blobs(context, cluster, entry, empty)
        except BlobsyncError:
            continue
        if inner is not None:
            what = f"where {inner} is empty" if inner else f"which {_said(empty)}"
            remedy = (
                "what the job writes stays on that disk; mode: upload brings it to the container"
                if entry.is_output
                else f"blobsync d {below(entry.prefix, inner)} brings them here, mode: download to the job"
            )
            there = below(str(entry.remote), inner)
            yield f"{entry.key} is linked to {folder.source}, {what}, while {there} has files: {remedy}"


def empty_here(context: JobContext, cluster: Cluster) -> Iterator[str]:
    """The same for a command that runs in the project's folder: whatever the mode of a folder, it sees what is on this
    disk."""
    for entry in cluster.folders:
        if entry.is_output or entry.storage_type == "file":
            continue
        try:
            empty = _empty_below(cluster.root / entry.prefix)
            inner = _first_with_blobs(context, cluster, entry, empty)
        except BlobsyncError:
            continue
        if inner is not None:
            path, there = below(entry.prefix, inner), below(str(entry.remote), inner)
            yield f"{path} {_said(empty)}, while {there} has files: blobsync d {path} brings them"


def _look(context: JobContext, cluster: Cluster, folder: FolderLink) -> Sequence[str] | None:
    """The empty folders below it, '' for itself; None: it is not there. Raises ``BlobsyncError``."""
    ssh = cluster.text("ssh")
    if cluster.platform != "slurm" or not ssh:
        return _empty_below(Path(folder.source))
    login = LoginNode(context.process, ssh, context.environ, "python3")
    done = login.run(("sh", "-c", _LOOK, folder.source))
    if done.returncode:
        return None
    root = f"{folder.source}/"
    return [f"{line}/"[len(root) :].rstrip("/") for line in done.stdout.splitlines() if f"{line}/".startswith(root)]


def _empty_below(folder: Path) -> Sequence[str] | None:
    """The empty folders below this one, '' for itself, as far as a short look shows; None: it is not there."""
    found: list[str] = []
    left, level = _MOST_NAMES, [""]
    for _ in range(_DEEPEST + 1):
        inner: list[str] = []
        for name in level:
            try:
                with os.scandir(folder / name) as entries:
                    seen = list(islice(entries, left))
            except OSError:
                if not name:
                    return None
                continue
            if not seen and left:
                found.append(name)
            left -= len(seen)
            inner += sorted(f"{name}/{entry.name}".lstrip("/") for entry in seen if _is_folder(entry))
        level = inner
    return found


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _first_with_blobs(
    context: JobContext, cluster: Cluster, entry: FolderEntry, empty: Sequence[str] | None
) -> str | None:
    """The first of these folders for which the container has files; '' is the entry itself."""
    asked = [""] if empty is None else [name for name in empty if not name or not entry.is_output]
    for name in asked[:_MOST_ASKED]:
        prefix = below(entry.path, name)
        with context.store(cluster, entry.account, patient=False) as store:
            if any(True for _ in store.list_blobs(f"{prefix}/" if prefix else "")):
                return name
    return None


def _said(empty: Sequence[str] | None) -> str:
    return "is not there" if empty is None else "is empty"
