"""Records of the transfers under way, in a folder of the project's state: one small file for each, by its id. Beside it
is the request to stop one, an empty file that the transfer looks for.

A file appears whole. Whoever finds one whose transfer is gone removes it.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from blobsync.base.plain_json import parse_object
from blobsync.base.redaction import redact_tree
from blobsync.local.state_dir import StateDir

_FOLDER = "running"
_LARGEST = 200_000
# Seconds after which an unreadable record is removed.
_FORGOTTEN = 7 * 86400.0
_ID = re.compile(r"[0-9a-f]{8}")
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


class RunningRecords:
    """The records of a project. The folder is created on the first write."""

    def __init__(self, state: StateDir) -> None:
        self._state = state
        self._folder = state.root / _FOLDER

    def write(self, id: str, values: Mapping[str, Any]) -> None:
        """Replace the record. Raises ``OSError`` and ``LocalFileError``."""
        fresh = self._state.folder(_FOLDER) / f".{id}"
        with open(os.open(fresh, _WRITE, 0o600), "w", encoding="utf-8") as file:
            json.dump(redact_tree(values), file)
        os.replace(fresh, self._file(id))

    def each(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Every readable record, with its ID. Never raises."""
        names: list[str] = []
        with suppress(OSError):
            names = os.listdir(self._folder)
        for name in names:
            file = self._folder / name
            try:
                if not _ID.fullmatch(file.stem):
                    raise ValueError("it is no record, or was being written when its process was killed")
                yield file.stem, parse_object(_text(file))
            except (OSError, ValueError):
                _remove_old(file)

    def request_stop(self, id: str) -> None:
        """Ask the transfer with this record to stop. Raises ``OSError`` and ``LocalFileError``."""
        self._state.folder(_FOLDER)
        os.close(os.open(self._request(id), _WRITE, 0o600))

    def is_stop_requested(self, id: str) -> bool:
        """Whether somebody has asked this transfer to stop."""
        return os.path.lexists(self._request(id))

    def remove(self, id: str) -> None:
        """Remove the record, and a request to stop."""
        for file in (self._file(id), self._request(id)):
            with suppress(OSError):
                file.unlink(missing_ok=True)

    def _request(self, id: str) -> Path:
        return self._folder / f".{id}.stop"

    def _file(self, id: str) -> Path:
        return self._folder / f"{id}.json"


def _text(file: Path) -> str:
    with open(os.open(file, _READ), "rb") as source:
        return source.read(_LARGEST).decode("utf-8", "replace")


def _remove_old(file: Path) -> None:
    with suppress(OSError):
        if time.time() - file.lstat().st_mtime > _FORGOTTEN:
            file.unlink()
