"""Uploads outputs and logs while the job runs, and once more at its end; says then what is lost."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from blobsync.base.errors import BlobsyncError, FailureCode, FileFailure
from blobsync.base.events import Event, Note
from blobsync.base.file_states import LocalState
from blobsync.base.formatting import count_text, printable, size_text
from blobsync.base.plan_reasons import Reason
from blobsync.config.mapping import is_below
from blobsync.jobspec.spec import FolderLink
from blobsync.keep.keeper import Files, Keeper, Round, Sets
from blobsync.keep.marks import Marks
from blobsync.keep.watcher import FolderWatcher
from blobsync.local.names import is_temporary
from blobsync.local.tree import TreeEntry
from blobsync.node.job import NodeJob, write_text
from blobsync.node.job_checkpoints import folder_sets
from blobsync.node.job_stores import JobStores
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
            self._job.say(heartbeat(self._job, max(behind, default=None)))
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


# The log names at most so many files, the largest ones, of at most so many.
_NAMED = 5
_LOOKED_AT = 100_000
# Python's and other programs' own, which nobody misses.
_CACHES = frozenset({"__pycache__", ".cache", ".ipynb_checkpoints", ".triton", ".mypy_cache", ".pytest_cache"})


def say_left_behind(job: NodeJob, code: int) -> None:
    """Say once, before the job's code is removed from this node, what was written beside it since the node was ready.

    ``code`` is what the command ended with.
    """
    said = job.beside("left-behind")
    if not job.removes_root(code) or said.exists():
        return
    with suppress(OSError):
        found = sorted(_written(job), reverse=True)
        if found:
            job.say(_sentence(job, found))
            write_text(said, "")


def say_unmarked(job: NodeJob, names: Collection[str]) -> None:
    """Say at the end which sets got no mark, so that no restart takes them."""
    if names:
        shown = ", ".join([*map(printable, sorted(names)[:_NAMED]), *(["..."] if len(names) > _NAMED else [])])
        job.say(f"left without a mark: {count_text(len(names), 'checkpoint')}: {shown}; blobsync checkpoints says why")


def _written(job: NodeJob) -> Iterator[tuple[int, str]]:
    """Size (bytes) and path of each file that was written since the node was ready."""
    since, root = job.beside("ready").stat().st_mtime_ns, str(job.root)
    own = {os.path.join(root, entry.name) for entry in job.spec.folders}
    left = _LOOKED_AT
    for folder, inner, names in os.walk(root):
        inner[:] = [name for name in inner if name not in _CACHES and os.path.join(folder, name) not in own]
        for name in names:
            left -= 1
            if left < 0:
                return
            with suppress(OSError):
                file = Path(folder, name)
                found = file.lstat()
                is_data = stat.S_ISREG(found.st_mode) and not is_temporary(name) and file.suffix != ".pyc"
                if is_data and found.st_ctime_ns > since and str(file) not in own:
                    yield found.st_size, file.relative_to(root).as_posix()


def _sentence(job: NodeJob, found: list[tuple[int, str]]) -> str:
    names = [printable(name) for _, name in found[:_NAMED]]
    more = ", ..." if len(found) > _NAMED else ""
    count = f"{count_text(len(found), 'file')}, {size_text(sum(size for size, _ in found))}"
    # What uploads comes first: a linked folder most often holds the data that the job reads.
    entries = [entry for mode in ("upload", "link", "mount") for entry in job.folders(mode)]
    kept = next((entry.name for entry in entries if not entry.read_only), "")
    folder = next((name.partition("/")[0] for _, name in found if "/" in name), "")
    ways = [f"write them below {kept}/"] if kept else []
    ways += [f"add {printable(folder)}_folder with mode: upload to the cluster file"] if folder else []
    hint = f"; to keep such files {', or '.join(ways)}" if ways else ""
    return f"left behind: {count} outside of the job's folders, removed with its code: {', '.join(names)}{more}{hint}"
