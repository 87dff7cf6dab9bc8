"""Listeners of a project: log notes, count progress, call the caller's ``on_progress``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from blobsync.plan.progress import Progress, ProgressCounter

if TYPE_CHECKING:
    from blobsync.base.events import Event
    from blobsync.plan.listener import Listener
    from blobsync.plan.transfer_plan import FileFailure

OnProgress = Callable[[Progress], None]

# The minimum time between calls (seconds), except when a phase begins or ends.
_TELL_EVERY = 0.1

_log = logging.getLogger("blobsync")


class LoggingListener:
    """The default listener of a project: logs notes with the logger ``blobsync``, as INFO."""

    def phase(self, name: str) -> None: ...

    def expect(self, files: int, size: int) -> None: ...

    def seen(self, files: int) -> None: ...

    def bytes_moved(self, count: int) -> None: ...

    def bytes_reused(self, count: int) -> None: ...

    def by_worker(self, worker: str, files: int, size: int) -> None: ...

    def under_way(self, files: int, path: str) -> None: ...

    def file_done(self, path: str, failure: FileFailure | None) -> None: ...

    def note(self, text: str) -> None:
        _log.info("%s", text)

    def emit(self, event: Event) -> None: ...


class PassingCounter(ProgressCounter):
    """Counts what it passes on to the listener ``behind``."""

    def __init__(self, behind: Listener, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._behind = behind

    def phase(self, name: str) -> None:
        self._behind.phase(name)
        super().phase(name)

    def expect(self, files: int, size: int) -> None:
        self._behind.expect(files, size)
        super().expect(files, size)

    def seen(self, files: int) -> None:
        self._behind.seen(files)
        super().seen(files)

    def bytes_moved(self, count: int) -> None:
        self._behind.bytes_moved(count)
        super().bytes_moved(count)

    def bytes_reused(self, count: int) -> None:
        self._behind.bytes_reused(count)
        super().bytes_reused(count)

    def by_worker(self, worker: str, files: int, size: int) -> None:
        self._behind.by_worker(worker, files, size)
        super().by_worker(worker, files, size)

    def under_way(self, files: int, path: str) -> None:
        self._behind.under_way(files, path)
        super().under_way(files, path)

    def file_done(self, path: str, failure: FileFailure | None) -> None:
        self._behind.file_done(path, failure)
        super().file_done(path, failure)

    def note(self, text: str) -> None:
        self._behind.note(text)

    def emit(self, event: Event) -> None:
        self._behind.emit(event)
        super().emit(event)


class CallbackListener(PassingCounter):
    """Calls ``on_progress``, from one thread at a time, and passes everything on to the listener ``behind``.

    A callable that raises is not called again: a display error does not stop a transfer. The
    traceback goes to the log.
    """

    def __init__(self, on_progress: OnProgress, behind: Listener, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(behind, clock)
        self._on_progress: OnProgress | None = on_progress
        self._told_at = 0.0

    def phase(self, name: str) -> None:
        with self.lock:
            if self.step and name != self.step:
                # How the phase before it ended.
                self.show(force=True)
        super().phase(name)

    def show(self, *, force: bool, began: bool = False) -> None:
        """Call it if it is time, or if ``force`` or a new phase asks for that."""
        now = self.clock()
        if self._on_progress is None or not self.step or not (force or began or now - self._told_at >= _TELL_EVERY):
            return
        self._told_at = now
        try:
            self._on_progress(self.progress(now))
        except Exception:  # noqa: BLE001 - whatever a caller's function raises
            self._on_progress = None
            _log.exception("on_progress raised; it is not called again")

    def close(self) -> None:
        """Call it with the last numbers."""
        with self.lock:
            self.show(force=True)
