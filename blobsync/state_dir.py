"""Where a project keeps what blobsync remembers about it: ``<project>/.blobsync``."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from blobsync.errors import LocalFileError

NAME = ".blobsync"


@dataclass(frozen=True, slots=True)
class StateDir:
    """The folders below are made on first use, for the owner only."""

    root: Path

    @property
    def index_file(self) -> Path:
        """What is known to be equal on both sides (SQLite)."""
        return self.root / "index.sqlite"

    @property
    def jobs_file(self) -> Path:
        """The history of submitted jobs (SQLite)."""
        return self.root / "jobs.sqlite"

    def folder(self, name: str) -> Path:
        """A sub-folder, made when missing: ``receipts``, ``transfers``."""
        path = self.root / name
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        return path


def open_state_dir(project: Path, environ: Mapping[str, str]) -> StateDir:
    """``<project>/.blobsync``; for a project we may not write to, a folder of the user's state directory.

    Raises ``LocalFileError`` when neither can be written.
    """
    inside = project / NAME
    try:
        _make(inside)
        return StateDir(inside)
    except OSError:
        pass
    base = environ.get("XDG_STATE_HOME") or os.path.join(environ.get("HOME", "~"), ".local", "state")
    digest = hashlib.sha256(str(project).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    outside = Path(base).expanduser() / "blobsync" / f"{project.name}-{digest}"
    try:
        _make(outside)
    except OSError as error:
        raise LocalFileError(
            f"neither {inside} nor {outside} can be written: {error.strerror}",
            hint="free some space, or set XDG_STATE_HOME to a folder that you may write to",
            path=str(inside),
        ) from error
    return StateDir(outside)


def _make(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    ignore = path / ".gitignore"
    if not ignore.exists():
        # Nobody wants an index or a receipt in a commit.
        ignore.write_text("*\n")
    if not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(13, "Permission denied", str(path))
