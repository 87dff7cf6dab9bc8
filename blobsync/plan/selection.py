"""Gitignore-style patterns on paths: ``--include`` and ``--exclude`` below a PATH, ``ignore`` below a folder entry."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def selector(include: Sequence[str], exclude: Sequence[str]) -> Callable[[str], bool] | None:
    """Whether a relative path takes part; None when all do.

    A path takes part when an ``include`` pattern matches it or a folder above it (or there are none), and no
    ``exclude`` pattern does. Raises ``IgnorePatternError`` on a pattern that is none.
    """
    if not include and not exclude:
        return None
    wanted, unwanted = _matcher("--include", include), _matcher("--exclude", exclude)
    return lambda path: (not include or wanted(path)) and not unwanted(path)


def ignored_by(patterns: Sequence[tuple[str, Sequence[str]]]) -> Callable[[str], bool] | None:
    """Whether a relative path is left out by the ``ignore`` of a folder entry; None when there are no patterns.

    Each item is where the paths begin below an entry, and that entry's patterns. Raises ``IgnorePatternError``.
    """
    rules = [(f"{base}/" if base else "", base, _matcher("ignore", each)) for base, each in patterns if each]
    if not rules:
        return None
    return lambda path: any(matches(f"{lead}{path}" if path else base) for lead, base, matches in rules)


def below_any(folders: Sequence[str]) -> Callable[[str], bool] | None:
    """Whether a relative path is one of these, or lies below one; None when there are none."""
    if not folders:
        return None
    # An entry may be a single file's.
    names, leads = frozenset(folders), tuple(f"{folder}/" for folder in folders)
    return lambda path: path in names or path.startswith(leads)


def _matcher(option: str, patterns: Sequence[str]) -> Callable[[str], bool]:
    from blobsync.local.globs import byte_text  # late: most commands have no patterns
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
        # Not by recursion: a name may have more parts than Python has stack.
        for below in reversed(unknown):
            folders[below] = folders[folder] or matches(below, folder=True)
            folder = below
        return folders[folder]

    return lambda path: in_folder(path.rpartition("/")[0]) or matches(path, folder=False)
