"""The files that are moved. Made once in the work directory; contents are random, so that nothing can be left out."""

from __future__ import annotations

import itertools
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

_PER_FOLDER = 100
_PIECE = 8 * 1024 * 1024
# This many deleted files do not slow down creating others.
_FEW = 100


@dataclass(frozen=True)
class Tree:
    """``files`` files of ``size`` bytes each, a hundred to a folder; a single one has no folder."""

    files: int
    size: int

    @property
    def name(self) -> str:
        return f"{self.files}x{self.size}"

    @property
    def single(self) -> bool:
        return self.files == 1

    def make(self, root: Path) -> Path:
        """The tree below ``root``: a folder, or the file itself."""
        top = root / self.name
        if not top.exists():
            part = root / f"{self.name}.part"
            shutil.rmtree(part, ignore_errors=True)
            for number in range(self.files):
                path = part / self.path(number)
                path.parent.mkdir(parents=True, exist_ok=True)
                _fill(path, self.size)
            part.rename(top)
        return top

    def link(self, root: Path, target: Path) -> None:
        """The tree at ``target``, sharing its bytes with the one below ``root``; ``target`` is the file of a single."""
        source = self.make(root)
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        if self.single:
            target.unlink(missing_ok=True)
            os.link(source / self.path(0), target)
        else:
            shutil.copytree(source, target, copy_function=os.link)

    def path(self, number: int) -> str:
        """The file's name below the top."""
        return "file.bin" if self.single else f"d{number // _PER_FOLDER:04}/f{number:06}.bin"


def _fill(path: Path, size: int) -> None:
    with path.open("wb") as file:
        for start in range(0, size, _PIECE):
            file.write(os.urandom(min(_PIECE, size - start)))


def count_files(root: Path) -> tuple[int, int]:
    """How many files are below ``root``, and their bytes."""
    files = size = 0
    for folder, _, names in os.walk(root):
        files += len(names)
        size += sum(os.stat(os.path.join(folder, name)).st_size for name in names)
    return files, size


def change(root: Path, tree: Tree, count: int, salt: int) -> None:
    """Give ``count`` files spread over the tree other contents, one byte longer so that the size shows it."""
    for index in range(count):
        path = root / tree.path(index * tree.files // count)
        body = os.urandom(path.stat().st_size + 1 + salt % 2)
        # Not in place: the tree shares its files with others.
        path.unlink()
        path.write_bytes(body)


def put_aside(folder: Path, aside: Path, files: int) -> None:
    """Rename what an earlier run left in ``folder``, about ``files`` files; ``remove_aside`` deletes it.

    ext4 walks around inodes that were freed in the last half minute: making 2,000 files after
    2,000 were deleted takes ten times as long for each (0.55 ms instead of 0.05), whatever the tool.
    """
    if files <= _FEW:
        shutil.rmtree(folder, ignore_errors=True)
    elif folder.exists():
        aside.mkdir(parents=True, exist_ok=True)
        free = (aside / str(number) for number in itertools.count())
        folder.rename(next(name for name in free if not name.exists()))


def remove_aside(aside: Path) -> None:
    """Delete the renamed folders, after the measurements."""
    shutil.rmtree(aside, ignore_errors=True)
