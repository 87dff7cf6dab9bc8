"""Where the time of a command went: its own phases, from its first line of code to its answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from blobsync.base.amounts import took_text

if TYPE_CHECKING:
    from blobsync.base.events import Event
    from blobsync.cli.progress import ClosingListener
    from blobsync.plan.transfer_plan import FileFailure

_FIRST, _LAST = "starting", "answering"
# What a phase is called in the answer.
_SPANS = {"surveying": "listing"}


class TimedListener:
    """Passes everything on to a listener, and notes when each phase begins; ``began`` is when the command did."""

    def __init__(self, behind: ClosingListener, began: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._behind = behind
        self._clock = clock
        self._began = [(_FIRST, began)]

    def spans(self) -> list[tuple[str, float]]:
        """What the time so far went to, in seconds; a phase that came again is counted once, with all its time."""
        ends = [at for _, at in self._began[1:]] + [self._clock()]
        sums: dict[str, float] = {}
        for (name, began), ended in zip(self._began, ends, strict=True):
            sums[name] = sums.get(name, 0.0) + max(ended - began, 0.0)
        return list(sums.items())

    def answers(self) -> None:
        """The work is done; printing begins."""
        self.phase(_LAST, silent=True)

    def sentence(self) -> str:
        """The spans in words."""
        spans = self.spans()
        said = ", ".join(f"{name} {took_text(seconds)}" for name, seconds in spans)
        return f"{took_text(sum(seconds for _, seconds in spans))} in all: {said}"

    def phase(self, name: str, *, silent: bool = False) -> None:
        verb = _SPANS.get(name, name)
        if self._began[-1][0] != verb:
            self._began.append((verb, self._clock()))
        if not silent:
            self._behind.phase(name)

    def expect(self, files: int, size: int) -> None:
        self._behind.expect(files, size)

    def seen(self, files: int) -> None:
        self._behind.seen(files)

    def bytes_moved(self, count: int) -> None:
        self._behind.bytes_moved(count)

    def bytes_reused(self, count: int) -> None:
        self._behind.bytes_reused(count)

    def by_worker(self, worker: str, files: int, size: int) -> None:
        self._behind.by_worker(worker, files, size)

    def under_way(self, files: int, path: str) -> None:
        self._behind.under_way(files, path)

    def file_done(self, path: str, failure: FileFailure | None) -> None:
        self._behind.file_done(path, failure)

    def note(self, text: str) -> None:
        self._behind.note(text)

    def emit(self, event: Event) -> None:
        self._behind.emit(event)

    def aside(self) -> AbstractContextManager[None]:
        return self._behind.aside()

    def close(self) -> None:
        self._behind.close()
