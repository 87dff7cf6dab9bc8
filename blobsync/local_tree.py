"""Walks a local folder once: every file with its ``stat``, and every entry that cannot or will not move."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from blobsync.names import is_temporary
from blobsync.plan import LocalState, Reason
from blobsync.state_dir import NAME as STATE_DIR_NAME


class Entry(NamedTuple):
    """``state`` is None for what is left out, and ``reason`` then says why; ``detail`` is the system's word."""

    path: str
    state: LocalState | None
    reason: Reason | None = None
    detail: str = ""


class LinkPolicy(NamedTuple):
    """What to do about symlinks: ``follow``, ``skip`` or ``error``; ``inside`` are the real paths that count
    as the project (its own, and the mapped folder's where that is a link to another disk)."""

    mode: str
    inside: tuple[str, ...]

    def holds(self, real: str) -> bool:
        """Whether ``real`` (a path without links) is in the project."""
        return any(real == root or real.startswith(root.rstrip("/") + "/") for root in self.inside)


def link_policy(mode: str, *roots: Path) -> LinkPolicy:
    """The policy for a project at the first of ``roots``; the others count as inside, too."""
    return LinkPolicy(mode, tuple(os.path.realpath(root) for root in roots))


def walk(root: Path, links: LinkPolicy) -> Iterator[Entry]:
    """Every file below ``root``, in no particular order, each folder read once.

    Unfinished downloads and blobsync's own folder are passed over. A folder or entry that cannot be read
    is yielded with reason ``UNREADABLE``: whoever deletes must know that the tree was not seen whole.
    """
    stack: list[tuple[str, str, tuple[str, ...]]] = [(os.fspath(root), "", (os.path.realpath(root),))]
    while stack:
        folder, prefix, chain = stack.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    found = _look(entry, prefix, links, chain)
                    if isinstance(found, Entry):
                        yield found
                    elif found is not None:
                        stack.append(found)
        except OSError as error:
            yield Entry(prefix.rstrip("/"), None, Reason.UNREADABLE, error.strerror or str(error))


def _look(
    entry: os.DirEntry[str], prefix: str, links: LinkPolicy, chain: tuple[str, ...]
) -> Entry | tuple[str, str, tuple[str, ...]] | None:
    """One entry: a finding, a folder to walk, or None for what is passed over."""
    name = entry.name
    path = prefix + name
    if name.startswith(".") and (is_temporary(name) or name == STATE_DIR_NAME):
        return None
    try:
        if entry.is_symlink():
            return _link(entry, path, links, chain)
        if entry.is_dir(follow_symlinks=False):
            return entry.path, f"{path}/", chain
        status = entry.stat(follow_symlinks=False)
    except OSError as error:
        return Entry(path, None, Reason.UNREADABLE, error.strerror or str(error))
    if not stat.S_ISREG(status.st_mode):
        return Entry(path, None, Reason.NOT_A_FILE)
    return Entry(path, LocalState.of(status))


def _link(
    entry: os.DirEntry[str], path: str, links: LinkPolicy, chain: tuple[str, ...]
) -> Entry | tuple[str, str, tuple[str, ...]]:
    if links.mode == "skip":
        return Entry(path, None, Reason.SYMLINK_SKIPPED)
    if links.mode == "error":
        return Entry(path, None, Reason.UNREADABLE, "a symlink, and --links error was given")
    real = os.path.realpath(entry.path)
    if not links.holds(real):
        return Entry(path, None, Reason.SYMLINK_OUTSIDE, real)
    try:
        status = os.stat(real)
    except FileNotFoundError:
        return Entry(path, None, Reason.UNREADABLE, f"a symlink to {os.readlink(entry.path)}, which is not there")
    if stat.S_ISDIR(status.st_mode):
        # A folder within itself: following would never end.
        if any(
            above == real or above.startswith(real.rstrip("/") + "/")
            for above in (*chain, os.path.realpath(os.path.dirname(entry.path)))
        ):
            return Entry(path, None, Reason.UNREADABLE, f"a symlink loop back to {real}")
        return entry.path, f"{path}/", (*chain, real)
    if not stat.S_ISREG(status.st_mode):
        return Entry(path, None, Reason.NOT_A_FILE)
    return Entry(path, LocalState.of(status))


def ignores_case(folder: Path) -> bool:
    """Whether the disk takes ``A`` and ``a`` for one name (macOS, FAT, many network shares).

    Found out without writing: by another spelling of something that is there already, in ``folder`` or above.
    """
    for place in (folder, *folder.parents):
        try:
            with os.scandir(place) as entries:
                name = next((entry.name for entry in entries if entry.name.swapcase() != entry.name), None)
            if name is not None:
                return os.path.samefile(place / name, place / name.swapcase())
        except FileNotFoundError:
            if place.exists():
                return False
        except OSError:
            continue
    return False
