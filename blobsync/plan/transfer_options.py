"""The options of a transfer.

Patterns on paths are written as in .gitignore: ``--include`` and ``--exclude`` below a PATH, ``ignore`` below a folder
entry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Literal

EngineName = Literal["auto", "azcopy", "direct", "relay"]
Keep = Literal["local", "remote", "both"]
Links = Literal["follow", "skip", "error"]

# Files; more than any container has: the limit if only a percentage is given.
NO_LIMIT = 10**12


@dataclass(frozen=True, slots=True, repr=False)
class TransferOptions:
    """The options of a transfer; the defaults are the commands' defaults.

    ``engine``: ``auto``, ``azcopy``, ``direct`` or ``relay``; None is what ``BLOBSYNC_ENGINE`` says, or else the
    cluster file's ``engine:``, or else ``auto``. ``keep``: ``local``, ``remote`` or ``both``, for files that changed on
    both sides: both ends get this version (in a copy between blobs ``local`` means the source, which is only read).
    ``links``: ``follow``, ``skip`` or ``error``. ``include`` and ``exclude`` are gitignore-style patterns on paths
    below each PATH. ``compare_content`` reads blobs without MD5 to compare them. ``cap_mbps``: megabits (10^6) a
    second. ``relay`` lets refused copies go through this machine. ``max_delete_*`` guard ``mirror``; if both have their
    defaults, the share counts only if the destination has 20 files or more. ``from_path`` is the source's path if it
    differs. ``receipt`` uploads the receipt beside the data. ``all_entries`` means a PATH for each folder entry; one
    that is not at the source is skipped. ``processes`` is how many the direct engine uses; None: as many as are worth
    it. ``nodes`` of the cluster carry out the transfer (None: this machine); with ``detach`` on their own. ``force``
    downloads what fits if the disk has too little free space.
    """

    engine: EngineName | None = None
    mirror: bool = False
    max_delete_files: int = 1000
    max_delete_percent: float = 10.0
    overwrite: bool = False
    keep: Keep | None = None
    links: Links = "follow"
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    compare_content: bool = False
    cap_mbps: float | None = None
    relay: bool = False
    from_path: str | None = None
    receipt: bool = False
    all_entries: bool = False
    processes: int | None = None
    nodes: int | None = None
    detach: bool = False
    force: bool = False

    def __repr__(self) -> str:
        """Only what is not the default."""
        changed = (each.name for each in fields(self) if getattr(self, each.name) != each.default)
        return f"TransferOptions({', '.join(f'{name}={getattr(self, name)!r}' for name in changed)})"

    def settles_both_ends(self, from_cluster: object) -> bool:
        """Whether ``--keep`` may write at the source's end, too: not if ``-f`` or ``--from-path`` names it."""
        return from_cluster is None and self.from_path is None


def selector(include: Sequence[str], exclude: Sequence[str]) -> Callable[[str], bool] | None:
    """A function that tells whether a relative path takes part; None if all do.

    A path takes part when an ``include`` pattern matches it or a folder above it (or there are none), and no
    ``exclude`` pattern does. Raises ``IgnorePatternError`` for an invalid pattern.
    """
    if not include and not exclude:
        return None
    wanted, unwanted = _matcher("--include", include), _matcher("--exclude", exclude)
    return lambda path: (not include or wanted(path)) and not unwanted(path)


def ignored_by(patterns: Sequence[tuple[str, Sequence[str]]]) -> Callable[[str], bool] | None:
    """A function that tells whether ``ignore`` of a folder entry leaves out a relative path; None without patterns.

    Each item is where the paths begin below an entry, and that entry's patterns. Raises ``IgnorePatternError``.
    """
    rules = [(f"{base}/" if base else "", base, _matcher("ignore", each)) for base, each in patterns if each]
    if not rules:
        return None
    return lambda path: any(matches(f"{lead}{path}" if path else base) for lead, base, matches in rules)


def below_any(folders: Sequence[str]) -> Callable[[str], bool] | None:
    """A function that tells whether a relative path is at or below one of ``folders``; None without folders."""
    if not folders:
        return None
    # An entry may be a single file's.
    names, leads = frozenset(folders), tuple(f"{folder}/" for folder in folders)
    return lambda path: path in names or path.startswith(leads)


def _matcher(option: str, patterns: Sequence[str]) -> Callable[[str], bool]:
    from blobsync.local.globs import byte_text  # imported late: most commands have no patterns
    from blobsync.local.ignore import IgnoreRules, parse_lines

    rules = IgnoreRules(((parse_lines(byte_text("\n".join(patterns)), option, numbered=False),),))
    folders: dict[str, bool] = {"": False}

    def matches(path: str, *, folder: bool) -> bool:
        rule = rules.decide(path, folder=folder)
        return rule is not None and not rule.takes_in

    def in_folder(folder: str) -> bool:
        unknown = []
        while folder not in folders:
            unknown.append(folder)
            folder = folder.rpartition("/")[0]
        # No recursion: a name may have more parts than Python's stack.
        for below in reversed(unknown):
            folders[below] = folders[folder] or matches(below, folder=True)
            folder = below
        return folders[folder]

    return lambda path: in_folder(path.rpartition("/")[0]) or matches(path, folder=False)
