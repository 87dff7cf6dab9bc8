"""Warnings that are worth a word a day: when each was told last, in the user's own state folder."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from blobsync.base.user_data import state_home

DAY_SECONDS = 86_400.0


class DailyWarning(str):
    """A warning that nobody needs to hear with every command."""

    __slots__ = ()


def told_today(
    warning: str, project: Path, environ: Mapping[str, str], *, clock: Callable[[], float] = time.time
) -> bool:
    """Whether ``warning`` was told in this project within a day; if not, it counts as told now.

    If that cannot be recorded, the message is shown again.
    """
    import hashlib  # late: it loads OpenSSL, and most commands have nothing to tell

    folder, now = state_home(environ) / "told", clock()
    told = folder / hashlib.sha256(f"{project}\0{warning}".encode("utf-8", "surrogateescape")).hexdigest()[:32]
    with suppress(OSError):
        if _is_fresh(told, now):
            return True
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for old in folder.iterdir():
            if not _is_fresh(old, now):
                old.unlink()
        told.touch(0o600)
        os.utime(told, (now, now))
    return False


def _is_fresh(file: Path, now: float) -> bool:
    return 0 <= now - file.stat().st_mtime < DAY_SECONDS
