"""Walks a local folder once: every file with its ``stat``, and every entry that is skipped or unreadable."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from blobsync.base.errors import LocalFileError
from blobsync.base.file_states import LocalState
from blobsync.base.plan_reasons import Reason
from blobsync.base.records import NamedTuple
from blobsync.local.link_policy import LinkPolicy
from blobsync.local.names import is_temporary
from blobsync.local.state_dir import NAME as STATE_DIR_NAME

# Twenty folders with two links each to the next one are a million ways to the last.
_MOST_REPEATED = 10_000


class TreeEntry(NamedTuple):
    """``state`` is None for a skipped entry, and ``reason`` says why; ``detail`` is the system's message."""

    path: str
    state: LocalState | None
    reason: Reason | None = None
    detail: str = ""


def walk(root: Path, links: LinkPolicy, followed: dict[str, str] | None = None) -> Iterator[TreeEntry]:
    """Yield every file below ``root``, in no particular order; reads each folder once.

    Skips unfinished downloads and blobsync's own folder silently. A folder or entry that cannot be read
    is yielded with reason ``UNREADABLE``: deletions must know that the tree was not read completely. ``followed``
    gets each link that was followed, with its real path. Raises ``LocalFileError`` if links to
    folders that contain links to folders would multiply the files without end.
    """
    known = {} if followed is None else followed
    linked: set[str] = set()
    again = 0
    stack: list[tuple[str, str, tuple[str, ...]]] = [(os.fspath(root), "", (os.path.realpath(root),))]
    while stack:
        folder, prefix, chain = stack.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    found = _look(entry, prefix, links, chain, known)
                    if isinstance(found, TreeEntry):
                        yield found
                    elif found is not None:
                        stack.append(found)
                        if found[2] is not chain:
                            again += found[2][-1] in linked
                            linked.add(found[2][-1])
                            _demand_few(again, found[1])
        except OSError as error:
            yield TreeEntry(prefix.rstrip("/"), None, Reason.UNREADABLE, error.strerror or str(error))


def _demand_few(again: int, path: str) -> None:
    if again > _MOST_REPEATED:
        link = path.rstrip("/")
        raise LocalFileError(
            f"{link}: more than {_MOST_REPEATED:,} symlinks point to folders that other symlinks point to as well",
            hint="remove such links, or pass --links skip",
            path=link,
        )


def _look(
    entry: os.DirEntry[str], prefix: str, links: LinkPolicy, chain: tuple[str, ...], followed: dict[str, str]
) -> TreeEntry | tuple[str, str, tuple[str, ...]] | None:
    """One entry of the folder: what it is, a folder to walk, or None for what is skipped."""
    name = entry.name
    path = prefix + name
    if name.startswith(".") and (is_temporary(name) or name == STATE_DIR_NAME):
        return None
    try:
        if entry.is_symlink():
            return _link(entry, path, links, chain, followed)
        if entry.is_dir(follow_symlinks=False):
            return entry.path, f"{path}/", chain
        status = entry.stat(follow_symlinks=False)
    except OSError as error:
        return TreeEntry(path, None, Reason.UNREADABLE, error.strerror or str(error))
    if not stat.S_ISREG(status.st_mode):
        return TreeEntry(path, None, Reason.NOT_A_FILE)
    return TreeEntry(path, LocalState.of(status))


def _link(
    entry: os.DirEntry[str], path: str, links: LinkPolicy, chain: tuple[str, ...], followed: dict[str, str]
) -> TreeEntry | tuple[str, str, tuple[str, ...]]:
    real = os.path.realpath(entry.path)
    refusal = links.refusal(path, real, chain)
    if refusal is not None:
        return TreeEntry(path, None, refusal, f"to {real}")
    try:
        status = os.stat(real)
    except FileNotFoundError:
        return TreeEntry(path, None, Reason.UNREADABLE, f"a symlink to {os.readlink(entry.path)}, which does not exist")
    if stat.S_ISDIR(status.st_mode):
        # A folder inside itself: following would never end.
        if any(
            above == real or above.startswith(real.rstrip("/") + "/")
            for above in (*chain, os.path.realpath(os.path.dirname(entry.path)))
        ):
            return TreeEntry(path, None, Reason.UNREADABLE, f"a symlink loop back to {real}")
        followed[path] = real
        # Continue with its real path: resolving many links again for each file is slow.
        return real, f"{path}/", (*chain, real)
    if not stat.S_ISREG(status.st_mode):
        return TreeEntry(path, None, Reason.NOT_A_FILE)
    followed[path] = real
    return TreeEntry(path, LocalState.of(status))


def ignores_case(folder: Path) -> bool:
    """Whether the disk treats ``A`` and ``a`` as one name (macOS, FAT, many network shares).

    Found out without writing: looks up another spelling of something that exists in ``folder`` or above.
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
