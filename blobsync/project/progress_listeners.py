"""Listeners of a project: log notes, count progress, call the caller's ``on_progress``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from blobsync.plan.events import Event, Note, Phase
from blobsync.plan.progress import Progress, ProgressCounter

if TYPE_CHECKING:
    from blobsync.plan.events import Event

OnProgress = Callable[[Progress], None]

# The minimum time between calls (seconds), except when a phase begins or ends.
_TELL_EVERY = 0.1

_log = logging.getLogger("blobsync")


class LoggingListener:
    """The default listener of a project: logs notes with the logger ``blobsync``, as INFO."""

    def emit(self, event: Event) -> None:
        """Log a note."""
        if isinstance(event, Note):
            _log.info("%s", event.text)


class CallbackListener(ProgressCounter):
    """Calls ``on_progress``, from one thread at a time.

    A function that raises is not called again: a display error does not stop a transfer. The
    traceback goes to the log.
    """

    def __init__(self, on_progress: OnProgress, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._on_progress: OnProgress | None = on_progress
        self._told_at = 0.0

    def emit(self, event: Event) -> None:
        """Count it, and call the function when it is time."""
        if isinstance(event, Phase):
            with self.lock:
                if self.step and event.name != self.step:
                    # How the phase before it ended.
                    self.show(force=True)
        super().emit(event)

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
