"""Local files opened for reading below one folder, through no link that leads out of what the user agreed to.

The plan has looked at each link once. By the time a file is read, another one may be in its place, and a worker on a
node is told of files by a place that others can write to. So each file is reached through directory descriptors that
follow no link; one that is met counts as what it leads to, inside the boundary of its folder only.
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

# A folder need not be readable for what is in it to be.
_FOLDER = getattr(os, "O_PATH", 0) | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


class SourceFolder:
    """Files below ``root``, or ``root`` itself where it is a file. Safe for several threads."""

    def __init__(self, root: Path, boundary: tuple[Path, ...] = ()) -> None:
        """Links are followed inside ``boundary``: the project first, then what the user's trusted links lead to. Of the
        project only folders that hold data count. Empty: whoever gave the root gave what its links lead to as well."""
        self._root = root
        self._project = boundary[0] if boundary else root
        self._boundary = tuple(os.path.realpath(place) for place in boundary)
        # Files come folder by folder: the last one is kept open for the next file.
        self._last: tuple[str, FolderDescriptor] | None = None

    def open(self, relative: str, expected: FileState | None = None) -> SourceFile:
        """The file ``relative``, or the root itself where that is empty.

        Raises ``LocalFileError``, also for a link that leads out of the boundary, and ``ChangedWhileReadError`` when it
        is not ``expected`` any more.
        """
        path = f"{self._root}/{relative}" if relative else str(self._root)
        if not self._boundary:
            return SourceFile(path, expected)
        above, _, name = path.rpartition("/")
        # Its descriptor is open as long as somebody has it: other threads go to other folders meanwhile.
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
        """The folder of what a link leads to, and its name there."""
        real, place = self._demand_inside(path)
        above, name = os.path.split(real)
        return _opened(above, place if is_below(above, place) else above), name

    def _demand_inside(self, path: str) -> tuple[str, str]:
        """The real path, and the part of the boundary that it is in."""
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
        """Whether a link led to where no data are. What lies in such a folder by its own name, as ``data/.git`` does,
        is what the plan has read there."""
        project = self._boundary[0]
        if not is_protected(real, project):
            return False
        root = os.path.realpath(self._root)
        if real != os.path.normpath(f"{root}{path.removeprefix(str(self._root))}"):
            return True
        by_name = os.path.join(project, os.path.relpath(self._root, self._project))
        return root != os.path.normpath(by_name) and is_below(root, project) and is_protected(root, project)


def _opened(real: str, place: str) -> FolderDescriptor:
    """A folder of ``place``, through no link that took the place of a part of it meanwhile."""
    folder = os.open(place, os.O_RDONLY | _FOLDER)
    for part in Path(real).relative_to(place).parts:
        try:
            below = os.open(part, os.O_RDONLY | _FOLDER, dir_fd=folder)
        finally:
            os.close(folder)
        folder = below
    return FolderDescriptor(folder, unnamed=False)
