"""The bar that a notebook shows for transfers where the caller gave no ``on_progress``.

tqdm draws it: with the widgets of Jupyter where they are installed, else as a line of text.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from blobsync.plan.progress import WORKING, Progress

# What looks at names is shown from so many seconds on; most looks are over before.
_LOOKING_SECONDS = 1.0
MakeBar = Callable[..., Any]


def in_notebook(modules: Mapping[str, ModuleType | Any] | None = None) -> bool:
    """Whether a notebook's kernel runs this program; IPython in a terminal is none."""
    python = (sys.modules if modules is None else modules).get("IPython")
    shell = python.get_ipython() if python is not None else None
    return getattr(shell, "kernel", None) is not None


class NotebookBar:
    """An ``on_progress`` that draws; ``make_bar`` is ``tqdm``. ``close`` leaves the bar as it is."""

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
        """At the end of the call."""
        if self._bar is not None:
            self._bar.close()


def _words(progress: Progress) -> str:
    failed = f", {progress.failures:,} failed" if progress.failures else ""
    return f"{progress.files:,} of {progress.files_expected:,} files{failed}"


def _tqdm() -> MakeBar:
    with warnings.catch_warnings():
        # That the widgets of Jupyter are not installed: then there is a line of text.
        warnings.simplefilter("ignore")
        from tqdm.auto import tqdm

    made: MakeBar = tqdm
    return made
