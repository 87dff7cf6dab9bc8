"""Regular expressions that are compiled when they are first used: a short command uses few of those that it loads."""

from __future__ import annotations

import re
from typing import cast

_METHODS = ("findall", "finditer", "fullmatch", "match", "pattern", "search", "split", "sub", "subn")


def pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """What ``re.compile`` would return, without compiling it now. An invalid ``text`` raises at the first use."""
    return cast("re.Pattern[str]", _Late(text, flags))


class _Late:
    def __init__(self, text: str, flags: int) -> None:
        self._given = text, flags

    def __getattr__(self, name: str) -> object:
        if name not in _METHODS:
            raise AttributeError(name)
        compiled = re.compile(*self._given)
        # From now on these are found without coming here.
        self.__dict__.update({each: getattr(compiled, each) for each in _METHODS})
        return self.__dict__[name]
