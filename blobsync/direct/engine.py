"""The engine that moves files in this process with the REST client: for small transfers and small changes.

Memory: at most ``BUFFERS`` bytes of file content at once while uploading, threads x 1 MiB while downloading,
none for copies from server to server. Several processes share this limit.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

from blobsync.base.errors import CredentialError, LocalFileError, StorageError
from blobsync.base.events import Listener, notes_to
from blobsync.base.locations import LocalLocation, is_source
from blobsync.base.records import NamedTuple
from blobsync.base.redaction import SasToken
from blobsync.direct.thread_pool import MIB, FileJob, RunState, Stopping, ThreadWork, WorkerPool, WorkerThreads
from blobsync.direct.upload import UploadJob
from blobsync.local.files import LocalFolder, SourceFolder
from blobsync.local.resume_records import BlockJournal, RangeRecords, WriteIntents
from blobsync.plan.blocks import ONE_REQUEST, BlockMemory
from blobsync.plan.transfer_plan import FileAction
from blobsync.store.open_locations import OpenBlob
from blobsync.store.protocol import BlobStore, Orders
from blobsync.transfer.engines import MoveReport, MoveTask

# Job classes are imported on first use: most commands need one, and each import takes a while.
if TYPE_CHECKING:
    from blobsync.local.fetch_records import FetchRecords

BUFFERS = 128 * MIB

# With fewer connections, one of several processes would mostly wait for responses.
_FEWEST = 8

# Above this response time (seconds) the network, not the CPU, limits the transfer.
_FAR = 0.010

# Bytes up to which a file counts as small: larger ones gain from threads that hash in parallel.
_SMALL = 256 * 1024
# Small files under way at a time, to begin with.
_SMALL_START = 32

# Below this amount of work, measuring the response time is not worth it.
_LITTLE_FILES = 16
_LITTLE_BYTES = 2 * MIB


class LineTuning(NamedTuple):
    """Settings for one connection: threads, the largest single-request upload and a download's range size, in bytes."""

    threads: int
    single: int
    range: int


# Measured by benchmarks/run.py; docs/performance.md has the figures.
NEAR = LineTuning(threads=16, single=16 * MIB, range=8 * MIB)
FAR = LineTuning(threads=64, single=4 * MIB, range=4 * MIB)
# Few files over a slow connection: many connections at once, since each starts slowly.
FAR_FEW = LineTuning(threads=64, single=ONE_REQUEST, range=MIB)


