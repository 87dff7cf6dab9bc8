"""Stores with false listings, and engines with false reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from blobsync.base.errors import FailureCode, FileFailure
from blobsync.base.events import Listener
from blobsync.base.plan_reasons import Reason
from blobsync.direct.engine import DirectEngine
from blobsync.plan.transfer_plan import Action, FileAction
from blobsync.store.protocol import BlobInfo
from blobsync.transfer.engines import CollectedReport, Moved, MoveReport, MoveTask
from tests.fakes.store import MemoryStore

Lie = Callable[[BlobInfo], BlobInfo | None]


def missing(blob: BlobInfo) -> BlobInfo | None:
    """Hide the blob."""
    return None


def another_size(blob: BlobInfo) -> BlobInfo | None:
    """Report one byte too many."""
    return blob._replace(size=blob.size + 1)


def another_md5(blob: BlobInfo) -> BlobInfo | None:
    """Report the MD5 of other content."""
    return blob._replace(md5=b"another content.")


def no_md5(blob: BlobInfo) -> BlobInfo | None:
    """Report no MD5, as of blobs that other tools uploaded in blocks."""
    return blob._replace(md5=None)


class LyingStore(MemoryStore):
    """Applies ``lie`` to each blob, in listings and single requests, as long as ``lies`` returns True.

    ``invented`` blobs are in listings only; ``repeated`` names are listed again at the end. With ``keeps``, deletions
    are accepted and not done. The responses to writes are true.
    """

    def __init__(self, lie: Lie = lambda blob: blob) -> None:
        super().__init__()
        self.lie = lie
        self.lies = True
        self.invented: list[BlobInfo] = []
        self.repeated: set[str] = set()
        self.keeps = False

    def list_blobs(self, prefix: str = "") -> Iterator[BlobInfo]:
        again = []
        for blob in super().list_blobs(prefix):
            shown = self.lie(blob) if self.lies else blob
            if shown is not None:
                yield shown
            if blob.name in self.repeated:
                again.append(blob)
        yield from again
        yield from (blob for blob in self.invented if blob.name.startswith(prefix))

    def head(self, name: str) -> BlobInfo | None:
        blob = super().head(name)
        return self.lie(blob) if blob and self.lies else blob

    def delete_many(self, names: Sequence[str], *, etags: Mapping[str, str] | None = None) -> Mapping[str, str]:
        return {} if self.keeps else super().delete_many(names, etags=etags)


# Makes a false report of a task from the true one.
Tell = Callable[[MoveTask, CollectedReport], CollectedReport]


@dataclass
class LyingEngine:
    """Runs the real engine if ``works``, and reports what ``tell`` makes of the true report.

    Without destination states, as azcopy.
    """

    tell: Tell
    works: bool = True
    tasks: list[MoveTask] = field(default_factory=list)

    @property
    def name(self) -> str:
        return "azcopy"

    def move(self, task: MoveTask, report: MoveReport, listener: Listener) -> None:
        self.tasks.append(task)
        done = CollectedReport()
        if self.works:
            DirectEngine().move(task, done, listener)
            done.moved = [moved._replace(destination=None) for moved in done.moved]
        told = self.tell(task, done)
        for moved in told.moved:
            report.files_moved([moved])
        for action, failure in told.failed:
            report.file_failed(action, failure)
        for name in told.strays:
            report.stray(name)
        for job_id in told.azcopy_job_ids:
            report.azcopy_job(job_id)


def the_truth(task: MoveTask, report: CollectedReport) -> CollectedReport:
    return report


def nothing(task: MoveTask, report: CollectedReport) -> CollectedReport:
    """Report no file at all."""
    return CollectedReport()


def all_but_the_first(task: MoveTask, report: CollectedReport) -> CollectedReport:
    """Leave one file out of the report."""
    first = task.actions[0].path
    report.moved = [moved for moved in report.moved if moved.action.path != first]
    return report


def all_moved(task: MoveTask, report: CollectedReport) -> CollectedReport:
    """Report every file as moved."""
    return CollectedReport([Moved(action, source=action.source) for action in task.actions])


def everything_twice(task: MoveTask, report: CollectedReport) -> CollectedReport:
    """Report each file twice."""
    return replace(report, moved=report.moved * 2, failed=report.failed * 2)


def moved_and_failed(task: MoveTask, report: CollectedReport) -> CollectedReport:
    """Report each file as moved and as failed."""
    failed = [(action, FileFailure(action.path, FailureCode.STORAGE_ERROR, "it gave up")) for action in task.actions]
    return replace(report, failed=failed)


def a_stranger(task: MoveTask, report: CollectedReport) -> CollectedReport:
    """Report one more file than the task has."""
    return replace(report, moved=[*report.moved, Moved(stranger())])


def a_failed_stranger(task: MoveTask, report: CollectedReport) -> CollectedReport:
    """Report one more file than the task has, as failed."""
    return replace(
        report, failed=[*report.failed, (stranger(), FileFailure("x", FailureCode.STORAGE_ERROR, "it gave up"))]
    )


def stranger() -> FileAction:
    return FileAction("stranger", Action.TRANSFER, Reason.NEW, 1)
