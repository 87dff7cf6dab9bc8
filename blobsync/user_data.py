"""Where blobsync keeps what it installs for itself: programs, never a project's data or secrets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def data_home(environ: Mapping[str, str] = os.environ) -> Path:
    """``$XDG_DATA_HOME/blobsync``, by default ``~/.local/share/blobsync``; not made here.

    https://specifications.freedesktop.org/basedir-spec/latest/: a relative value is to be ignored.
    """
    given = environ.get("XDG_DATA_HOME", "")
    if given and Path(given).is_absolute():
        return Path(given) / "blobsync"
    home = environ.get("HOME")
    return (Path(home) if home else Path.home()) / ".local" / "share" / "blobsync"
