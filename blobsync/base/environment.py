"""The environment of this process, where a caller passes none.

``os.environ`` must not be a parameter default: ``help()`` and editors print defaults, and so every secret in it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping


def environment(given: Mapping[str, str] | None) -> Mapping[str, str]:
    """``given``, also an empty one; the process's own for None."""
    return os.environ if given is None else given


def listed_in(environ: Mapping[str, str], name: str) -> tuple[str, ...]:
    """A variable that holds several words, with commas or blanks between them."""
    return tuple(environ.get(name, "").replace(",", " ").split())
