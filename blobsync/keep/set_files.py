"""The files of a set on this disk, and whether they are whole: JSON, zips, safetensors written to the end."""

from __future__ import annotations

import json
import os
import stat
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from blobsync.base.file_states import LocalState, regular_only
from blobsync.base.plain_json import parse_object
from blobsync.keep.marks import MarkedFile
from blobsync.local.files import hash_file
from blobsync.local.names import is_temporary
from blobsync.local.os_errors import raise_unless_gone

_MAX_TEXT = 16 << 20
# The end of a zip's directory, and how far from the file's end it may begin: a comment of 64 KiB.
_ZIP, _ZIP_END, _ZIP_TAIL = b"PK\x03\x04", b"PK\x05\x06", 65_557
_MAX_HEADER = 100 << 20


class FolderContent:
    """Reads files of a folder for :func:`blobsync.keep.checkpoint_sets.judge`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._whole: dict[str, tuple[LocalState, bool]] = {}

    def text(self, path: str) -> str | None:
        """A small text file; None if there is none."""
        try:
            with open(self._folder / path, "rb", opener=regular_only) as body:
                return body.read(_MAX_TEXT).decode("utf-8", "replace")
        except OSError:
            return None

    def is_whole(self, path: str) -> bool:
        """Whether a zip has its end, and safetensors all its bytes; True for anything else."""
        file = self._folder / path
        state = LocalState.at(file)
        if state is None:
            return False
        known = self._whole.get(path)
        if known is None or not known[0].same_file(state):
            known = self._whole[path] = (state, _is_whole(file, state.size))
        return known[1]

    def is_json(self, path: str) -> bool:
        """Whether the file can be read as JSON; not a number, which programs write, is no JSON for others only."""
        text = self.text(path)
        with suppress(ValueError, RecursionError):
            json.loads(text or "")
            return True
        return False


def _is_whole(file: Path, size: int) -> bool:
    try:
        with open(file, "rb", opener=regular_only) as body:
            head = body.read(8)
            if file.suffix == ".safetensors":
                (length,) = struct.unpack("<Q", head) if len(head) == 8 else (_MAX_HEADER,)
                return bool(length < _MAX_HEADER and 8 + length + _tensor_bytes(body.read(length)) <= size)
            if head[:4] != _ZIP:
                return True
            body.seek(max(0, size - _ZIP_TAIL))
            tail = body.read(_ZIP_TAIL)
            end = tail.rfind(_ZIP_END)
            # Behind it are 18 bytes, the last two of which are the length of the comment that ends the file.
            return end >= 0 and len(tail) - end - 22 == int.from_bytes(tail[end + 20 : end + 22], "little")
    except (OSError, ValueError, TypeError, LookupError):
        # The name alone says what it is: anything may be in it.
        return False


def _tensor_bytes(header: bytes) -> int:
    """Where the last tensor ends behind the header of safetensors. Raises ``ValueError``, ``TypeError`` and
    ``LookupError``."""
    ends = [each["data_offsets"][1] for name, each in parse_object(header).items() if name != "__metadata__"]
    return max([0, *(end for end in ends if isinstance(end, int))])


def files_of(path: Path) -> Iterator[tuple[str, LocalState]]:
    """The files of a set, by their paths below it; ``""`` for a set that is one file. What is not there has none.

    Raises ``LocalFileError`` for what cannot be looked at: a set without it would be taken for whole.
    """
    if (found := _state_of(path)) is not None:
        yield "", found
        return
    for folder, _, names in os.walk(path, onerror=raise_unless_gone):
        for name in names:
            file = Path(folder, name)
            if not is_temporary(name) and (found := _state_of(file)) is not None:
                yield file.relative_to(path).as_posix(), found


def unlike(path: Path, files: Iterable[MarkedFile]) -> str:
    """The first file of a set at ``path`` that is not as its mark says; empty if all are."""
    for each in files:
        hashed = hash_file(path / each.path if each.path else path)
        if hashed is None or hashed.md5 is None or (hashed.size, hashed.md5.hex()) != (each.size, each.md5):
            return each.path or path.name
    return ""


def _state_of(file: Path) -> LocalState | None:
    """None for what is no file, or not there any more."""
    try:
        found = file.stat()
    except OSError as error:
        raise_unless_gone(error)
        return None
    return LocalState.of(found) if stat.S_ISREG(found.st_mode) else None
