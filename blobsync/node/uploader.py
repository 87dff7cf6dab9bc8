"""Uploads outputs and logs while the job runs, and once more at its end."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from blobsync.base.errors import BlobsyncError, FailureCode
from blobsync.base.file_states import LocalState
from blobsync.base.process import SubprocessRunner
from blobsync.jobspec.spec import FolderLink
from blobsync.local.names import is_temporary
from blobsync.node.job import NodeJob
from blobsync.node.machine import heartbeat
from blobsync.node.places import JobPlaces
from blobsync.node.transfers import NodeTransfers
from blobsync.plan.transfer_options import ignored_by
from blobsync.store.rest.append import MAX_APPEND_BYTES, RestAppendBlobs


class NodeLogs:
    """Uploads one node's logs, its processes' and its own, as append blobs."""

    def __init__(self, job: NodeJob, places: JobPlaces) -> None:
        self._job = job
        self._places = places

    def append_new(self) -> bool:
        """Append new lines to each blob; False if one failed."""
        target, fine = self._job.spec.logs, True
        if target is None:
            return True
        for path in self._log_files():
            relative = path.relative_to(self._job.run_dir).as_posix()
            name = "/".join(part for part in (target.path, self._job.task, relative) if part)
            try:
                _append_new(self._places.appendable(target.container), name, path)
            except (BlobsyncError, OSError) as error:
                # Not into the log itself: it would grow in every round.
                self._job.warn(f"blobsync: log {path.name} is not mirrored: {error}")
                fine = False
        return fine

    def _log_files(self) -> Iterator[Path]:
        first = self._job.node_rank * self._job.spec.procs_per_node
        for rank in range(first, first + self._job.spec.procs_per_node):
            if (log := self._job.rank_log(rank)).is_file():
                yield log
        if self._job.node_log.is_file():
            yield self._job.node_log


def _append_new(blobs: RestAppendBlobs, name: str, path: Path) -> None:
    """Append what is new; a blob that is longer than the file is another file's and is replaced."""
    there = blobs.size(name)
    if there is None or there > path.stat().st_size:
        blobs.create(name, "text/plain")
        there = 0
    with path.open("rb") as body:
        body.seek(there)
        while block := body.read(MAX_APPEND_BYTES):
            blobs.append(name, block, at=there)
            there += len(block)


# A file unchanged for so many seconds counts as complete.
_SETTLED_SECONDS = 5.0
# Several nodes may upload to one folder.
_LAST_ROUNDS = 3
_MEANWHILE = frozenset({FailureCode.CHANGED_MEANWHILE, FailureCode.CHANGED_WHILE_READ})


class Uploader:
    """Uploads outputs and logs in rounds: ``start`` begins them, ``stop`` makes the last one."""

    def __init__(self, job: NodeJob, places: JobPlaces) -> None:
        self._job = job
        self._places = places
        self._transfers = NodeTransfers(job)
        self._mirror = NodeLogs(job, places)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._rounds, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> bool:
        """Make the last round; False if something could not be uploaded."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()
        try:
            # Outputs first, because the log reports them.
            done = [self._upload_last(entry) for entry in self._job.folders("upload")]
            return all([*done, self._mirror.append_new()])
        finally:
            self._transfers.close()

    def _rounds(self) -> None:
        while not self._done.wait(self._job.sync_seconds):
            self._job.say(heartbeat(self._job, SubprocessRunner()))
            for entry in self._job.folders("upload"):
                self._upload(entry, settled_for=_SETTLED_SECONDS)
            self._mirror.append_new()

    def _upload_last(self, entry: FolderLink) -> bool:
        """Upload all of it, again if another node wrote meanwhile; False if something failed."""
        for _ in range(_LAST_ROUNDS):
            failed = self._upload(entry, settled_for=None)
            if not failed & _MEANWHILE:
                break
        return not failed

    def _upload(self, entry: FolderLink, *, settled_for: float | None) -> set[FailureCode]:
        """Upload new and changed files, but not those changed within the last ``settled_for`` seconds.

        Returns the codes of failures.
        """
        base, unreadable = self._job.root / entry.name, list[OSError]()
        ignored = ignored_by([("", entry.ignore)])
        files = {
            path: state
            for path, state in _files_below(base, unreadable)
            if _is_settled(state, settled_for) and not (ignored and ignored(path))
        }
        failed = set[FailureCode]()
        for error in unreadable:
            self._job.say(f"upload of {entry.name}: cannot read {error.filename}: {error.strerror}")
            failed.add(FailureCode.LOCAL_FILE)
        try:
            destination = self._places.blobs(entry.container, entry.path)
            return failed.union(failure.code for failure in self._transfers.upload(entry, base, files, destination))
        except BlobsyncError as error:
            self._job.say(f"upload of {entry.name}: {error}")
            return failed | {error.code}


def _is_settled(state: LocalState, seconds: float | None) -> bool:
    return seconds is None or time.time() - state.mtime_ns / 1e9 > seconds


def _files_below(base: Path, unreadable: list[OSError]) -> Iterator[tuple[str, LocalState]]:
    """Every file, also behind a link; linked folders are not the job's outputs."""

    def note(error: OSError) -> None:
        # The folder is missing if the node was never ready, and a program may remove its files.
        if not isinstance(error, FileNotFoundError):
            unreadable.append(error)

    for folder, _, names in os.walk(base, onerror=note):
        for name in names:
            path = Path(folder, name)
            try:
                found = path.stat()
            except OSError:
                # A program may remove its files and leave dangling links.
                continue
            if stat.S_ISREG(found.st_mode) and not is_temporary(name):
                yield path.relative_to(base).as_posix(), LocalState.of(found)
