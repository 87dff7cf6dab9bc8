"""The trash: local files that a download, a mirror or an undo replaced or deleted, for some days.

The files of a run are in a folder that has the run's id as its name, under their paths from the project's root. A file
gets its second name there (a hard link) before another one takes its place: after a kill it is in its place, in the
trash, or in both. Where there can be no link (another file system, somebody else's file), a copy is made instead.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain, count
from pathlib import Path

from blobsync.base.errors import NothingMatchedError, UsageError
from blobsync.base.records import NamedTuple
from blobsync.local.names import new_temporary_name
from blobsync.local.os_errors import naming, raise_unless_gone

TRASH_FOLDER = "trash"
# Errors where there can be no hard link: link(2).
_NO_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS})
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DAY = 86_400.0


class TrashLimits(NamedTuple):
    """How long files stay, and how many bytes at most; the oldest runs go first."""

    days: int = 7
    size: int = 20 * 10**9


class TrashedFile(NamedTuple):
    """A file in the trash: its path from the project's root, where it is now, and its size in bytes."""

    path: str
    place: Path
    size: int


class TrashedRun(NamedTuple):
    """The files of one run; ``at`` is when it replaced or deleted them (seconds since 1970)."""

    id: str
    at: float
    files: tuple[TrashedFile, ...]

    @property
    def size(self) -> int:
        """The total in bytes."""
        return sum(file.size for file in self.files)


def put_aside(folder: int, name: str, kept: Path, link: Callable[..., None] = os.link) -> None:
    """Give the file ``name`` in the open ``folder`` the second name ``kept``, or copy it there; ignored if it is gone,
    or is no file.

    What has the name ``kept`` already stays: this one gets the next free name. Raises ``LocalFileError``.
    """
    with naming(kept):
        kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            there = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return
        if not stat.S_ISREG(there.st_mode):
            # A link's target stays where it is.
            return
        for place in chain([kept], (kept.with_name(f"{kept.name}~{number}") for number in count(2))):
            try:
                link(name, place, src_dir_fd=folder, follow_symlinks=False)
            except FileExistsError:
                if not os.path.samestat(os.lstat(place), there):
                    continue
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
                _copied(folder, name, place)
            return


def _copied(folder: int, name: str, place: Path) -> None:
    """Copy the file; the copy gets its name when it is on the disk."""
    if os.path.lexists(place):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(place))
    part = place.with_name(new_temporary_name())
    try:
        with open(os.open(name, _READ, dir_fd=folder), "rb") as source, part.open("xb") as copy:
            found = os.fstat(source.fileno())
            shutil.copyfileobj(source, copy, 1 << 20)
            copy.flush()
            os.fchmod(copy.fileno(), stat.S_IMODE(found.st_mode))
            os.utime(copy.fileno(), ns=(found.st_atime_ns, found.st_mtime_ns))
            os.fsync(copy.fileno())
        part.rename(place)
    finally:
        part.unlink(missing_ok=True)


class Trash:
    """The trash of a project; ``folder`` need not exist."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of_run(self, id: str) -> Path:
        """The folder of a run's files."""
        return self._folder / id

    def runs(self) -> tuple[TrashedRun, ...]:
        """Every run, the newest first. Raises ``LocalFileError``."""
        with naming(self._folder), suppress(FileNotFoundError):
            found = [self._run(name) for name in os.listdir(self._folder)]
            return tuple(sorted((run for run in found if run is not None), key=lambda run: -run.at))
        return ()

    def find(self, wanted: str) -> TrashedRun:
        """The run of that id, or of one that begins or ends so. Raises ``NothingMatchedError`` and ``UsageError``."""
        found = [run for run in self.runs() if wanted and (run.id.startswith(wanted) or run.id.endswith(wanted))]
        if not found:
            raise NothingMatchedError(
                f"the trash has no files of a run {wanted!a}", hint="'blobsync trash ls' lists what it has"
            )
        if len(found) > 1:
            raise UsageError(f"{len(found)} runs could be {wanted!a}", hint="give more of the id")
        return found[0]

    def make_room(self, limits: TrashLimits, size: int, now: float | None = None, *, spared: str = "") -> None:
        """Remove what is older than the limit, and the oldest runs until ``size`` more bytes fit; not ``spared``."""
        oldest = (time.time() if now is None else now) - limits.days * _DAY
        for run in self.runs():
            size += run.size
            if run.id == spared:
                continue
            if run.at < oldest or size > limits.size:
                self.empty([run])

    def empty(self, runs: Sequence[TrashedRun]) -> None:
        """Delete the files of these runs for good. Raises ``LocalFileError``."""
        for run in runs:
            with naming(self.of_run(run.id)), suppress(FileNotFoundError):
                shutil.rmtree(self.of_run(run.id))

    def forget(self, run: TrashedRun, files: Sequence[TrashedFile]) -> None:
        """Delete these files of a run, and the folders that this leaves empty. Raises ``LocalFileError``."""
        for file in files:
            with naming(file.place):
                file.place.unlink(missing_ok=True)
            for folder in file.place.parents:
                if folder == self._folder:
                    break
                try:
                    folder.rmdir()
                except OSError:
                    break

    def _run(self, id: str) -> TrashedRun | None:
        top = self.of_run(id)
        try:
            at = os.lstat(top).st_mtime
        except FileNotFoundError:
            return None
        files = []
        for folder, _, names in os.walk(top, onerror=raise_unless_gone):
            for name in names:
                place = Path(folder, name)
                with suppress(FileNotFoundError):
                    files.append(TrashedFile(str(place.relative_to(top)), place, os.lstat(place).st_size))
        return TrashedRun(id, at, tuple(sorted(files)))
