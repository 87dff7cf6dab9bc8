"""What a transfer did: ``TransferResult``, with its counts, its failures and the exit code of the command."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from blobsync.base.errors import FileFailure, IncompleteTransferError
from blobsync.base.exit_codes import ExitCode
from blobsync.base.formatting import count_text
from blobsync.base.records import NamedTuple
from blobsync.plan.transfer_plan import CONFLICT_HINT, Action, TransferPlan, some_paths

# Names that an error tells one by one.
_NAMED = 3


class TransferResult(NamedTuple):
    """The result of a plan; counts are files.

    ``verified`` counts the files of the plan whose destination was seen to be equal, by a new listing or by the
    service's response to the write; ``transferred`` are those that moved now. ``bytes_transferred`` moved;
    ``bytes_reused``, the rest of these files, were already there from an earlier run or the previous version.
    ``not_compared`` are those of the transferred files that came from outside Azure, from a source that keeps nothing
    that their content could be compared with: their size is right, and the version that was read.
    ``interrupted``: Ctrl-C ended it, and the rest of the plan was not tried. ``requests`` were sent by this process, by
    their kind: ``write``, ``list``, ``read``, ``delete``.
    """

    plan: TransferPlan
    transferred: int
    verified: int
    deleted: int
    bytes_transferred: int
    seconds: float
    bytes_reused: int = 0
    not_compared: int = 0
    failures: tuple[FileFailure, ...] = ()
    azcopy_job_ids: tuple[str, ...] = ()
    receipt: Path | None = None
    interrupted: bool = False
    requests: Mapping[str, int] = MappingProxyType({})

    @property
    def conflicts(self) -> tuple[FileFailure, ...]:
        """The files that were left alone because both sides changed."""
        return self.plan.conflicts

    def raise_for_failures(self) -> None:
        """Raise ``IncompleteTransferError``, which has all failures and conflicts, unless :attr:`ok`."""
        if self.ok:
            return
        left = (*self.failures, *self.conflicts)
        named = "; ".join(f"{each.path}: {each.message}" for each in left[:_NAMED])
        more = f"; and {len(left) - _NAMED:,} more" if len(left) > _NAMED else ""
        hints = {each.hint for each in left}
        hint = f"{self.plan.command}: run the same command again to finish"
        if not self.failures and not self.interrupted:
            hint = (hints.pop() if len(hints) == 1 else None) or CONFLICT_HINT
        stopped = "interrupted; " if self.interrupted else ""
        raise IncompleteTransferError(
            f"{stopped}{count_text(len(self.failures), 'file')} failed, {self.plan.count(Action.CONFLICT):,} conflict: "
            f"{named}{more}; next: {hint}",
            failures=left,
            hint=hint,
        )

    def __repr__(self) -> str:
        counts = f"{self.transferred:,} transferred, {self.verified:,} verified, {len(self.failures):,} failed"
        what = f"{self.plan.route.value} {some_paths(self.plan.paths)}"
        return f"<TransferResult {what}: {counts}, {len(self.conflicts):,} conflicts>"

    @property
    def ok(self) -> bool:
        """Everything planned is done and verified, and no conflict was left."""
        return not self.interrupted and not self.failures and not self.plan.count(Action.CONFLICT)

    @property
    def exit_code(self) -> ExitCode:
        """0 all done and verified; 3 some files failed or conflict; 1 nothing of it is verified; 130 interrupted."""
        if self.ok:
            return ExitCode.DONE
        if self.interrupted:
            return ExitCode.INTERRUPTED
        if self.failures and not self.verified and not self.deleted:
            return ExitCode.FAILED
        return ExitCode.PARTIAL
