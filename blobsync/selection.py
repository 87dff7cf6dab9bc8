"""``--include`` and ``--exclude``: gitignore-style patterns on the paths below a PATH."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from blobsync.errors import UsageError


def selector(include: Sequence[str], exclude: Sequence[str]) -> Callable[[str], bool] | None:
    """Whether a relative path takes part; None when all do.

    A path takes part when it matches an ``include`` pattern (or there are none) and no ``exclude`` pattern.
    Raises ``UsageError`` on a pattern that is none.
    """
    if not include and not exclude:
        return None
    from pathspec import GitIgnoreSpec  # late: most commands have no patterns

    def spec(option: str, patterns: Sequence[str]) -> GitIgnoreSpec:
        try:
            return GitIgnoreSpec.from_lines(patterns)
        except ValueError as error:
            raise UsageError(f"{option}: {error}", hint="patterns are written as in .gitignore") from error

    wanted, unwanted = spec("--include", include), spec("--exclude", exclude)

    def takes_part(path: str) -> bool:
        return (not include or wanted.match_file(path)) and not unwanted.match_file(path)

    return takes_part
