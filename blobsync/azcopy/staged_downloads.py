"""Moves a download's files from azcopy's staging folder to their final places while azcopy still works.

azcopy writes each file under a temporary name and renames it when it is complete. Here every renamed file's size and
MD5 are checked against what the plan knows of the blob before it takes the final name, so that neither a damaged
file nor one of the wrong length (which azcopy renames although it reports it as failed) ever gets there.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

from blobsync.base.background_calls import Ahead, side_by_side
from blobsync.base.errors import BlobsyncError, ChecksumError, FailureCode, StorageError
from blobsync.base.events import UnderWay
from blobsync.base.file_states import RemoteState
from blobsync.direct.range_reads import Content
from blobsync.direct.thread_pool import RunState, Stopped
from blobsync.local.files import LocalFolder, SourceFile
from blobsync.local.names import is_temporary, relative_name, unfinished_name
from blobsync.local.os_errors import ChangedWhileReadError, local_error
from blobsync.plan.transfer_plan import FileAction
from blobsync.store.open_locations import OpenBlob
from blobsync.transfer.engines import Moved

_CHUNK = 1 << 20
_THREADS = 2

# The pause between two scans of the staging folder (seconds); scans take at most a tenth of the time.
_PAUSE = 0.1
_SHARE = 10.0


class Arrivals:
    """Finds, checks and places the files of one task; ``names`` maps their names below ``root``."""

    def __init__(
        self,
        run: RunState,
        root: Path,
        folder: LocalFolder,
        names: dict[str, FileAction],
        source: OpenBlob,
        *,
        only: str = "",
    ) -> None:
        """``only`` is the final name of a task of shape file; empty for folders."""
        self._run = run
        self._source = source
        self._root = root
        self._folder = folder
        self._only = only
        self._missing: dict[str, dict[str, FileAction]] = {}
        for name, action in names.items():
            parent, _, leaf = name.rpartition("/")
            self._missing.setdefault(parent, {})[leaf] = action
        self._names = frozenset(names)
        self._left = len(names)
        self._moving: frozenset[str] = frozenset()
        self._ready: SimpleQueue[tuple[Path, FileAction] | None] = SimpleQueue()
        self._over = threading.Event()
        self._abandoned = threading.Event()
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start in the background."""
        # Not one call for each file: a large one would keep all but some of the small ones after it waiting.
        works = (self._look_around, *[self._place_all] * _THREADS)
        self._all = Ahead(deque, side_by_side(lambda work: work(), works, len(works)), maxlen=0)

    @property
    def complete(self) -> bool:
        """Whether every file is in its place, or was found to be wrong."""
        return self._left == 0

    def finish(self) -> list[FileAction]:
        """Place the last files after azcopy's end; return what never arrived."""
        self._over.set()
        self._all.result()
        return [action for names in self._missing.values() for action in names.values()]

    def strays(self, staging: Path) -> list[str]:
        """Names of unexpected complete files anywhere in ``staging``; call it after the end."""
        found = [
            os.path.relpath(os.path.join(at, name), self._root)
            for at, _, names in os.walk(staging)
            for name in names
            if not is_temporary(name)
        ]
        return sorted(name for name in found if name not in self._names)

    def stop(self) -> None:
        """Stop at once; leave everything as it is, including a file that is being checked."""
        self._abandoned.set()
        self._over.set()
        self._all.is_done(threading.TIMEOUT_MAX)

    def _look_around(self) -> None:
        """Find the complete files, until azcopy has ended."""
        is_last = False
        try:
            while not is_last and not self._abandoned.is_set():
                is_last, began = self._over.is_set(), time.monotonic()
                for found in self._look():
                    self._ready.put(found)
                self._over.wait(max(_PAUSE, _SHARE * (time.monotonic() - began)))
        finally:
            for _ in range(_THREADS):
                self._ready.put(None)

    def _look(self) -> list[tuple[Path, FileAction]]:
        found: list[tuple[Path, FileAction]] = []
        moving: set[str] = set()
        for parent in [parent for parent, names in self._missing.items() if names]:
            names = self._missing[parent]
            try:
                with os.scandir(self._root / parent) as entries:
                    there = [entry.name for entry in entries]
            except OSError:
                # Not created yet.
                continue
            moving |= {f"{parent}/{name}" for name in map(unfinished_name, there) if name in names}
            found += [(self._root / parent / name, names.pop(name)) for name in there if name in names]
        self._report_moving(frozenset(moving))
        return found

    def _report_moving(self, moving: frozenset[str]) -> None:
        """Tell the listener about files that azcopy has started and not finished."""
        new = sorted(moving - self._moving)
        self._moving = moving
        if new:
            part = self._run.task.part
            shown = part.path if self._only else f"{part.path}/{new[-1].lstrip('/')}".lstrip("/")
            self._run.listener.emit(UnderWay(len(moving), shown))

    def _place_all(self) -> None:
        while (found := self._ready.get()) is not None:
            self._place_one(found)

    def _place_one(self, found: tuple[Path, FileAction]) -> None:
        if self._abandoned.is_set():
            return
        try:
            self._place(*found)
        except Stopped:
            return
        except BlobsyncError as error:
            self._run.failed(found[1], _other_disk(error) or error)
        with self._lock:
            self._left -= 1

    def _place(self, staged: Path, action: FileAction) -> None:
        content, md5 = self._checked(staged, action)
        part = self._folder.create(relative_name(self._only or action.target or action.path))
        try:
            part.take(staged)
            expected = action.destination if action.target is None else None
            state = part.commit(expected, md5)
        finally:
            part.discard()
        remote = action.source if isinstance(action.source, RemoteState) else None
        source = RemoteState(action.size, remote.etag, md5) if remote else None
        self._run.moved([Moved(action, source=source, destination=state, compared_by=content.compared_by)])

    def _checked(self, staged: Path, action: FileAction) -> tuple[Content, bytes]:
        """The file's content and its MD5, after checking that it is the planned blob's, with its size."""
        try:
            found = os.lstat(staged)
        except OSError as error:
            raise local_error(error, staged) from error
        expected = action.source
        size = action.size
        if found.st_size != size:
            raise ChangedWhileReadError(
                f"{action.path}: {found.st_size:,} bytes arrived instead of {size:,}",
                hint="the blob was changed in the meantime",
            )
        planned = expected if isinstance(expected, RemoteState) else RemoteState(size, "")
        content = Content(self._source.store, planned)
        self._read(staged, size, content)
        try:
            return content, content.demand(action.path)
        except ChecksumError as damaged:
            raise self._mismatch(action.path, planned, damaged) from damaged

    def _mismatch(self, path: str, planned: RemoteState, damaged: ChecksumError) -> BlobsyncError:
        """Why the file differs from the plan: the ETag shows whether the blob is still the planned one."""
        with suppress(StorageError):
            now = self._source.store.head(self._source.at(path))
            if now is None or now.etag != planned.etag:
                return ChangedWhileReadError(
                    f"{path}: the downloaded file has other content than the blob had",
                    hint="the blob was changed in the meantime",
                )
        return damaged

    def _read(self, path: Path, size: int, content: Content) -> None:
        file = SourceFile(path)
        try:
            for offset in range(0, size, _CHUNK):
                if self._abandoned.is_set():
                    raise Stopped
                content.update(file.read_at(offset, min(_CHUNK, size - offset)))
        finally:
            file.close()


def _other_disk(error: BlobsyncError) -> BlobsyncError | None:
    """An error if a folder below the destination is a separate mount, into which no finished file can be moved."""
    cause = error.__cause__
    if not isinstance(cause, OSError) or cause.errno != errno.EXDEV:
        return None
    return BlobsyncError(f"{error.path}: its folder is on another disk", code=FailureCode.AZCOPY_CANNOT_CARRY)
