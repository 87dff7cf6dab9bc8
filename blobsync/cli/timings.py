"""Where the time of a command went: its own phases, from its first line of code to its answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from blobsync.base.events import Phase
from blobsync.base.formatting import took_text

if TYPE_CHECKING:
    from blobsync.base.events import Event

_FIRST, _LAST = "starting", "answering"
# Phase -> its name in the answer.
_SPANS = {"surveying": "listing"}


class PhaseTimes:
    """Measures the phases of a command that began at ``began``."""

    def __init__(self, began: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = [(_FIRST, began)]

    def spans(self) -> list[tuple[str, float]]:
        """The seconds of each phase so far; a phase that occurs again has the sum."""
        ends = [at for _, at in self._began[1:]] + [self._clock()]
        sums: dict[str, float] = {}
        for (name, began), ended in zip(self._began, ends, strict=True):
            sums[name] = sums.get(name, 0.0) + max(ended - began, 0.0)
        return list(sums.items())

    def answers(self) -> None:
        """Call when the work is done and printing begins."""
        self._begin(_LAST)

    def sentence(self) -> str:
        """The spans in words."""
        spans = self.spans()
        said = ", ".join(f"{name} {took_text(seconds)}" for name, seconds in spans)
        return f"{took_text(sum(seconds for _, seconds in spans))} in all: {said}"

    def emit(self, event: Event) -> None:
        """Record the beginning of a phase."""
        if isinstance(event, Phase):
            self._begin(_SPANS.get(event.name, event.name))

    def _begin(self, span: str) -> None:
        if self._began[-1][0] != span:
            self._began.append((span, self._clock()))
