"""The engine that moves files in this process, over the REST client: small work, and small changes in large trees.

Memory: at most ``BUFFERS`` bytes of file content at once while uploading, threads x 1 MiB while downloading,
none for copies from server to server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from blobsync.base.errors import CredentialError, LocalFileError, StorageError
from blobsync.base.locations import SasToken
from blobsync.direct.copy import CopyJob
from blobsync.direct.download import DownloadJob
from blobsync.direct.large_download import LargeDownloadJob
from blobsync.direct.pool import MIB, FileJob, RunState, WorkerPool
from blobsync.direct.sent_blocks import BlockMemory
from blobsync.direct.upload import UploadJob
from blobsync.local.block_journal import BlockJournal
from blobsync.local.files import LocalFolder
from blobsync.local.range_records import RangeRecords
from blobsync.plan.block_edges import ONE_REQUEST
from blobsync.plan.listener import Listener
from blobsync.store.ends import LocalEnd, RemoteEnd
from blobsync.store.protocol import BlobStore
from blobsync.transfer.engines import MoveReport, MoveTask

BUFFERS = 128 * MIB

# Above this response time (seconds) the network, not the CPU, limits the transfer.
_FAR = 0.010

# Below this amount of work, measuring the response time is not worth it.
_LITTLE_FILES = 16
_LITTLE_BYTES = 2 * MIB


class LineTuning(NamedTuple):
    """How to use one line: threads, the largest upload in one request and a download's ranges in bytes."""

    threads: int
    single: int
    range: int


# Measured by benchmarks/run.py; docs/performance.md has the figures.
NEAR = LineTuning(threads=16, single=16 * MIB, range=8 * MIB)
FAR = LineTuning(threads=64, single=4 * MIB, range=4 * MIB)
# Few files over a long line: many connections at once, since each starts slowly.
FAR_FEW = LineTuning(threads=64, single=ONE_REQUEST, range=MIB)


class DirectEngine:
    """Uploads, downloads, and copies from server to server."""

    name = "direct"

    def __init__(
        self,
        *,
        source_sas: Callable[[RemoteEnd], SasToken | None] | None = None,
        journal: BlockJournal | None = None,
        unfinished: RangeRecords | None = None,
    ) -> None:
        """``source_sas`` gives what the destination's service reads a copy's source with.

        ``journal`` remembers the blocks of uploads; without one, whole files are sent. ``unfinished`` are the downloads
        that were killed, on record; without it they start anew.
        """
        self._source_sas = source_sas
        self._journal = journal
        self._unfinished = unfinished

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
        """See :class:`blobsync.transfer.engines.Engine`."""
        run = RunState(task, report, listener, BUFFERS)
        if not task.actions:
            return
        try:
            tuning, jobs = self._jobs(run)
            pieces = sum(1 + action.size // tuning.range for action in task.actions)
            WorkerPool(run, jobs, min(tuning.threads, pieces)).work()
        except (LocalFileError, CredentialError) as error:
            run.all_failed(error)
        finally:
            if self._journal is not None:
                self._journal.save()

    def _jobs(self, run: RunState) -> tuple[LineTuning, Iterator[FileJob]]:
        task = run.task
        source, destination = task.part.source, task.part.destination
        if isinstance(source, LocalEnd) and isinstance(destination, RemoteEnd):
            tuning = _tune(task, destination)
            memory = BlockMemory(self._journal, run.listener.note)
            return tuning, _uploads(run, source, destination, tuning, memory)
        if isinstance(source, RemoteEnd) and isinstance(destination, LocalEnd):
            tuning = _tune(task, source)
            return tuning, self._downloads(run, source, destination, _folder(task, destination), tuning)
        if isinstance(source, RemoteEnd) and isinstance(destination, RemoteEnd):
            sas = self._source_sas(source) if self._source_sas else None
            return FAR, (CopyJob(run, action, source, destination, sas) for action in task.actions)
        raise ValueError("a move needs a blob at one end")

    def _downloads(
        self, run: RunState, source: RemoteEnd, destination: LocalEnd, folder: LocalFolder, tuning: LineTuning
    ) -> Iterator[FileJob]:
        for action in run.task.actions:
            relative = action.target or action.path or destination.root.name
            name = source.at(action.path)
            if action.size <= tuning.range:
                yield DownloadJob(run, action, source.store, name, folder, relative)
            else:
                yield LargeDownloadJob(
                    run, action, source.store, name, folder, relative, tuning.range, self._unfinished
                )


def _uploads(
    run: RunState, source: LocalEnd, destination: RemoteEnd, tuning: LineTuning, memory: BlockMemory
) -> Iterator[FileJob]:
    for action in run.task.actions:
        name = destination.at(action.target or action.path)
        yield UploadJob(run, action, source.at(action.path), destination.store, name, tuning.single, memory)


def _folder(task: MoveTask, destination: LocalEnd) -> LocalFolder:
    """The folder that the files of the task are below: of a single file, the one it is in."""
    single = len(task.actions) == 1 and not task.actions[0].path
    return LocalFolder(destination.root.parent if single else destination.root, destination.boundary)


def _tune(task: MoveTask, end: RemoteEnd) -> LineTuning:
    size = sum(action.size for action in task.actions)
    if len(task.actions) <= _LITTLE_FILES and size <= _LITTLE_BYTES:
        return NEAR
    first = task.actions[0]
    if _answer_time(end.store, end.at(first.path)) < _FAR:
        return NEAR
    return FAR if len(task.actions) >= FAR.threads else FAR_FEW


def _answer_time(store: BlobStore, name: str) -> float:
    began = time.monotonic()
    # A write-only SAS is refused, which measures the time as well.
    with suppress(StorageError):
        store.head(name)
    return time.monotonic() - began
