"""Caches what takes long to find out, so that pages do not wait for a walk of all files or a long listing.

A board looks in a thread of its own and keeps what is known so far: the status of folder entries, or of a folder.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from blobsync.base.errors import BlobsyncError
from blobsync.base.redaction import redact
from blobsync.plan.progress import Progress
from blobsync.project.folders import FolderStatus
from blobsync.project.status import ProjectStatus
from blobsync.web.source import Source

# Seconds after which a page looks again.
_STALE = 3.0
# A listing older than this many seconds, of at most so many blobs, is renewed while a page shows it.
_AGED = 60.0
_SHORT = 20_000
# Maximum number of folders to keep; each keeps its names.
_KEPT = 8

T = TypeVar("T")
Hear = Callable[[Progress], None]
# Takes ``fresh`` and a progress callback; yields what is known, perhaps several times.
Look = Callable[[bool, Hear], Iterable[T]]


@dataclass(frozen=True, slots=True)
class Standing(Generic[T]):
    """What is known: ``status`` as of ``at`` (seconds since 1970), whether a look is under way, or why it failed."""

    status: T | None = None
    at: float = 0.0
    looking: bool = False
    seen: int = 0
    problem: str = ""
    hint: str = ""


class Board(Generic[T]):
    """Looks in a thread of its own, one look at a time."""

    def __init__(self, look: Look[T]) -> None:
        self._ask = look
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._known: Standing[T] = Standing()

    def look(self) -> Standing[T]:
        """What is known now."""
        return self._known

    def renew(self, *, fresh: bool = False, patience: float = 0.0) -> Standing[T]:
        """Look again, unless it was just done; wait up to ``patience`` seconds. ``fresh`` lists the containers."""
        with self._lock:
            if not self._known.looking and (fresh or time.time() - self._known.at > _STALE):
                self._known = replace(self._known, looking=True, seen=0)
                threading.Thread(target=self._look, args=(fresh,), daemon=True).start()
            self._ended.wait_for(lambda: not self._known.looking, patience)
            return self._known

    def outdate(self) -> None:
        """Call after files have moved: the next look is not skipped."""
        with self._lock:
            self._known = replace(self._known, at=0.0)

    def _look(self, fresh: bool) -> None:
        problem = hint = ""
        known: T | None = None
        try:
            for known in self._ask(fresh, self._hear):
                with self._lock:
                    self._known = replace(self._known, status=known, problem="", hint="")
        except BlobsyncError as error:
            problem, hint = redact(error.message), redact(error.hint or "")
        except Exception as error:  # noqa: BLE001 - a thread has nobody else to tell
            problem = f"a bug in blobsync: {redact(repr(error))}"
        with self._lock:
            self._known = Standing(known, time.time(), problem=problem, hint=hint)
            self._ended.notify_all()

    def _hear(self, progress: Progress) -> None:
        with self._lock:
            self._known = replace(self._known, seen=progress.looked)


class Boards:
    """The boards of the project, one per cluster, and of its folders."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._projects: dict[str, Board[ProjectStatus]] = {}
        self._folders: dict[tuple[str, str], Board[FolderStatus]] = {}

    def of(self, source: Source) -> Board[ProjectStatus]:
        """The status of the folder entries of the cluster of ``source``."""
        with self._lock:
            return self._projects.setdefault(source.cluster_name, Board(_status_of(source)))

    def folder(self, source: Source, path: str) -> Board[FolderStatus]:
        """The content of the folder ``path`` of the project."""
        key = (source.cluster_name, path)
        with self._lock:
            board = self._folders.pop(key, None) or Board(_folder_of(source, path))
            self._folders[key] = board
            for old in list(self._folders)[:-_KEPT]:
                del self._folders[old]
        return board

    def outdate(self) -> None:
        """Call after files have moved: the next look of each board is not skipped."""
        with self._lock:
            boards: list[Board[Any]] = [*self._projects.values(), *self._folders.values()]
        for board in boards:
            board.outdate()


def _status_of(source: Source) -> Look[ProjectStatus]:
    def look(fresh: bool, hear: Hear) -> Iterator[ProjectStatus]:
        with source.open() as project:
            yield project.status(fresh=fresh, on_progress=hear)

    return look


def _folder_of(source: Source, path: str) -> Look[FolderStatus]:
    was_whole = False

    def look(fresh: bool, hear: Hear) -> Iterator[FolderStatus]:
        nonlocal was_whole
        with source.open() as project:
            place = f"{project.root}/{path}"
            status = None
            for status in project.folder(place, fresh=fresh, on_progress=hear):
                # The previous status is better than an incomplete one.
                if status.whole or not was_whole:
                    yield status
            was_whole = True
            if status is None or status.fresh or status.as_of is None:
                return
            if time.time() - status.as_of < _AGED or status.blobs > _SHORT:
                return
            for status in project.folder(place, fresh=True, on_progress=hear):
                if status.whole:
                    yield status

    return look
