"""The environment of this process, where a caller passes none.

``os.environ`` is no default of a parameter: ``help()`` and editors print defaults, and with it every secret.
"""

from __future__ import annotations

import os
from collections.abc import Mapping


def environment(given: Mapping[str, str] | None) -> Mapping[str, str]:
    """``given``, also an empty one; the process's own for None."""
    return os.environ if given is None else given
