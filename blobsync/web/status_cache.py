"""Caches the status of folder entries and of folders, so that pages do not wait for a walk or a long listing.

A cache refreshes itself in a thread of its own; until that ends, it has what is known so far.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Generic, TypeVar

from blobsync.base.records import dataclass
from blobsync.plan.progress import Progress
from blobsync.project.folders import FolderStatus
from blobsync.project.status import ProjectStatus
from blobsync.web.open_project import Source, problem_of

# Seconds until a page refreshes the status.
_STALE = 3.0
# A listing older than this (seconds) and no longer than this (blobs) is renewed while a page shows it.
_AGED = 60.0
_SHORT = 20_000
# Maximum number of folders to keep; each keeps its names.
_KEPT = 8

T = TypeVar("T")
OnProgress = Callable[[Progress], None]
# Takes ``fresh`` and a progress callback; yields what is known, perhaps several times.
Look = Callable[[bool, OnProgress], Iterable[T]]


@dataclass(frozen=True, slots=True)
class CachedStatus(Generic[T]):
    """``status`` as of ``at`` (seconds since 1970), whether a refresh is under way (``looking``), and why it failed."""

    status: T | None = None
    at: float = 0.0
    looking: bool = False
    seen: int = 0
    problem: str = ""
    hint: str = ""


class StatusCache(Generic[T]):
    """The last status of one project or folder; one refresh runs at a time, in a thread of its own."""

    def __init__(self, look: Look[T]) -> None:
        self._ask = look
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._known: CachedStatus[T] = CachedStatus()

    def look(self) -> CachedStatus[T]:
        """What is known now."""
        return self._known

    def renew(self, *, fresh: bool = False, patience: float = 0.0) -> CachedStatus[T]:
        """Refresh, unless that was just done; wait up to ``patience`` seconds. ``fresh`` lists the containers."""
        with self._lock:
            if not self._known.looking and (fresh or time.time() - self._known.at > _STALE):
                self._known = replace(self._known, looking=True, seen=0)
                threading.Thread(target=self._look, args=(fresh,), daemon=True).start()
            self._ended.wait_for(lambda: not self._known.looking, patience)
            return self._known

    def outdate(self) -> None:
        """Call after files have moved: the next refresh is not skipped."""
        with self._lock:
            self._known = replace(self._known, at=0.0)

    def _look(self, fresh: bool) -> None:
        def keep(progress: Progress) -> None:
            with self._lock:
                self._known = replace(self._known, seen=progress.looked)

        problem = hint = ""
        known: T | None = None
        try:
            for known in self._ask(fresh, keep):
                with self._lock:
                    self._known = replace(self._known, status=known, problem="", hint="")
        except Exception as error:  # noqa: BLE001 - the page shows it
            problem, hint = problem_of(error)
        with self._lock:
            self._known = CachedStatus(known, time.time(), problem=problem, hint=hint)
            self._ended.notify_all()


class StatusCaches:
    """The caches of the project, one per cluster, and of its folders."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._projects: dict[str, StatusCache[ProjectStatus]] = {}
        self._folders: dict[tuple[str, str], StatusCache[FolderStatus]] = {}

    def of(self, source: Source) -> StatusCache[ProjectStatus]:
        """The status of the folder entries of the cluster of ``source``."""
        with self._lock:
            return self._projects.setdefault(source.cluster_name, StatusCache(_status_of(source)))

    def folder(self, source: Source, path: str) -> StatusCache[FolderStatus]:
        """The content of the folder ``path`` of the project."""
        key = (source.cluster_name, path)
        with self._lock:
            cache = self._folders.pop(key, None) or StatusCache(_folder_of(source, path))
            self._folders[key] = cache
            for old in list(self._folders)[:-_KEPT]:
                del self._folders[old]
        return cache

    def outdate(self) -> None:
        """Call after files have moved: the next refresh of each cache is not skipped."""
        with self._lock:
            caches: list[StatusCache[Any]] = [*self._projects.values(), *self._folders.values()]
        for cache in caches:
            cache.outdate()


def _status_of(source: Source) -> Look[ProjectStatus]:
    def look(fresh: bool, on_progress: OnProgress) -> Iterator[ProjectStatus]:
        with source.open() as project:
            yield project.status(fresh=fresh, on_progress=on_progress)

    return look


def _folder_of(source: Source, path: str) -> Look[FolderStatus]:
    was_whole = False

    def look(fresh: bool, on_progress: OnProgress) -> Iterator[FolderStatus]:
        nonlocal was_whole
        with source.open() as project:
            place = f"{project.root}/{path}"
            status = None
            for status in project.folder(place, fresh=fresh, on_progress=on_progress):
                # The previous status is better than an incomplete one.
                if status.whole or not was_whole:
                    yield status
            was_whole = True
            if status is None or status.fresh or status.as_of is None:
                return
            if time.time() - status.as_of < _AGED or status.blobs > _SHORT:
                return
            for status in project.folder(place, fresh=True, on_progress=on_progress):
                if status.whole:
                    yield status

    return look
