"""Uploads outputs and logs while the job runs, and once more at its end."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from blobsync.base.errors import BlobsyncError, FailureCode, FileFailure
from blobsync.base.events import Event, Note
from blobsync.base.file_states import LocalState
from blobsync.base.formatting import count_text
from blobsync.base.plan_reasons import Reason
from blobsync.base.process import ProcessRunner
from blobsync.config.mapping import is_below
from blobsync.jobspec.spec import FolderLink
from blobsync.keep.keeper import Files, Keeper, Round, Sets
from blobsync.keep.marks import Marks
from blobsync.keep.watcher import FolderWatcher
from blobsync.local.names import is_temporary
from blobsync.local.tree import TreeEntry
from blobsync.node.job import NodeJob
from blobsync.node.job_checkpoints import folder_sets
from blobsync.node.job_stores import JobStores
from blobsync.node.lost_files import say_left_behind, say_unmarked
from blobsync.node.machine import heartbeat
from blobsync.node.transfers import NodeTransfers, failure_line
from blobsync.plan.transfer_options import ignored_by
from blobsync.store.rest.store import MAX_APPEND_BYTES, RestBlobStore


def mirror_logs(job: NodeJob, places: JobStores) -> bool:
    """Append new lines of this node's logs, its processes' and its own, to their blobs; False if one failed."""
    target, fine = job.spec.logs, True
    if target is None:
        return True
    ranks = range(job.node_rank * job.spec.procs_per_node, (job.node_rank + 1) * job.spec.procs_per_node)
    for path in filter(Path.is_file, (*map(job.rank_log, ranks), job.node_log)):
        relative = path.relative_to(job.run_dir).as_posix()
        name = "/".join(part for part in (target.path, job.task, relative) if part)
        try:
            _append_new(places.container(target.container), name, path)
        except (BlobsyncError, OSError) as error:
            # Not into the log itself: it would grow in every round.
            job.warn(f"blobsync: log {path.name} is not mirrored: {error}")
            fine = False
    return fine


def _append_new(blobs: RestBlobStore, name: str, path: Path) -> None:
    """Append what is new; a blob that is longer than the file is another file's and is replaced."""
    there = blobs.appendable_size(name)
    if there is None or there > path.stat().st_size:
        blobs.create_appendable(name, "text/plain")
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
    """Uploads outputs and logs in rounds: ``start`` begins them, ``stop`` makes the last one.

    Heartbeats and logs have a thread of their own: a round of outputs may take minutes.
    """

    def __init__(self, job: NodeJob, places: JobStores, also: Sequence[Keeper] = ()) -> None:
        """``also`` are keepers besides those of the job's own folders."""
        self._job = job
        self._transfers = NodeTransfers(job)
        self._mirror = partial(mirror_logs, job, places)
        entries = job.folders("upload")
        self._sets = [folder_sets(job, places, self._transfers, entry) for entry in entries]
        pairs = zip(entries, self._sets, strict=True)
        own = [_keeper(job, places, self._transfers, entry, sets) for entry, sets in pairs]
        self._keepers = [*also, *own]
        self._faults = set[str]()
        self._done = threading.Event()
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._rounds, self._beats)]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self, code: int | None = None) -> bool:
        """Make the last round; False if something could not be uploaded. ``code`` is what the command ended with."""
        self._done.set()
        for sets in self._sets:
            if sets:
                sets.ended_well = code == 0
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        try:
            # Outputs first, because the log reports them.
            done = [self._upload_last(keeper) for keeper in self._keepers]
            if code is not None:
                say_left_behind(self._job, code)
                say_unmarked(self._job, {name for sets in self._sets if sets for name in sets.unmarked})
            return all([*done, self._mirror()])
        finally:
            self._transfers.close()

    def _rounds(self) -> None:
        while not self._done.wait(self._job.sync_seconds):
            for keeper in self._keepers:
                self._round(keeper)

    def _beats(self) -> None:
        while not self._done.wait(self._job.sync_seconds):
            behind = [seconds for keeper in self._keepers if (seconds := keeper.behind()) is not None]
            self._job.say(heartbeat(self._job, ProcessRunner(), max(behind, default=None)))
            self._mirror()

    def _upload_last(self, keeper: Keeper) -> bool:
        """Upload all of it, again if another node wrote meanwhile; False if something failed."""
        for _ in range(_LAST_ROUNDS):
            made = self._round(keeper, last=True)
            if not any(each.code in _MEANWHILE for each in made.failures):
                break
        if made.failures:
            count = count_text(len(made.failures), "output file")
            self._job.say(f"not uploaded: {count}; the first: {failure_line(made.failures[0])}")
        elif made.problem:
            self._job.say(f"not uploaded: {keeper.folder.name}: {made.problem}")
        return not made.failures and not made.problem

    def _round(self, keeper: Keeper, *, last: bool = False) -> Round:
        """One round; none of a folder that is missing, as on a node that was never ready."""
        try:
            if not keeper.folder.is_dir():
                return Round()
            made = keeper.round(last=last)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other folders and the next round go on
            fault = f"a fault of blobsync: {type(error).__name__}: {error}"
            if (said := f"upload of {keeper.folder.name}: {fault}; the next round tries again") not in self._faults:
                self._faults.add(said)
                self._job.say(said)
            return Round(problem=fault)
        for failure in made.fresh:
            # The others were told when they failed.
            if failure.code is FailureCode.UNREADABLE:
                self._job.say(f"upload of {failure.message}")
        return made


def _keeper(job: NodeJob, places: JobStores, transfers: NodeTransfers, entry: FolderLink, sets: Sets | None) -> Keeper:
    """The keeper of one output folder; it polls, since the node archive has no ``watchfiles``."""
    base = job.root / entry.name

    def upload(files: Files) -> Sequence[FileFailure]:
        marks = Marks(places.container(entry.container), entry.path, job.say, lambda lineage: None)
        destination = places.blobs(entry.container, entry.path)
        return transfers.upload(entry, base, files, destination, lambda: marks.lineages().keys())

    def emit(event: Event) -> None:
        if isinstance(event, Note):
            job.say(f"upload of {event.text}")

    watcher = FolderWatcher(base, partial(_files_below, base), emit=emit, shown=entry.name)
    ignored = ignored_by([("", entry.ignore)])
    return Keeper(
        base, watcher, upload, settle=_SETTLED_SECONDS, ignored=ignored, sets=sets, emit=emit, shown=entry.name
    )


def _files_below(base: Path, below: str, followed: dict[str, str]) -> Iterator[TreeEntry]:
    """Every file, also behind a link; linked folders are not the job's outputs, and those elsewhere are left out."""
    unreadable: list[OSError] = []
    real = os.path.realpath(base)
    for folder, folders, names in os.walk(base / below, onerror=unreadable.append):
        for path in (Path(folder, name) for name in folders):
            if path.is_symlink() and not is_below(os.path.realpath(path), real):
                yield TreeEntry(path.relative_to(base).as_posix(), None, Reason.SYMLINK_TO_FOLDER)
        for name in names:
            path = Path(folder, name)
            try:
                found = path.stat()
            except OSError:
                # A program may remove its files and leave dangling links.
                continue
            if stat.S_ISREG(found.st_mode) and not is_temporary(name):
                yield TreeEntry(path.relative_to(base).as_posix(), LocalState.of(found))
    for error in unreadable:
        # A program may remove its folders.
        if not isinstance(error, FileNotFoundError):
            place = os.path.relpath(error.filename, base)
            yield TreeEntry("" if place == "." else place, None, Reason.UNREADABLE, error.strerror or str(error))
