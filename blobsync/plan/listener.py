"""Receives the progress of a command."""

from __future__ import annotations

from typing import Protocol

from blobsync.base.events import Event
from blobsync.plan.transfer_plan import FileFailure


class Listener(Protocol):
    """Receives progress; called from any thread, must be quick and must not raise."""

    def phase(self, name: str) -> None:
        """``surveying``, ``hashing``, ``moving``, ``verifying``, ``deleting``."""
        ...

    def expect(self, files: int, size: int) -> None:
        """Call with the files and bytes that are about to move."""
        ...

    def seen(self, files: int) -> None:
        """So many more entries looked at while surveying or verifying."""
        ...

    def bytes_moved(self, count: int) -> None:
        """So many more bytes on their way; negative where a retry starts over."""
        ...

    def bytes_reused(self, count: int) -> None:
        """So many bytes of the files that are to move were at the destination already, and do not move."""
        ...

    def by_worker(self, worker: str, files: int, size: int) -> None:
        """Of all that was told, so many files and bytes are this worker's, where there are several."""
        ...

    def under_way(self, files: int, path: str) -> None:
        """So many files are on their way now; ``path`` began last. Only engines that see single files tell."""
        ...

    def file_done(self, path: str, failure: FileFailure | None) -> None:
        """One file is finished, or failed."""
        ...

    def note(self, text: str) -> None:
        """A sentence for the user that is no failure."""
        ...

    def emit(self, event: Event) -> None:
        """Anything else that happens, as a value."""
        ...


class SilentListener:
    """Ignores everything; the default of library calls."""

    def phase(self, name: str) -> None: ...

    def expect(self, files: int, size: int) -> None: ...

    def seen(self, files: int) -> None: ...

    def bytes_moved(self, count: int) -> None: ...

    def bytes_reused(self, count: int) -> None: ...

    def by_worker(self, worker: str, files: int, size: int) -> None: ...

    def under_way(self, files: int, path: str) -> None: ...

    def file_done(self, path: str, failure: FileFailure | None) -> None: ...

    def note(self, text: str) -> None: ...

    def emit(self, event: Event) -> None: ...
