"""Keeps one folder uploaded: rounds, each of which uploads what has been still for a while.

What a round cannot upload is tried again in later ones, after pauses that grow; nothing is deleted anywhere.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

from blobsync.base.errors import FileFailure
from blobsync.base.events import Emit, ignore
from blobsync.base.file_states import LocalState

# Paths below the folder, and their states.
Files: TypeAlias = Mapping[str, LocalState]


class Upload(Protocol):
    """Carries out one round: uploads those of ``files`` that the container does not have."""

    def __call__(self, files: Files) -> Sequence[FileFailure]:
        """Returns the failures of single files; raises ``BlobsyncError`` if nothing can work."""
        ...


class Sets(Protocol):
    """The sets of files that are uploaded, marked and rotated as one."""

    def owns(self, path: str) -> bool:
        """Whether this file belongs to a set: the keeper does not upload it by itself."""
        ...

    def round(self, files: Files, *, last: bool) -> Sequence[FileFailure]:
        """Upload and mark the sets that are complete, and rotate; ``files`` are those that it owns, settled or not."""
        ...

    def behind(self, now: float) -> float | None:
        """Seconds between the newest complete set here and the newest one there; None if nothing is missing."""
        ...


class _NoSets:
    def owns(self, path: str) -> bool:
        return False

    def round(self, files: Files, *, last: bool) -> Sequence[FileFailure]:
        return ()

    def behind(self, now: float) -> float | None:
        return None


NO_SETS: Sets = _NoSets()


class Found(NamedTuple):
    """What a watcher sees: every file, the paths that may have changed since it looked last, and what it cannot read.

    ``problem`` says why the folder itself cannot be seen, as when it was moved away; nothing is concluded from that.
    """

    files: Files
    changed: frozenset[str]
    unreadable: Sequence[FileFailure] = ()
    problem: str = ""


class Watcher(Protocol):
    """Knows the files of a folder."""

    def look(self) -> Found:
        """What there is now."""
        ...

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Wait until something may have changed, ``stop`` is set, or the time is over."""
        ...


class Round(NamedTuple):
    """One round: how many files were given to the upload, how many wait for stillness, and what failed."""

    given: int = 0
    waiting: int = 0
    failures: Sequence[FileFailure] = ()
    problem: str = ""


class Keeper:
    """Keeps ``folder`` uploaded. ``settle``: a file that has not changed for so many seconds is still."""

    def __init__(
        self,
        folder: Path,
        watcher: Watcher,
        upload: Upload,
        *,
        settle: float,
        ignored: Callable[[str], bool] | None = None,
        sets: Sets = NO_SETS,
        clock: Callable[[], float] = time.monotonic,
        emit: Emit = ignore,
    ) -> None:
        self.folder = folder
        self._watcher, self._upload, self._sets = watcher, upload, sets
        self._settle, self._ignored = settle, ignored
        self._clock, self._emit = clock, emit

    def round(self, *, last: bool = False) -> Round:
        """One round now; ``last``: everything, without waiting for stillness."""
        raise NotImplementedError

    def run(self, stop: threading.Event) -> None:
        """Rounds until asked to stop."""
        raise NotImplementedError
