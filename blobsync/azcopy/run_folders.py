"""Private folders of each run of azcopy (log, plan files, links), and the removal of what dead runs left.

``<state>/azcopy/run-<pid>-<8 hex>/`` holds azcopy's log, its plan files, its home and, for uploads, the tree of
links that it reads. ``lock`` there is locked while its transfer lives, and ``owner.json`` names azcopy's process and
a staging folder elsewhere, so that a later run can clean up after one that was killed. On failure the log moves to
``<state>/azcopy/logs/``, the last few of it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import field
from pathlib import Path

from blobsync.base.plain_json import parse_json
from blobsync.base.process_identity import variables_of
from blobsync.base.records import dataclass
from blobsync.base.redaction import redact
from blobsync.base.user_folders import locked
from blobsync.local.names import is_own_temporary, new_temporary_name
from blobsync.local.os_errors import naming
from blobsync.local.state_dir import own_folder

KEPT_LOGS = 5

_RUN = "run-"
_RUN_NAME = re.compile(r"run-\d{1,20}-[0-9a-f]{8}")
_KEPT_NAME = re.compile(r"\d{1,20}-[0-9a-f]{8}")
_OWNER = "owner.json"
_LOCK = "lock"

# If the file system has no locks (some network mounts), only what is untouched for so long is dead (seconds).
_DEAD_WITHOUT_LOCK = 7 * 24 * 3600.0


@dataclass(slots=True)
class Workspace:
    """The folders of one transfer; all exist. ``staging`` is None until a download creates one.

    Set ``failed`` after a failure; ``kept`` is then the path of azcopy's log.
    """

    root: Path
    staging: Path | None = None
    azcopy_pid: int = 0
    failed: bool = False
    kept: Path | None = None
    home: Path = field(init=False)
    logs: Path = field(init=False)
    plans: Path = field(init=False)
    links: Path = field(init=False)

    def __post_init__(self) -> None:
        self.home, self.logs, self.plans, self.links = (self.root / name for name in ("home", "log", "plan", "links"))

    def note_process(self, pid: int) -> None:
        """Record azcopy's process ID for a later cleanup."""
        self.azcopy_pid = pid
        self._save()

    def make_staging(self, beside: Path) -> Path:
        """Create a private folder in ``beside``, on the same file system as the final files.

        Its name is that of an unfinished download, so that no walk treats it as data.
        """
        self.staging = beside / new_temporary_name()
        self._save()
        self.staging.mkdir(mode=0o700)
        return self.staging

    def write(self, name: str, text: str) -> Path:
        """Write a file of the transfer's own; raises ``LocalFileError``."""
        path = self.root / name
        with naming(path):
            path.write_text(text, encoding="utf-8", newline="")
        return path

    def _save(self) -> None:
        owner = {"azcopy": self.azcopy_pid, "staging": str(self.staging) if self.staging else None}
        self.write(f"{_OWNER}.new", json.dumps(owner)).replace(self.root / _OWNER)


@contextmanager
def workspace(state: Path) -> Iterator[Workspace]:
    """Private folders below ``state`` for one transfer, removed afterwards, or by :func:`prune_workspaces` later.

    Raises ``LocalFileError`` when they cannot be made.
    """
    base = state / "azcopy"
    space = Workspace(base / f"{_RUN}{os.getpid()}-{os.urandom(4).hex()}")
    with ExitStack() as held:
        with naming(space.root):
            for folder in (state, base, space.root):
                own_folder(folder)
            held.enter_context(locked(space.root / _LOCK))
            for place in (space.home, space.logs, space.plans, space.links):
                place.mkdir(mode=0o700)
        try:
            yield space
        except BaseException:
            space.failed = True
            raise
        finally:
            if space.failed:
                _keep_log(space, base / "logs")
            _remove(space.root, space.staging)


def prune_workspaces(state: Path) -> int:
    """Remove what dead transfers left: azcopy itself if it still runs, its places, its staging folders.

    Returns how many transfers were cleaned up after; silent about what cannot be removed.
    """
    removed = 0
    for root, owner in _dead(state):
        azcopy = owner.get("azcopy")
        if isinstance(azcopy, int) and azcopy > 1 and _works_in(azcopy, root):
            with suppress(OSError):
                os.kill(azcopy, signal.SIGKILL)
        removed += _remove(root, _staging(owner))
    return removed


def abandoned_staging(state: Path) -> list[Path]:
    """The staging folders of dead transfers, which :func:`prune_workspaces` removes."""
    return [staging for _, owner in _dead(state) if (staging := _staging(owner)) is not None]


def _dead(state: Path) -> Iterator[tuple[Path, dict[str, object]]]:
    for root in sorted((state / "azcopy").glob(f"{_RUN}*")):
        if _RUN_NAME.fullmatch(root.name) and not root.is_symlink() and _is_dead(root):
            yield root, _owner(root)


def _staging(owner: dict[str, object]) -> Path | None:
    given = owner.get("staging")
    staging = Path(given) if isinstance(given, str) else Path()
    return staging if is_own_temporary(staging.name) and not staging.is_symlink() else None


def _is_dead(root: Path) -> bool:
    try:
        fd = os.open(root / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        # Killed between the two first steps, or just about to take the second.
        return _untouched_for(root) > 60.0
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return _untouched_for(root) > _DEAD_WITHOUT_LOCK
    finally:
        os.close(fd)
    return True


def _untouched_for(root: Path) -> float:
    try:
        return time.time() - root.stat().st_mtime
    except OSError:
        return 0.0


def _owner(root: Path) -> dict[str, object]:
    try:
        found = parse_json((root / _OWNER).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _works_in(pid: int, root: Path) -> bool:
    """Whether process ``pid`` is the azcopy of this transfer, and not another program with a reused ID.

    Told by its environment, which Linux shows to its owner; elsewhere a stray azcopy is left to end by itself.
    """
    return f"AZCOPY_LOG_LOCATION={root / 'log'}".encode("utf-8", "surrogateescape") in variables_of(pid)


def _keep_log(space: Workspace, kept: Path) -> None:
    with suppress(OSError):
        own_folder(kept)
        target = kept / space.root.name.removeprefix(_RUN)
        target.mkdir(mode=0o700)
        for log in space.logs.glob("*.log"):
            with log.open(errors="replace") as source, (target / log.name).open("w") as sink:
                sink.writelines(redact(line) for line in source)
            space.kept = target
        ours = [path for path in kept.iterdir() if _KEPT_NAME.fullmatch(path.name) and not path.is_symlink()]
        by_age = sorted(ours, key=lambda path: path.stat().st_mtime, reverse=True)
        for old in by_age[KEPT_LOGS:]:
            shutil.rmtree(old, ignore_errors=True)


def _remove(root: Path, staging: Path | None) -> bool:
    """Remove the folders of a transfer; returns whether its staging folder is gone.

    What names a staging folder that cannot be removed now, as on a network mount that lost it for a moment, stays for
    a later run.
    """
    if staging is not None:
        shutil.rmtree(staging, ignore_errors=True)
        if not _is_gone(staging):
            return False
    shutil.rmtree(root, ignore_errors=True)
    return True


def _is_gone(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False