class DirectEngine(NamedTuple):
    """Uploads, downloads, copies from server to server, and copies out of the trash.

    ``source_sas`` returns the SAS with which the destination's service reads a copy's source. ``journal`` remembers the
    blocks of uploads; without one, whole files are sent. ``unfinished`` are the records of downloads that were killed;
    without it they start from the beginning. ``fewest_small`` is from how many small files on they get connections of
    their own. ``processes`` is how many processes do the same at the same time and share memory and connections.
    ``intents`` note what is about to be written. ``fetches`` are the records of copies from outside Azure that were
    killed. ``comparing``: an object from outside Azure whose copy nothing else verifies is read once. ``clock``
    (seconds) measures response times.
    """

    source_sas: Callable[[OpenBlob], SasToken | None] | None = None
    journal: BlockJournal | None = None
    unfinished: RangeRecords | None = None
    fewest_small: int = _LITTLE_FILES + 1
    processes: int = 1
    intents: WriteIntents | None = None
    comparing: bool = False
    fetches: "FetchRecords | None" = None
    clock: Callable[[], float] = time.monotonic
    stopping: Stopping = Stopping()

    @property
    def name(self) -> str:
        return "direct"

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
        run = RunState(task, report, listener, BUFFERS // self.processes, self.intents, self.stopping)
        try:
            _work_off(run, self._way(run), self.fewest_small, self.processes)
        except (LocalFileError, CredentialError) as error:
            run.all_failed(error)
        finally:
            if self.journal is not None:
                self.journal.save()

    def _way(self, run: RunState) -> "_Way":
        task = run.task
        source, destination = task.part.source, task.part.destination
        if isinstance(source, OpenBlob):
            if isinstance(destination, OpenBlob):
                return self._copy(run, source, destination)
            return self._download(run, source, destination, _tune(task, source, self.clock))
        if isinstance(destination, OpenBlob):
            return self._upload(run, source, destination, _tune(task, destination, self.clock))
        from blobsync.direct.local_copy import LocalCopyJob

        folder = _folder(task, destination)
        return _Way(NEAR, lambda action: LocalCopyJob(run, action, source, destination, folder))

    def _copy(self, run: RunState, source: OpenBlob, destination: OpenBlob) -> "_Way":
        if is_source(source.store.container):
            from blobsync.direct.copy_from_source import CopyFromSourceJob

            return _Way(
                FAR,
                lambda action: CopyFromSourceJob(
                    run, action, source, destination, comparing=self.comparing, records=self.fetches
                ),
            )
        from blobsync.direct.copy import CopyJob

        sas = self.source_sas(source) if self.source_sas else None
        return _Way(FAR, lambda action: CopyJob(run, action, source, destination, sas))

    def _upload(self, run: RunState, source: LocalLocation, destination: OpenBlob, tuning: LineTuning) -> "_Way":
        folder, store = SourceFolder(source.path, source.boundary), destination.store
        memory = BlockMemory(self.journal, notes_to(run.listener))

        def job(action: FileAction) -> FileJob:
            name = destination.at(action.target or action.path)
            return UploadJob(run, action, folder, store, name, tuning.single, memory)

        return _Way(tuning, job, store)

    def _download(self, run: RunState, source: OpenBlob, destination: LocalLocation, tuning: LineTuning) -> "_Way":
        from blobsync.direct.download import DownloadJob
        from blobsync.direct.large_download import LargeDownloadJob

        folder = _folder(run.task, destination)

        def job(action: FileAction) -> FileJob:
            relative = action.target or action.path or destination.path.name
            store, name = source.store, source.at(action.path)
            if action.size <= tuning.range:
                return DownloadJob(run, action, store, name, folder, relative)
            return LargeDownloadJob(run, action, store, name, folder, relative, tuning.range, self.unfinished)

        return _Way(tuning, job, source.store)


class _Way(NamedTuple):
    """How a task's files are moved. ``single``: the store that small files use, one request each, if there is one."""

    tuning: LineTuning
    job: Callable[[FileAction], FileJob]
    single: BlobStore | None = None


def _work_off(run: RunState, way: _Way, fewest_small: int, processes: int) -> None:
    """Move small files side by side if there are enough of them, all others in the pool, at the same time."""
    # Of a small file nobody sees the metadata.
    one_by_one = run.task.cap_mbps is not None or any(run.task.part.kept)
    small = [] if one_by_one else [action for action in run.task.actions if _is_small(action)]
    single = way.single if len(small) >= max(1, fewest_small) else None
    # A store whose library has none returns None, each time.
    opened: Iterator[Orders] = iter(single.orders, None) if single is not None else iter(())
    first = next(opened, None)
    shifts: list[tuple[ThreadWork, int]] = []
    large: Iterable[FileAction] = run.task.actions
    if first is not None:
        from blobsync.direct.small_files import HANDS, AdaptiveConcurrency, SmallFiles

        width = AdaptiveConcurrency(_share(_SMALL_START, processes), _share(FAR.threads, processes))
        each = chain([first], opened)
        shifts.append((SmallFiles(run, map(way.job, small), lambda: next(each), width), HANDS))
        large = [action for action in run.task.actions if not _is_small(action)]
    pieces = sum(1 + action.size // way.tuning.range for action in large)
    threads = min(_share(way.tuning.threads, processes), pieces)
    shifts.append((WorkerPool(run, map(way.job, large), threads), threads))
    WorkerThreads(run.stop, run.task.stop, patience=run.patience).work(*shifts)


def _share(connections: int, processes: int) -> int:
    """How many of ``connections`` each of several processes uses."""
    return max(connections // processes, min(connections, _FEWEST))


def _is_small(action: FileAction) -> bool:
    """Whether one request moves the file, and its size is certain: a changed source is refused before it is read."""
    in_blocks = action.delta or action.on_record > 0
    return action.source is not None and action.source.size <= _SMALL and not in_blocks


def _folder(task: MoveTask, destination: LocalLocation) -> LocalFolder:
    """The local folder of the task's files; for a single file, its parent folder."""
    single = not any(action.path for action in task.actions)
    place = destination.parent if single else destination
    return LocalFolder(place.path, place.boundary, kept=place.kept)


def _tune(task: MoveTask, end: OpenBlob, clock: Callable[[], float]) -> LineTuning:
    size = sum(action.size for action in task.actions)
    if len(task.actions) <= _LITTLE_FILES and size <= _LITTLE_BYTES:
        return NEAR
    began = clock()
    # A write-only SAS gets an error response, which measures the time as well.
    with suppress(StorageError):
        end.store.head(end.at(task.actions[0].path))
    if clock() - began < _FAR:
        return NEAR
    return FAR if len(task.actions) >= FAR.threads else FAR_FEW
