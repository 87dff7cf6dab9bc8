"""This process's environment, used where a caller passes none.

``os.environ`` must not be a parameter default: ``help()`` and editors print defaults, and so every secret in it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping


def environment(given: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return ``given``, even if it is empty; the process's own environment if it is None."""
    return os.environ if given is None else given


def listed_in(environ: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Split a variable that holds several words, separated by commas or blanks."""
    return tuple(environ.get(name, "").replace(",", " ").split())
