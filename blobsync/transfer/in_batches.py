"""Carries out a plan that memory cannot hold: as many ordinary plans, one after the other, with one result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from blobsync.base.amounts import count_text
from blobsync.base.errors import TransferCancelledError
from blobsync.base.failure_codes import FailureCode
from blobsync.local.sorted_runs import Spill
from blobsync.plan.large_plan import LargePlan
from blobsync.plan.listener import Listener
from blobsync.plan.project_context import PartOpener
from blobsync.plan.transfer_plan import Action, FileFailure, TransferPlan, TransferResult
from blobsync.transfer.carry_out import Engines, carry_out
from blobsync.transfer.interrupted import ByteTally
from blobsync.transfer.receipts import CollectedReceipts

# So many failures are the fault of something else than the files.
MOST_FAILURES = 100_000
# What may change at an end, without deletions, and what is only to be recorded.
_MOVING = (Action.TRANSFER, Action.ADOPT, Action.UNCHANGED, Action.SKIP)


class _Batch(ByteTally):
    """Tells everything but the totals, which were told for all batches together."""

    def expect(self, files: int, size: int) -> None: ...


@dataclass(slots=True)
class _Batches:
    plan: LargePlan
    receipts: CollectedReceipts
    transferred: int = 0
    deleted: int = 0
    given: int = 0
    bytes_transferred: int = 0
    bytes_reused: int = 0
    failures: list[FileFailure] = field(default_factory=list)
    azcopy_job_ids: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def add(self, result: TransferResult) -> None:
        self.given += sum(result.plan.count(kind) for kind in (Action.TRANSFER, Action.ADOPT, Action.DELETE))
        self.transferred += result.transferred
        self.deleted += result.deleted
        self.bytes_transferred += result.bytes_transferred
        self.bytes_reused += result.bytes_reused
        self.failures += result.failures
        self.azcopy_job_ids += result.azcopy_job_ids

    def result(self, folder: Path | None, note: Callable[[str], None], *, interrupted: bool = False) -> TransferResult:
        found = TransferResult(
            plan=self.plan,
            transferred=self.transferred,
            verified=self.transferred + self.plan.count(Action.UNCHANGED),
            deleted=self.deleted,
            bytes_transferred=self.bytes_transferred,
            bytes_reused=self.bytes_reused,
            seconds=time.monotonic() - self.started,
            failures=(*self.plan.unreadable, *self.failures),
            azcopy_job_ids=tuple(self.azcopy_job_ids),
        )
        if folder is None or not (found.transferred or found.deleted or found.failures or self.receipts.unsure):
            return found
        try:
            return replace(found, receipt=self.receipts.write(folder, found, interrupted=interrupted))
        except OSError as error:
            note(f"no receipt was written to {folder}: {error.strerror}")
            return found


def carry_out_in_batches(
    plan: LargePlan,
    context: PartOpener,
    engines: Engines,
    listener: Listener,
    receipt_folder: Path | None,
    spill: Spill,
) -> TransferResult:
    """As ``carry_out``. Deletions come last, and only if nothing failed.

    After 100,000 failures no further batch begins; the result says how many files were not tried.
    """
    plan.demand_allowed()
    run = _Batches(plan, CollectedReceipts(spill))
    listener.expect(plan.files_to_transfer, plan.bytes_to_transfer)

    def do(batches: Iterator[TransferPlan]) -> None:
        for batch in batches:
            if len(run.failures) >= MOST_FAILURES:
                return
            run.add(carry_out(batch, context, engines, _Batch(listener), run.receipts))

    try:
        do(plan.to_carry_out(*_MOVING))
        deletions = plan.count(Action.DELETE)
        if deletions and (run.failures or plan.unreadable):
            kept = count_text(deletions, "extra file")
            listener.note(f"{kept} kept: nothing is deleted after a transfer with failures")
            deletions = 0
        else:
            do(plan.to_carry_out(Action.DELETE))
    except (TransferCancelledError, KeyboardInterrupt) as stop:
        raise _cancelled(run, stop, receipt_folder, listener.note) from stop
    run.failures += _not_tried(run, deletions)
    return run.result(receipt_folder, listener.note)


def _not_tried(run: _Batches, deletions: int) -> list[FileFailure]:
    """What is planned is given to an engine. What is not must not look like success."""
    planned = run.plan.count(Action.TRANSFER) + run.plan.count(Action.ADOPT) + deletions
    if run.given == planned:
        return []
    shown = ", ".join(run.plan.paths)
    if len(run.failures) >= MOST_FAILURES:
        said = f"{shown}: {planned - run.given:,} more files were not tried after {len(run.failures):,} failures"
        hint = "mend what made them fail, then run the same command again"
        return [FileFailure(shown, FailureCode.NOT_REPORTED, said, hint)]
    said = f"{shown}: {planned:,} files were planned, {run.given:,} were read back from the plan: that does not add up"
    return [FileFailure(shown, FailureCode.ACCOUNT_WRONG, said, "run the same command again")]


def _cancelled(
    run: _Batches, stop: BaseException, folder: Path | None, note: Callable[[str], None]
) -> TransferCancelledError:
    done, last = run.transferred, ""
    if isinstance(stop, TransferCancelledError):
        last = f"; of the batch that was under way: {stop.message}"
        if isinstance(stop.result, TransferResult):
            run.add(stop.result)
    total = run.plan.files_to_transfer
    error = TransferCancelledError(
        f"stopped: {done:,} of {total:,} files were done and verified in batches that ended{last}",
        hint="run the same command again: verified files are skipped",
    )
    error.result = replace(run.result(folder, note, interrupted=True), interrupted=True)
    return error
