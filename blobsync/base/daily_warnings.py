"""Shows each warning at most once a day; remembers in the user's state folder when each was shown last."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from blobsync.base.user_folders import make_private, state_home

DAY_SECONDS = 86_400.0


class DailyWarning(str):
    """A warning to show once a day, not with every command."""

    __slots__ = ()


def shown_today(
    warning: str, project: Path, environ: Mapping[str, str], *, clock: Callable[[], float] = time.time
) -> bool:
    """Whether ``warning`` was already shown in this project within a day; if not, record that it is shown now.

    If that cannot be recorded, the warning is shown again next time.
    """
    import hashlib  # late: it loads OpenSSL, and most commands have no warning

    folder, now = state_home(environ) / "told", clock()
    mark = folder / hashlib.sha256(f"{project}\0{warning}".encode("utf-8", "surrogateescape")).hexdigest()[:32]
    with suppress(OSError):
        if _is_fresh(mark, now):
            return True
    with suppress(OSError):
        make_private(folder)
        for old in folder.iterdir():
            if not _is_fresh(old, now):
                old.unlink()
        mark.touch(0o600)
        os.utime(mark, (now, now))
    return False


def _is_fresh(file: Path, now: float) -> bool:
    return 0 <= now - file.stat().st_mtime < DAY_SECONDS
