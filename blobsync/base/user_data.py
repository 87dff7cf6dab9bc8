"""The user's own folders, outside of all projects: for programs and the emulator, and for what is remembered."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from blobsync.base.environment import environment


def data_home(environ: Mapping[str, str] | None = None) -> Path:
    """``$XDG_DATA_HOME/blobsync``, by default ``~/.local/share/blobsync``; not made here.

    https://specifications.freedesktop.org/basedir-spec/latest/: a relative value is to be ignored.
    """
    environ = environment(environ)
    given = environ.get("XDG_DATA_HOME", "")
    if given and Path(given).is_absolute():
        return Path(given) / "blobsync"
    return _home(environ) / ".local" / "share" / "blobsync"


def state_home(environ: Mapping[str, str]) -> Path:
    """``$XDG_STATE_HOME/blobsync``, by default ``~/.local/state/blobsync``; not made here."""
    given = environ.get("XDG_STATE_HOME", "")
    if given and Path(given).is_absolute():
        return Path(given) / "blobsync"
    return _home(environ) / ".local" / "state" / "blobsync"


def _home(environ: Mapping[str, str]) -> Path:
    home = environ.get("HOME")
    return Path(home) if home else Path.home()
