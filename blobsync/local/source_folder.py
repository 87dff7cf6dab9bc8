"""Opens local files for reading below one folder, through no link that leads out of what the user agreed to.

The plan has checked each link once. By the time a file is read, another link may be in its place, and a worker on a
node gets its list of files from a place that others can write to. So each file is opened through directory descriptors
that follow no link; a link counts as its target, and only inside the boundary of its folder.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from blobsync.base.errors import LocalFileError
from blobsync.base.file_states import FileState
from blobsync.config.mapping import is_below
from blobsync.local.errors import naming
from blobsync.local.files import SourceFile
from blobsync.local.part_files import FolderDescriptor
from blobsync.local.tree import is_protected

# A folder need not be readable for the files in it to be.
_FOLDER = getattr(os, "O_PATH", 0) | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


class SourceFolder:
    """Files below ``root``, or ``root`` itself if it is a file. Safe to use from several threads."""

    def __init__(self, root: Path, boundary: tuple[Path, ...] = ()) -> None:
        """Links are followed inside ``boundary``: the project first, then the targets of the user's trusted links. In
        the project only folders that hold data count. Empty: whoever named the root agreed to its links as well."""
        self._root = root
        self._project = boundary[0] if boundary else root
        self._boundary = tuple(os.path.realpath(place) for place in boundary)
        # Files come folder by folder: the last one is kept open for the next file.
        self._last: tuple[str, FolderDescriptor] | None = None

    def open(self, relative: str, expected: FileState | None = None) -> SourceFile:
        """Open the file ``relative``, or the root itself if that is empty.

        Raises ``LocalFileError``, also for a link that leads out of the boundary, and ``ChangedWhileReadError`` when it
        is not ``expected`` any more.
        """
        path = f"{self._root}/{relative}" if relative else str(self._root)
        if not self._boundary:
            return SourceFile(path, expected)
        above, _, name = path.rpartition("/")
        # Whoever uses the descriptor keeps it open: other threads move on to other folders meanwhile.
        folder = self._folder(above, path)
        try:
            return SourceFile(name, expected, folder=folder.fd, shown=path)
        except LocalFileError as error:
            if not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.ELOOP:
                raise
        with naming(path):
            folder, name = self._through_links(path)
        return SourceFile(name, expected, folder=folder.fd, shown=path)

    def _folder(self, above: str, path: str) -> FolderDescriptor:
        known = self._last
        if known is None or known[0] != above:
            with naming(path):
                real, place = self._demand_inside(above)
                known = above, _opened(real, place)
            self._last = known
        return known[1]

    def _through_links(self, path: str) -> tuple[FolderDescriptor, str]:
        """The folder of a link's target, and the target's name in it."""
        real, place = self._demand_inside(path)
        above, name = os.path.split(real)
        return _opened(above, place if is_below(above, place) else above), name

    def _demand_inside(self, path: str) -> tuple[str, str]:
        """The real path, and the part of the boundary that contains it."""
        real = os.path.realpath(path)
        for place in self._boundary:
            if is_below(real, place) and not (place == self._boundary[0] and self._protects(real, path)):
                return real, place
        raise LocalFileError(
            f"{path} leads to {real}, which the plan did not allow",
            hint="blobsync reads only through links that you trust: blobsync config trust-link PATH",
            path=path,
        )

    def _protects(self, real: str, path: str) -> bool:
        """Whether a link led into a folder that holds no data. Files that lie in such a folder by their own names, as
        in ``data/.git``, are what the plan has read there."""
        project = self._boundary[0]
        if not is_protected(real, project):
            return False
        root = os.path.realpath(self._root)
        if real != os.path.normpath(f"{root}{path.removeprefix(str(self._root))}"):
            return True
        by_name = os.path.join(project, os.path.relpath(self._root, self._project))
        return root != os.path.normpath(by_name) and is_below(root, project) and is_protected(root, project)


def _opened(real: str, place: str) -> FolderDescriptor:
    """Open a folder of ``place``, through no link that replaced a part of it meanwhile."""
    folder = os.open(place, os.O_RDONLY | _FOLDER)
    for part in Path(real).relative_to(place).parts:
        try:
            below = os.open(part, os.O_RDONLY | _FOLDER, dir_fd=folder)
        finally:
            os.close(folder)
        folder = below
    return FolderDescriptor(folder, unnamed=False)
