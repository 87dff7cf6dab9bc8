"""How many files all workers of a transfer have under way, and which began last."""

from __future__ import annotations

import threading
from collections.abc import Hashable

from blobsync.plan.listener import Listener
from blobsync.spread.file_json import FormatError, shown_name
from blobsync.spread.record import UnderWay


class WorkersBusy:
    """Adds up what each worker tells of itself; for any thread. ``path`` is that of the transfer's part."""

    def __init__(self, listener: Listener, path: str) -> None:
        self._listener = listener
        self._path = path
        self._counts: dict[Hashable, int] = {}
        self._lock = threading.Lock()

    def hear(self, worker: Hashable, told: UnderWay) -> None:
        """Raises ``FormatError`` for a file that is not of this transfer."""
        if self._path and told.path != self._path and not told.path.startswith(f"{self._path}/"):
            raise FormatError(f"{shown_name(told.path)} is not of this transfer")
        with self._lock:
            self._counts[worker] = told.files
            count = sum(self._counts.values())
        self._listener.under_way(count, told.path)

    def ends(self, worker: Hashable) -> None:
        """It has nothing under way any more."""
        with self._lock:
            self._counts.pop(worker, None)
