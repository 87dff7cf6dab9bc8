"""Calls the caller's ``on_progress`` with the progress of a project.

Without ``on_progress`` a notebook shows a bar. tqdm draws it: with the widgets of Jupyter where they are installed,
else as a line of text.
"""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from blobsync.base.events import Event, Phase
from blobsync.plan.progress import WORKING, Progress, ProgressCounter

OnProgress = Callable[[Progress], None]

# The minimum time between calls (seconds), except when a phase begins or ends.
_TELL_EVERY = 0.1

_log = logging.getLogger("blobsync")


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
        """Count the event, and call the function if it is time."""
        if isinstance(event, Phase):
            with self.lock:
                if self.step and event.name != self.step:
                    # The end of the previous phase.
                    self.show(force=True)
        super().emit(event)

    def show(self, *, force: bool, began: bool = False) -> None:
        """Call the function if it is time, or with ``force``, or if a phase began."""
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
        """Call the function with the last numbers."""
        with self.lock:
            self.show(force=True)


# Seconds until planning and verifying are shown; they usually end before.
_LOOKING_SECONDS = 1.0
MakeBar = Callable[..., Any]


def in_notebook(modules: Mapping[str, ModuleType | Any] | None = None) -> bool:
    """Whether this program runs in a notebook's kernel, not in IPython in a terminal."""
    python = (sys.modules if modules is None else modules).get("IPython")
    shell = python.get_ipython() if python is not None else None
    return getattr(shell, "kernel", None) is not None


class NotebookBar:
    """An ``on_progress`` that draws a bar; ``make_bar`` is ``tqdm``. ``close`` leaves the bar as it is."""

    def __init__(self, make_bar: MakeBar | None = None) -> None:
        self._make_bar = make_bar or _tqdm()
        self._bar: Any = None
        self._phase = ""

    def __call__(self, progress: Progress) -> None:
        works = progress.phase in WORKING and progress.files_expected > 0
        in_files = not progress.bytes_expected
        total = (progress.files_expected if in_files else progress.bytes_expected) if works else None
        if not works and self._bar is None and progress.seconds < _LOOKING_SECONDS:
            return
        if self._bar is None:
            self._phase = progress.phase
            self._bar = self._make_bar(desc=progress.phase, total=total, unit="B", unit_scale=True, dynamic_ncols=True)
        bar = self._bar
        if progress.phase != self._phase:
            self._phase = progress.phase
            bar.set_description_str(progress.phase, refresh=False)
        if total is not None:
            bar.unit, bar.unit_scale = (" files", False) if in_files else ("B", True)
            bar.total = total
            bar.n = min(progress.files if in_files else max(progress.bytes, 0), total)
            bar.set_postfix_str(_words(progress), refresh=False)
        elif progress.looked:
            bar.set_postfix_str(f"{progress.looked:,} names", refresh=False)
        bar.refresh()

    def close(self) -> None:
        """Call at the end."""
        if self._bar is not None:
            self._bar.close()


def _words(progress: Progress) -> str:
    failed = f", {progress.failures:,} failed" if progress.failures else ""
    return f"{progress.files:,} of {progress.files_expected:,} files{failed}"


def _tqdm() -> MakeBar:
    with warnings.catch_warnings():
        # tqdm warns if Jupyter's widgets are not installed, and draws a line of text.
        warnings.simplefilter("ignore")
        from tqdm.auto import tqdm

    made: MakeBar = tqdm
    return made
