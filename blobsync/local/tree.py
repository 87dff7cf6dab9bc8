"""Walks a local folder once: every file with its ``stat``, and every entry that is skipped or unreadable."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from blobsync.base.errors import LocalFileError, UntrustedLinkError
from blobsync.base.file_states import LocalState
from blobsync.base.plan_reasons import Reason
from blobsync.config.mapping import is_below
from blobsync.config.project_root import PROJECT_MARK
from blobsync.config.trusted_links import OutsideLink, trust_command
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


class LinkPolicy(NamedTuple):
    """What to do about symlinks: ``follow``, ``skip`` or ``error``.

    ``project`` is its real path, ``shown`` the walked folder from the project's root. ``entered`` are the real paths
    outside the project to which links on the way to this folder lead, and ``trusted`` the links out of the project
    that the user has agreed to.
    """

    mode: str
    project: str
    shown: str = ""
    entered: tuple[str, ...] = ()
    trusted: frozenset[OutsideLink] = frozenset()

    def refusal(self, path: str, real: str, chain: tuple[str, ...]) -> Reason | None:
        """Why the link ``path`` (below the walked folder) to ``real`` is not followed; None if it is.

        ``chain`` are the real paths of the linked folders that the walk went through.
        """
        if self.mode == "skip":
            return Reason.SYMLINK_SKIPPED
        if self.mode == "error":
            return Reason.SYMLINK_REFUSED
        if is_below(real, self.project):
            return Reason.SYMLINK_PROTECTED if is_protected(real, self.project) else None
        if OutsideLink(f"{self.shown}/{path}", real) in self.trusted:
            return None
        # Links inside a trusted link's target may lead anywhere in that target.
        places = (*self.entered, *(place for place in chain if not is_below(place, self.project)))
        return None if any(is_below(real, place) for place in places) else Reason.SYMLINK_OUTSIDE


class Way(NamedTuple):
    """The links on the way to a path: ``entered`` are the targets of trusted ones outside the project."""

    entered: tuple[str, ...]
    untrusted: tuple[OutsideLink, ...]


def way_to(root: Path, path: str, trusted: frozenset[OutsideLink]) -> Way:
    """Check each part of ``path`` (from the project's root, ``root``).

    Raises ``LocalFileError`` for a link into a folder of the project that holds no data.
    """
    project = os.path.realpath(root)
    entered: list[str] = []
    untrusted: list[OutsideLink] = []
    # Trusting a link means trusting the links in its target.
    opened: list[str] = []
    parts = path.split("/")
    for count in range(1, len(parts) + 1):
        link = "/".join(parts[:count])
        if not os.path.islink(root / link):
            continue
        real = os.path.realpath(root / link)
        if is_below(real, project):
            if real == project or is_protected(real, project):
                raise LocalFileError(
                    f"{link} is {Reason.SYMLINK_PROTECTED.value}, which cannot hold data",
                    hint=f"remove {link}",
                    path=link,
                )
            continue
        if OutsideLink(link, real) in trusted or any(is_below(real, place) for place in entered):
            entered.append(real)
        elif not any(is_below(real, place) for place in opened):
            untrusted.append(OutsideLink(link, real))
        opened.append(real)
    return Way(tuple(entered), tuple(untrusted))


def demand_trust(root: Path, paths: Iterable[str], trusted: frozenset[OutsideLink]) -> None:
    """Raise ``UntrustedLinkError`` if a link on the way to ``paths``, from the project's root, is not trusted."""
    links = dict.fromkeys(link for path in paths for link in way_to(root, path, trusted).untrusted)
    if links:
        where = "; ".join(f"{link.link} points to {link.target}" for link in links)
        raise UntrustedLinkError(
            f"a symlink points outside the project, and blobsync does not follow it until you trust it: {where}",
            links=tuple(links),
            hint=f"to trust it: {' && '.join(trust_command(link.link) for link in links)}",
        )


def is_protected(real: str, project: str) -> bool:
    """Whether a link to ``real``, inside the project, would open its configuration, its state or its repository."""
    parts = Path(real).relative_to(project).parts
    return ".git" in parts or STATE_DIR_NAME in parts or parts[:1] == (PROJECT_MARK,)


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
