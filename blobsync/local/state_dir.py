"""Where a project keeps what blobsync remembers about it: ``<project>/.blobsync/state-<mark>``.

A project may come from a stranger, with a forged ``.blobsync``. So nothing in there is trusted by
its name alone: the mark is a MAC with a key from the user's configuration folder. Nobody else can name a
folder that blobsync opens, and others are ignored. It contains no host name: home folders are shared.
"""

from __future__ import annotations

import atexit
import hashlib
import hmac
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from blobsync.base.errors import LocalFileError
from blobsync.base.seals import KEY_BYTES, SealKey
from blobsync.base.user_data import config_home, state_home
from blobsync.config.project_root import STATE_FOLDER

NAME = STATE_FOLDER
KEY_FILE = "state.key"

_MARK_CHARS = 16
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_KEY = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_KEY = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class StateDir:
    """The folders below are made on first use, for the owner only.

    ``lasting`` is False if nothing outlives this process, because blobsync has no writable folder.
    """

    root: Path
    lasting: bool = True

    @property
    def index_file(self) -> Path:
        """What is known to be equal on both sides (SQLite)."""
        return self.root / "index.sqlite"

    @property
    def blocks_file(self) -> Path:
        """What was put to containers in blocks (SQLite)."""
        return self.root / "blocks.sqlite"

    @property
    def jobs_file(self) -> Path:
        """The history of submitted jobs (SQLite). Raises ``LocalFileError`` where it would not last."""
        if not self.lasting:
            raise LocalFileError(
                "cannot record jobs: blobsync can write neither to the project nor to your home folder",
                hint="set XDG_STATE_HOME to a writable folder",
            )
        return self.root / "jobs.sqlite"

    def folder(self, name: str) -> Path:
        """A sub-folder, made when missing: ``receipts``, ``transfers``. Raises ``LocalFileError``."""
        path = self.root / name
        try:
            own_folder(path)
        except OSError as error:
            raise LocalFileError(f"{path}: {error.strerror}", path=str(path)) from error
        return path


def open_state_dir(project: Path, environ: Mapping[str, str]) -> StateDir:
    """The project's own folder; for a project we may not write to, a folder of the user's state directory.

    If neither is writable, a temporary one, which is removed when this process ends.
    """
    with suppress(OSError):
        return StateDir(_inside(project, environ))
    with suppress(OSError):
        return StateDir(_outside(project, environ))
    folder = tempfile.mkdtemp(prefix="blobsync-state-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return StateDir(Path(folder), lasting=False)


def own_folder(path: Path) -> None:
    """Make ``path`` where it is missing, for the owner only. Raises ``OSError`` unless it is ours alone to change.

    A link in its place was created by someone else: also a ``PermissionError``, and its target is not
    touched.
    """
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    try:
        fd = os.open(path, _FOLDER)
    except NotADirectoryError as error:
        # O_NOFOLLOW on a link answers so, together with O_DIRECTORY.
        raise PermissionError(1, "it is a link or not a folder: blobsync does not use it", str(path)) from error
    try:
        _demand_ours(os.fstat(fd), path)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied", str(path))
    finally:
        os.close(fd)


def user_key(environ: Mapping[str, str]) -> SealKey:
    """The key of this user's seals, made when missing. Raises ``OSError`` if there is none that only the user knows."""
    return SealKey(_key(config_home(environ)))


def _inside(project: Path, environ: Mapping[str, str]) -> Path:
    key = _key(config_home(environ))
    folder = project / NAME
    own_folder(folder)
    _ignore_in_git(folder)
    mark = hmac.new(key, b"blobsync state 1", hashlib.sha256).hexdigest()[:_MARK_CHARS]
    own = folder / f"state-{mark}"
    own_folder(own)
    return own


def _outside(project: Path, environ: Mapping[str, str]) -> Path:
    digest = hashlib.sha256(str(project).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    above = state_home(environ)
    above.mkdir(parents=True, exist_ok=True, mode=0o700)
    own_folder(above)
    own = above / f"{project.name}-{digest}"
    own_folder(own)
    return own


def _ignore_in_git(folder: Path) -> None:
    # Keep the index and receipts out of commits. Never through a link that came with the project.
    with suppress(FileExistsError):
        fd = os.open(folder / ".gitignore", _NEW_KEY, 0o644)
        with open(fd, "w", encoding="utf-8") as file:
            file.write("*\n")


def _key(home: Path) -> bytes:
    """The user's key, made when missing. Raises ``OSError`` when there is none that only the user knows."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = home / KEY_FILE
    if not file.exists():
        _make_key(home, file)
    fd = os.open(file, _READ_KEY)
    with open(fd, "rb") as stream:
        status = os.fstat(fd)
        _demand_ours(status, file)
        if status.st_mode & (stat.S_IRGRP | stat.S_IROTH):
            raise PermissionError(1, "other users can read it: remove it, and blobsync creates a new one", str(file))
        key = stream.read(KEY_BYTES + 1)
    if len(key) != KEY_BYTES:
        raise OSError(22, "it is not a valid key: remove it, and blobsync creates a new one", str(file))
    return key


def _make_key(home: Path, file: Path) -> None:
    """Under a name of its own first: two commands at once must end up with one key, and never with half of one."""
    part = home / f"{KEY_FILE}.{secrets.token_hex(4)}"
    with open(os.open(part, _NEW_KEY, 0o600), "wb") as stream:
        stream.write(secrets.token_bytes(KEY_BYTES))
    try:
        os.link(part, file)
    except FileExistsError:
        pass
    except OSError:
        # A file system without hard links.
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)


def _demand_ours(status: os.stat_result, path: Path) -> None:
    if status.st_uid != os.geteuid():
        raise PermissionError(1, "it belongs to another user", str(path))
    if status.st_mode & _OTHERS_WRITE:
        raise PermissionError(1, "other users can write to it", str(path))
