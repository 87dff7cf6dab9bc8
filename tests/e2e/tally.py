"""Counts injected faults and their outcomes, for the summary at the end of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping


class Tally:
    """The counts of one test."""

    def __init__(self, record: Callable[[str, object], None]) -> None:
        self._record = record

    def faults(self, injected: Mapping[str, int]) -> None:
        """Faults of a proxy, by kind."""
        for kind, count in injected.items():
            self._record("injected", [kind, count])

    def runs(self, *, exact: int = 0, honest: int = 0) -> None:
        """Runs with faults: complete ones, and those that named the failed files."""
        self._record("runs", [exact, honest])
