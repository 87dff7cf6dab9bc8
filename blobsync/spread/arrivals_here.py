"""What this machine sees itself of files that workers report: what they hold is read here, not told.

A worker's word for an MD5 counts only for a version of a file that is not there any more.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue

from blobsync.base.file_states import FileState, LocalState, RemoteState
from blobsync.local.files import hash_file, reading_threads
from blobsync.store.ends import LiveEnd, LocalEnd
from blobsync.transfer.engines import Moved


def as_seen_here(end: LiveEnd, moved: Moved) -> Moved:
    """A file that a worker put here counts only if it is there; else it is read again in the end."""
    if not isinstance(end, LocalEnd) or not isinstance(moved.destination, LocalState):
        return moved
    with suppress(OSError):
        found = os.stat(end.at(moved.action.target or moved.action.path))
        if moved.destination.same_file(LocalState.of(found)):
            return moved
    return moved._replace(destination=None)


def file_to_read(source: LiveEnd, destination: LiveEnd, moved: Moved) -> Path | None:
    """The file whose content this machine can read itself; None where both ends are containers, or the file that a
    worker tells of is not here."""
    if isinstance(source, LocalEnd):
        return source.at(moved.action.path)
    if isinstance(destination, LocalEnd) and as_seen_here(destination, moved).destination is not None:
        return destination.at(moved.action.target or moved.action.path)
    return None


def with_own_look(moved: Moved, own: LocalState | None) -> Moved:
    """What a worker said, with what this machine read of the one end that it sees (``own``)."""
    if isinstance(moved.source, LocalState):
        # Another version by now: of the one that moved nobody knows more than its worker.
        return moved._replace(source=own) if own is not None and own.same_file(moved.source) else moved
    there = moved.destination
    if isinstance(there, LocalState):
        seen = own if own is not None and own.same_file(there) else None
        return moved._replace(destination=seen, source=known_source(moved))
    return moved._replace(source=known_source(moved))


def known_source(moved: Moved) -> FileState | None:
    """A blob as the plan knows it; where that has no MD5, with the one of whoever read it."""
    planned, told = moved.action.source, moved.source
    if isinstance(planned, RemoteState) and isinstance(told, RemoteState) and planned.md5 is not None:
        return replace(told, md5=planned.md5)
    return told


class OwnReading:
    """Reads files of this machine in threads while workers move others. What follows from each runs in the thread that
    calls :meth:`settle`. Nothing waits for a file that is still being read when nobody asks any more."""

    def __init__(self, threads: int | None = None, read: Callable[[Path], LocalState | None] = hash_file) -> None:
        self._most = threads or reading_threads()
        self._hashed = read
        self._todo: SimpleQueue[tuple[Path, Callable[[LocalState | None], None]] | None] = SimpleQueue()
        self._read: SimpleQueue[tuple[LocalState | None, Callable[[LocalState | None], None]]] = SimpleQueue()
        self._gone = threading.Event()
        self._threads = 0
        self.open = 0

    def begin(self, file: Path, then: Callable[[LocalState | None], None]) -> None:
        """Have the file read; ``then`` gets it with its MD5, or None where it cannot be read as one version."""
        self.open += 1
        self._todo.put((file, then))
        if self._threads < min(self._most, self.open):
            self._threads += 1
            threading.Thread(target=self._work, daemon=True).start()

    def settle(self, seconds: float = 0.0) -> None:
        """Do what follows from the files that are read, after waiting at most so long for the first."""
        with suppress(Empty):
            state, then = self._read.get(timeout=seconds)
            while True:
                self.open -= 1
                then(state)
                state, then = self._read.get_nowait()

    def close(self) -> None:
        """No other file is begun."""
        self._gone.set()
        for _ in range(self._threads):
            self._todo.put(None)

    def _work(self) -> None:
        while (one := self._todo.get()) is not None and not self._gone.is_set():
            file, then = one
            self._read.put((self._hashed(file), then))
