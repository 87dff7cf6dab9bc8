"""What is looked at beside the pages: they do not wait for a walk of all files, or for a long listing.

A board looks in a thread of its own and holds what is known so far: how folder entries stand, or what a folder has.
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

# Seconds after which a page looks again by itself.
_STALE = 3.0
# A listing that is older is renewed while somebody looks at it (seconds), where it is not long (blobs).
_AGED = 60.0
_SHORT = 20_000
# Folders that somebody looked at; each keeps its names.
_KEPT = 8

T = TypeVar("T")
Hear = Callable[[Progress], None]
# ``fresh``, and who is told how far it is -> what is known, perhaps several times.
Look = Callable[[bool, Hear], Iterable[T]]


@dataclass(frozen=True, slots=True)
class Standing(Generic[T]):
    """What is known: ``status`` of ``at`` (seconds since 1970), whether somebody looks right now, or why nobody can."""

    status: T | None = None
    at: float = 0.0
    looking: bool = False
    seen: int = 0
    problem: str = ""
    hint: str = ""


class Board(Generic[T]):
    """Looks in a thread of its own, once at a time."""

    def __init__(self, look: Look[T]) -> None:
        self._ask = look
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._known: Standing[T] = Standing()

    def look(self) -> Standing[T]:
        """What is known now."""
        return self._known

    def renew(self, *, fresh: bool = False, patience: float = 0.0) -> Standing[T]:
        """Look again, unless it was just done, and wait up to ``patience`` seconds; ``fresh`` lists the containers."""
        with self._lock:
            if not self._known.looking and (fresh or time.time() - self._known.at > _STALE):
                self._known = replace(self._known, looking=True, seen=0)
                threading.Thread(target=self._look, args=(fresh,), daemon=True).start()
            self._ended.wait_for(lambda: not self._known.looking, patience)
            return self._known

    def outdate(self) -> None:
        """Something was moved: the next look counts."""
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
    """Those of the project, one for each cluster that somebody looks through, and of folders."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._projects: dict[str, Board[ProjectStatus]] = {}
        self._folders: dict[tuple[str, str], Board[FolderStatus]] = {}

    def of(self, source: Source) -> Board[ProjectStatus]:
        """How the folder entries of the cluster of ``source`` stand."""
        with self._lock:
            return self._projects.setdefault(source.cluster_name, Board(_status_of(source)))

    def folder(self, source: Source, path: str) -> Board[FolderStatus]:
        """What the folder ``path`` of the project has."""
        key = (source.cluster_name, path)
        with self._lock:
            board = self._folders.pop(key, None) or Board(_folder_of(source, path))
            self._folders[key] = board
            for old in list(self._folders)[:-_KEPT]:
                del self._folders[old]
        return board

    def outdate(self) -> None:
        """Something was moved: the next look at each counts."""
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
                # What was known is better than a beginning.
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
