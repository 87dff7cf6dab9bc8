"""Writes and reads the project's log of transfers and removals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from blobsync.base.errors import BlobsyncError, TransferCancelledError
from blobsync.base.failure_codes import ExitCode
from blobsync.base.locations import BlobLocation
from blobsync.config.mapping import project_relative
from blobsync.config.project_root import current_folder, find_project
from blobsync.local.state_dir import StateDir, open_state_dir
from blobsync.local.transfer_log import TransferEntry, TransferLog
from blobsync.plan.transfer_plan import Action, Direction, Route, TransferPlan, TransferResult
from blobsync.project.options import PathName, path_text
from blobsync.project.running import RunningTransfers
from blobsync.store.connections import Connections
from blobsync.transfer import receipts

_RESULTS = {ExitCode.DONE: "done", ExitCode.PARTIAL: "partial"}


class LogBook:
    """The log in a project's state folder, and the receipts beside it. Needs no cluster file."""

    def __init__(self, root: Path, cwd: Path, state: StateDir, on_trouble: Callable[[str], None]) -> None:
        self._root = root
        self._cwd = cwd
        self._state = state
        self.log = TransferLog(state.root / "transfers.sqlite", on_trouble)
        self.running = RunningTransfers(state)

    def recent(
        self, *, since: float | None = None, path: PathName | None = None, limit: int | None = None, offset: int = 0
    ) -> tuple[TransferEntry, ...]:
        """See ``Project.history``; the newest ``offset`` entries are skipped."""
        chosen = None if path is None else project_relative(path_text(path), cwd=self._cwd, root=self._root)
        return self.log.recent(since=since, path=chosen, limit=limit, offset=offset)

    def receipt(self, entry: TransferEntry) -> Mapping[str, Any] | None:
        """See ``Project.receipt``."""
        return receipts.read_receipt(self._state.folder("receipts"), entry.receipt) if entry.receipt else None


def open_logbook(environ: Mapping[str, str], on_trouble: Callable[[str], None]) -> LogBook:
    """The log of the project that contains the current folder. Raises ``ConfigError`` if there is none."""
    cwd = current_folder(environ)
    root = find_project(cwd, environ)
    return LogBook(root, cwd, open_state_dir(root, environ), on_trouble)


EndWith = Callable[[TransferEntry], None]


@contextmanager
def logged(log: TransferLog, entry: TransferEntry) -> Iterator[EndWith]:
    """Write ``entry`` now, and at the end the entry that the block passed to its argument, or the failure of the
    block."""
    log.write(entry)
    ends: list[TransferEntry] = []
    try:
        yield ends.append
    except TransferCancelledError as stop:
        done = entry_of(entry, stop.result, "cancelled") if isinstance(stop.result, TransferResult) else None
        log.write(done or entry.ended("cancelled", problem=stop.message))
        raise
    except KeyboardInterrupt:
        log.write(entry.ended("cancelled"))
        raise
    except BlobsyncError as error:
        log.write(entry.ended("failed", problem=error.message))
        raise
    for ended in ends:
        log.write(ended)


def transfer_kind(direction: Direction, *, copies: bool) -> str:
    """The kind of a transfer in the log; ``copies``: its source is in another cluster."""
    if direction is Direction.DOWN:
        return "download"
    return "copy" if copies else "upload"


def transfer_begun(plan: TransferPlan, command: str) -> TransferEntry:
    """The entry of a transfer that begins now; ``command`` is empty without a command line."""
    return TransferEntry(
        kind=transfer_kind(plan.route.direction, copies=plan.route not in (Route.UPLOAD, Route.DOWNLOAD)),
        paths=plan.paths,
        command=command or plan.command,
        cluster=plan.cluster,
        from_cluster=plan.from_cluster,
        engine=plan.engine.name,
        mirror=plan.options.mirror,
        planned=plan.files_to_transfer,
        unchanged=plan.count(Action.UNCHANGED),
        conflicts=plan.count(Action.CONFLICT),
    )


def entry_of(entry: TransferEntry, result: TransferResult, word: str | None = None) -> TransferEntry:
    """The entry of a transfer that ended; ``word`` is its result if the exit code does not tell. Its duration is that
    of the result, as shown everywhere else."""
    ended = entry.ended(
        word or _RESULTS.get(result.exit_code, "failed"),
        transferred=result.transferred,
        deleted=result.deleted,
        failed=len(result.failures),
        bytes=result.bytes_transferred,
        receipt=result.receipt.name if result.receipt else None,
    )
    return replace(ended, seconds=round(result.seconds, 3))


def is_worth_logging(plan: TransferPlan) -> bool:
    """Whether anything moves, or is deleted, or should have been."""
    return bool(plan.files_to_transfer or plan.count(Action.DELETE) or plan.unreadable)


def upload_receipts(result: TransferResult, connections: Connections, note: Callable[[str], None]) -> None:
    """Upload the receipt beside the data, if ``--receipt`` was given."""
    if not result.plan.options.receipt or result.receipt is None:
        return
    for part in result.plan.parts:
        if isinstance(part.destination, BlobLocation):
            note(f"receipt: {receipts.upload_receipt(result.receipt, connections.open(part.destination))}")
