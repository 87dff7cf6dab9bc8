"""What the project's jobs answer: logs, reports, diagnoses, and what became of a request to stop several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from blobsync.base.errors import BlobsyncError
from blobsync.jobs.logs import FetchedLogs
from blobsync.jobs.record import JobRecord

if TYPE_CHECKING:
    from blobsync.jobs.parse import FoundCause


class LogLine(NamedTuple):
    """One line of a running job: its text, the process that wrote it (None: the system), and the log's name."""

    text: str
    rank: int | None
    log: str


@dataclass(frozen=True, slots=True)
class JobLog:
    """The lines of one log; ``name`` is None where the job has no such log yet. ``fetched`` are all that are here."""

    record: JobRecord
    name: str | None
    lines: tuple[str, ...]
    fetched: FetchedLogs

    def __repr__(self) -> str:
        return f"<JobLog {self.name!r} of {self.record.run_id}: {len(self.lines):,} lines>"


@dataclass(frozen=True, slots=True)
class JobReport:
    """One job with the last lines of rank 0, its logs, and, where it failed, the causes that are known."""

    record: JobRecord
    tail: tuple[str, ...]
    fetched: FetchedLogs
    causes: tuple[FoundCause, ...] = ()

    def __repr__(self) -> str:
        return f"<JobReport {self.record.run_id}: {self.record.state}, {len(self.causes)} causes>"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The known causes of failure that a job's logs show; ``is_retriable``: another try may help."""

    record: JobRecord
    causes: tuple[FoundCause, ...]
    is_retriable: bool

    def __repr__(self) -> str:
        codes = ", ".join(found.cause.code for found in self.causes) or "no known cause"
        return f"<Diagnosis of {self.record.run_id}: {codes}>"


@dataclass(frozen=True, slots=True)
class Cancellation:
    """Several jobs after a request to stop; ``errors`` name those that could not be asked, and why."""

    records: tuple[JobRecord, ...]
    errors: tuple[BlobsyncError, ...] = ()

    def __repr__(self) -> str:
        return f"<Cancellation: {len(self.records) - len(self.errors):,} of {len(self.records):,} jobs>"
