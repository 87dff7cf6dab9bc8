"""The seal of a state folder: of which project the folder is, by the key of this user alone.

A folder with the right name may still come from a stranger, or be a copy of another project's. So nothing in a state
folder counts before the file ``seal`` in it says that this user's blobsync made it for the project that it lies in.
"""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from blobsync.base.plain_json import parse_object
from blobsync.base.seals import SealKey

SEAL_FILE = "seal"

_KIND = "state folder"
_ID_BYTES = 16
# In bytes; one path has at most a few thousand.
_MOST = 1_000_000
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class StateSeal:
    """``id`` is random; ``paths`` are the project's, without links: more than one where the user said that it is seen
    under each of them."""

    id: str
    paths: tuple[str, ...]

    @classmethod
    def fresh(cls, project: Path) -> StateSeal:
        """A new id, for the project at this path alone."""
        return cls(secrets.token_hex(_ID_BYTES), (os.path.realpath(project),))

    def is_of(self, project: Path) -> bool:
        """Whether it was made for the project at this path, or for one that is this very folder by another path."""
        if os.path.realpath(project) in self.paths:
            return True
        return any(_is_same(path, project) for path in self.paths)


def read_seal(folder: int, name: str, key: SealKey) -> StateSeal | None:
    """The seal of the opened state folder ``name``; None where it has none of this user's."""
    try:
        fd = os.open(SEAL_FILE, _READ, dir_fd=folder)
    except OSError:
        return None
    try:
        # A folder or a pipe in its place is no seal, and a read of either ends at once.
        document = os.read(fd, _MOST)
    except OSError:
        return None
    finally:
        os.close(fd)
    body = key.opened(_KIND, name, SEAL_FILE, document)
    if body is None:
        return None
    values = parse_object(body.decode("ascii"))
    return StateSeal(str(values["id"]), tuple(map(str, values["paths"])))


def has_contents(folder: int) -> bool:
    """Whether an opened state folder holds anything besides its seal, and what a killed process left of one."""
    return any(not name.startswith(SEAL_FILE) for name in os.listdir(folder))


def write_seal(folder: Path, seal: StateSeal, key: SealKey, *, replaces: bool) -> None:
    """Seal the state folder. Two processes at once end up with one seal: the first, unless ``replaces``.

    Raises ``OSError``.
    """
    body = json.dumps({"id": seal.id, "paths": seal.paths}).encode("ascii")
    part, file = folder / f"{SEAL_FILE}.{secrets.token_hex(4)}", folder / SEAL_FILE
    try:
        with open(os.open(part, _NEW, 0o600), "wb") as stream:
            stream.write(key.seal(_KIND, folder.name, SEAL_FILE, body))
            stream.flush()
            os.fsync(stream.fileno())
        if replaces or not _linked(part, file):
            os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)


def _linked(part: Path, file: Path) -> bool:
    """False where the file system has no hard links."""
    try:
        os.link(part, file)
    except FileExistsError:
        return True
    except OSError:
        return False
    return True


def _is_same(path: str, project: Path) -> bool:
    with suppress(OSError, ValueError):
        return os.path.samefile(path, project)
    return False
