"""Where blobsync keeps what it installs for itself: programs, and the emulator with its account."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from blobsync.environment import environment


def data_home(environ: Mapping[str, str] | None = None) -> Path:
    """``$XDG_DATA_HOME/blobsync``, by default ``~/.local/share/blobsync``; not made here.

    https://specifications.freedesktop.org/basedir-spec/latest/: a relative value is to be ignored.
    """
    environ = environment(environ)
    given = environ.get("XDG_DATA_HOME", "")
    if given and Path(given).is_absolute():
        return Path(given) / "blobsync"
    home = environ.get("HOME")
    return (Path(home) if home else Path.home()) / ".local" / "share" / "blobsync"
