"""Resubmits a job while its failures look temporary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from blobsync.jobs.parse import FoundCause, is_retriable, read_causes, summarise
from blobsync.jobs.record import JobRecord
from blobsync.jobs.service import JobService
from blobsync.jobs.submit import resubmit
from blobsync.jobspec.spec import State


@dataclass(frozen=True, slots=True)
class Attempt:
    """One ended attempt; ``next_id`` is the job that was submitted in its place, None for the last."""

    record: JobRecord
    causes: tuple[FoundCause, ...] = ()
    next_id: str | None = None

    def __repr__(self) -> str:
        again = f", submitted again as {self.next_id}" if self.next_id else ""
        return f"<Attempt {self.record.run_id}: {self.record.state}, {len(self.causes)} causes{again}>"


def watch(
    service: JobService, record: JobRecord, retries: int, wait: Callable[[JobRecord], JobRecord] | None = None
) -> Iterator[Attempt]:
    """Wait for the end of the job; resubmit it at most ``retries`` times, each time with its own code."""
    wait = wait or service.wait
    while True:
        record = wait(record)
        if record.info.state is not State.FAILED:
            yield Attempt(record)
            return
        causes = find_causes(service, record)
        listed = record.info.exit_code in record.spec.retry_exit_codes
        if retries <= 0 or not (is_retriable(causes) or listed):
            yield Attempt(record, causes)
            return
        retries -= 1
        new = resubmit(service, record).record
        yield Attempt(record, causes, new.run_id)
        record = new


def find_causes(service: JobService, record: JobRecord) -> tuple[FoundCause, ...]:
    """From the logs, and from the reason that the cluster gives."""
    told = read_causes("the cluster", [record.info.reason])
    return summarise([*told, *service.causes(service.logs(record))])
