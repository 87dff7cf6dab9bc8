"""``--include`` and ``--exclude``: gitignore-style patterns on the paths below a PATH."""

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
