"""Stores that show what is not there, and engines that report what did not happen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from blobsync.base.failure_codes import FailureCode
from blobsync.base.reasons import Reason
from blobsync.direct.engine import DirectEngine
from blobsync.plan.listener import Listener
from blobsync.plan.transfer_plan import Action, FileAction, FileFailure
from blobsync.store.protocol import BlobInfo
from blobsync.transfer.engines import CollectedReport, Moved, MoveReport, MoveTask
from tests.fakes.store import MemoryStore

Lie = Callable[[BlobInfo], BlobInfo | None]


def missing(blob: BlobInfo) -> BlobInfo | None:
    """It is there, and is not shown."""
    return None


def another_size(blob: BlobInfo) -> BlobInfo | None:
    """One byte more than there is."""
    return blob._replace(size=blob.size + 1)


def another_md5(blob: BlobInfo) -> BlobInfo | None:
    """The MD5 of something else."""
    return blob._replace(md5=b"another content.")


def no_md5(blob: BlobInfo) -> BlobInfo | None:
    """As blobs are that other tools uploaded in blocks."""
    return blob._replace(md5=None)


class LyingStore(MemoryStore):
    """Shows ``lie`` of each blob, in listings and to single questions, as long as ``lies`` says so.

    ``invented`` stand in listings only; of ``repeated`` names a listing tells twice, the second time at its end.
    Deletions are accepted and not done where ``keeps`` is set. The answers to writes are honest.
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


# What is said of a task, made out of what is true.
Tell = Callable[[MoveTask, CollectedReport], CollectedReport]


@dataclass
class LyingEngine:
    """Hands the task to an honest engine where ``works``, and lets ``tell`` make the report out of the true one.

    Without a look of its own: what it moved is to be looked at by others, as with azcopy.
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
            report.file_moved(moved)
        for action, failure in told.failed:
            report.file_failed(action, failure)
        for name in told.strays:
            report.stray(name)
        for job_id in told.azcopy_job_ids:
            report.azcopy_job(job_id)


def the_truth(task: MoveTask, report: CollectedReport) -> CollectedReport:
    return report


def nothing(task: MoveTask, report: CollectedReport) -> CollectedReport:
    """Neither moved nor failed."""
    return CollectedReport()


def all_but_the_first(task: MoveTask, report: CollectedReport) -> CollectedReport:
    """One file neither moved nor failed."""
    first = task.actions[0].path
    report.moved = [moved for moved in report.moved if moved.action.path != first]
    return report


def all_moved(task: MoveTask, report: CollectedReport) -> CollectedReport:
    """Everything is there, whatever happened."""
    return CollectedReport([Moved(action, source=action.source) for action in task.actions])


def everything_twice(task: MoveTask, report: CollectedReport) -> CollectedReport:
    """Each file two times."""
    return replace(report, moved=report.moved * 2, failed=report.failed * 2)


def moved_and_failed(task: MoveTask, report: CollectedReport) -> CollectedReport:
    """Each file in both lists."""
    failed = [(action, FileFailure(action.path, FailureCode.STORAGE_ERROR, "it gave up")) for action in task.actions]
    return replace(report, failed=failed)


def a_stranger(task: MoveTask, report: CollectedReport) -> CollectedReport:
    """One file more than it was given."""
    return replace(report, moved=[*report.moved, Moved(stranger())])


def a_failed_stranger(task: MoveTask, report: CollectedReport) -> CollectedReport:
    """One file more than it was given, and that one failed."""
    return replace(
        report, failed=[*report.failed, (stranger(), FileFailure("x", FailureCode.STORAGE_ERROR, "it gave up"))]
    )


def stranger() -> FileAction:
    return FileAction("stranger", Action.TRANSFER, Reason.NEW, 1)
