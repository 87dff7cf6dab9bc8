"""A project's log of transfers: what was done, and what is under way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from blobsync.base.errors import BlobsyncError
from blobsync.config.mapping import project_relative
from blobsync.local.transfer_log import TransferEntry
from blobsync.plan.transfer_plan import Direction
from blobsync.project.logbook import LogBook, transfer_kind
from blobsync.project.open_project import OpenProject
from blobsync.project.paths import Paths, one_or_many
from blobsync.project.running import RunningTransfer, told_meanwhile

if TYPE_CHECKING:
    from blobsync.project.paths import PathName


class LoggedProject(OpenProject):
    """The calls on a project that are about its log."""

    def history(
        self, *, since: float | None = None, path: PathName | None = None, limit: int | None = None
    ) -> tuple[TransferEntry, ...]:
        """Transfers, copies and removals, newest first, that began ``since`` then (seconds since 1970) and that
        concern ``path``. Raises ``LocalFileError`` if the log cannot be read.
        """
        return self._logbook.recent(since=since, path=path, limit=limit)

    def find_transfer(self, suffix: str) -> TransferEntry:
        """The one whose id ends so. Raises ``NothingMatchedError``, or ``UsageError`` if several do."""
        return self._logbook.log.find(suffix)

    def receipt(self, entry: TransferEntry) -> Mapping[str, Any] | None:
        """What became of each file, as in the receipt's file; None where it was removed (the newest 1,000 stay)."""
        return self._logbook.receipt(entry)

    def running(self) -> Mapping[str, RunningTransfer]:
        """How far the transfers and removals are that move or delete at this moment, whichever process runs them, by
        the ids of the history; and of those that plan first. They tell it twice a second, the first time after half a
        second.
        """
        return self._logbook.running.all()

    def stop(self, id: str) -> None:
        """End the command that runs a transfer, as Ctrl-C does; returns at once.

        Raises ``NothingMatchedError`` if it does not run any more, ``UsageError`` where it runs elsewhere or is no
        blobsync command.
        """
        self._logbook.running.stop(id)

    @property
    def _logbook(self) -> LogBook:
        return LogBook(self.root, self.cwd, self.state, lambda text: self.listener.note(text))

    @contextmanager
    def planning(self, direction: Direction, paths: Paths) -> Iterator[None]:
        """While it lasts others can see that this transfer is being planned; for a plan that is then carried out."""
        kind = transfer_kind(direction, copies=self.from_cluster is not None)
        given = tuple(map(self._from_root, one_or_many(paths, or_none=True)))
        with self._told_of(TransferEntry(kind, given, self.command_line, self.cluster.name), planning=True):
            yield

    def _from_root(self, path: str) -> str:
        """As typed where it is no path of the project: the plan will say so."""
        try:
            return project_relative(path, cwd=self.cwd, root=self.root)
        except BlobsyncError:
            return path

    @contextmanager
    def _told_of(self, entry: TransferEntry, *, planning: bool = False) -> Iterator[None]:
        """While it lasts others can see how far this transfer is."""
        before = self.listener
        # A program that uses blobsync does not end because somebody stops its transfer.
        stoppable = bool(self.command_line)
        with told_meanwhile(self.state, entry, before, stoppable=stoppable, planning=planning) as self.listener:
            try:
                yield
            finally:
                self.listener = before
