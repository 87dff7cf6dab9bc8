"""The store that coordinator and workers of a spread transfer share: small named documents, and claims on names.

Two kinds: blobs below ``.blobsync/spread/`` of the destination's container, where a claim is a lease and expires by the
service's clock; and a folder of a shared file system, where no clock can be trusted: there a claim whose file
stays the same for a minute has expired.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from blobsync.base.errors import BlobNotFoundError, LocalFileError, PreconditionFailedError, StorageError
from blobsync.base.file_states import regular_only
from blobsync.base.plain_json import parse_object
from blobsync.local.errors import naming
from blobsync.store.protocol import BlobProperties, BlobStore, Precondition

# Seconds; the longest lease with an expiry that the service allows.
CLAIM_SECONDS = 60
# Maximum bytes of a document; shards are the largest.
LARGEST = 64 << 20
_NAME = re.compile(r"[a-z]+(/[A-Za-z0-9][A-Za-z0-9~.-]{0,199})?")
_PIECE = 4 << 20


class SharedStore(Protocol):
    """Documents that appear atomically. A name is one word, or a word and a name below it. Thread-safe.

    Raises ``StorageError`` or ``LocalFileError`` if the store cannot be reached, after minutes of retries if the
    service is down: until :meth:`hurry`.
    """

    @property
    def shown(self) -> str:
        """The store's name in messages."""
        ...

    def write(self, name: str, body: bytes) -> None:
        """Write a document, replacing an older one."""
        ...

    def read(self, name: str) -> bytes | None:
        """The content; None if there is no such document, or if it is too large to be a valid one."""
        ...

    def names(self, folder: str) -> list[str]:
        """The names below a word, sorted, without the word. Invalid names are left out."""
        ...

    def remove(self, name: str) -> None:
        """Remove a document, whoever has a claim on it; a missing one is no error."""
        ...

    def remove_all(self) -> None:
        """Remove every document of the store."""
        ...

    def claim(self, name: str, holder: str) -> bool:
        """Take, renew or take back the claim on a name for ``CLAIM_SECONDS``; False if somebody else has it."""
        ...

    def release(self, name: str, holder: str) -> None:
        """Give the claim up."""
        ...

    def hurry(self) -> None:
        """From now on wait only seconds for a store that cannot be reached."""
        ...


class Leases(Protocol):
    """See :class:`blobsync.store.rest.store.BlobLeases`."""

    def acquire(self, name: str, holder: str, seconds: int) -> bool:
        """Acquire or reacquire the lease of an existing blob; False if another holder has it."""
        ...

    def release(self, name: str, holder: str) -> bool:
        """Release the lease; False if it was no longer ours."""
        ...

    def end(self, name: str) -> bool:
        """Break any holder's lease at once; False if there was none."""
        ...


class ContainerStore:
    """Blobs below ``prefix`` of a container. ``leases`` are those of the same container."""

    def __init__(self, store: BlobStore, leases: Leases, prefix: str, *, seconds: int = CLAIM_SECONDS) -> None:
        self._store = store
        self._leases = leases
        self._prefix = f"{prefix}/"
        self._seconds = seconds

    @property
    def shown(self) -> str:
        return f"{self._store.container}/{self._prefix}"

    def write(self, name: str, body: bytes) -> None:
        md5 = hashlib.md5(body, usedforsecurity=False).digest()
        self._store.put(self._at(name), body, md5=md5, properties=BlobProperties(content_type="application/json"))

    def read(self, name: str) -> bytes | None:
        pieces, size = [], 0
        try:
            with self._store.open(self._at(name)) as blob:
                while piece := blob.read(_PIECE):
                    pieces.append(piece)
                    size += len(piece)
                    if size > LARGEST:
                        return b""
        except BlobNotFoundError:
            return None
        return b"".join(pieces)

    def names(self, folder: str) -> list[str]:
        above = len(self._prefix) + len(folder) + 1
        found = (blob.name[above:] for blob in self._store.list_blobs(f"{self._prefix}{folder}/"))
        return sorted(name for name in found if _NAME.fullmatch(f"{folder}/{name}"))

    def remove(self, name: str) -> None:
        self._remove(self._at(name))

    def remove_all(self) -> None:
        for blob in list(self._store.list_blobs(self._prefix)):
            self._remove(blob.name)

    def has_more_than(self, known: Collection[str]) -> bool:
        """Whether there is anything below other words than these."""
        above = len(self._prefix)
        return any(blob.name[above:].partition("/")[0] not in known for blob in self._store.list_blobs(self._prefix))

    def claim(self, name: str, holder: str) -> bool:
        at = self._at(name)
        for _ in range(2):
            try:
                return self._leases.acquire(at, holder, self._seconds)
            except BlobNotFoundError:
                with suppress(PreconditionFailedError):
                    body, new = b"", Precondition(absent=True)
                    self._store.put(at, body, md5=hashlib.md5(body, usedforsecurity=False).digest(), condition=new)
        return False

    def release(self, name: str, holder: str) -> None:
        with suppress(BlobNotFoundError):
            self._leases.release(self._at(name), holder)

    def hurry(self) -> None:
        # The leases use the same connections.
        self._store.hurry()

    def _remove(self, at: str) -> None:
        with suppress(BlobNotFoundError):
            try:
                self._store.delete(at)
            except StorageError as error:
                if error.service_code != "LeaseIdMissing":
                    raise
                self._leases.end(at)
                self._store.delete(at)

    def _at(self, name: str) -> str:
        return self._prefix + _checked(name)


class FolderStore:
    """A folder that all nodes see. ``clock`` is monotonic, in seconds."""

    def __init__(
        self, root: Path, *, seconds: float = CLAIM_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._root = root
        self._seconds = seconds
        self._clock = clock
        # Claims of others: their file's content, and since when it is unchanged.
        self._seen: dict[str, tuple[bytes, float]] = {}

    @property
    def shown(self) -> str:
        return f"{self._root}/"

    def write(self, name: str, body: bytes) -> None:
        path = self._at(name)
        fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        with naming(path):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fresh.write_bytes(body)
            os.replace(fresh, path)

    def read(self, name: str) -> bytes | None:
        path = self._at(name)
        try:
            with naming(path), open(path, "rb", opener=regular_only) as file:
                body = file.read(LARGEST + 1)
        except LocalFileError as error:
            # A folder or a pipe is not a document.
            cause = error.__cause__
            if isinstance(cause, FileNotFoundError) or getattr(cause, "errno", None) in (errno.EISDIR, errno.EINVAL):
                return None
            raise
        return body if len(body) <= LARGEST else b""

    def names(self, folder: str) -> list[str]:
        path = self._root / folder
        with naming(path), suppress(FileNotFoundError):
            return sorted(name for name in os.listdir(path) if _NAME.fullmatch(f"{folder}/{name}"))
        return []

    def remove(self, name: str) -> None:
        for path in [self._at(name), *(path for _, path in self._claims(name))]:
            with naming(path):
                path.unlink(missing_ok=True)

    def remove_all(self) -> None:
        shutil.rmtree(self._root, ignore_errors=True)

    def claim(self, name: str, holder: str) -> bool:
        number, path = max(self._claims(name), default=(-1, None))
        if path is None:
            return self._create(name, 0, holder)
        with naming(path), suppress(FileNotFoundError, ValueError, KeyError):
            body = path.read_bytes()
            said = parse_object(body.decode())
            if said["holder"] == holder and not said["ended"]:
                self._say(path, holder)
                return True
            known, since = self._seen.get(name, (b"", 0.0))
            if body != known:
                since = self._clock()
                self._seen[name] = body, since
            if not said["ended"] and self._clock() - since < self._seconds:
                return False
        return self._create(name, number + 1, holder)

    def release(self, name: str, holder: str) -> None:
        _, path = max(self._claims(name), default=(-1, None))
        if path is not None:
            with naming(path), suppress(FileNotFoundError, ValueError, KeyError):
                if parse_object(path.read_bytes().decode())["holder"] == holder:
                    self._say(path, holder, ended=True)

    def hurry(self) -> None:
        """Does nothing: a folder needs no waiting."""

    def _create(self, name: str, number: int, holder: str) -> bool:
        """Create the claim's file. If several take the same number, one succeeds: linking to the name is atomic."""
        place = self._at(name)
        path = place.with_name(f"{place.name}~{number:06}")
        fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        with naming(path):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._say(fresh, holder)
            try:
                os.link(fresh, path)
            except FileExistsError:
                return False
            finally:
                fresh.unlink(missing_ok=True)
        return True

    def _say(self, path: Path, holder: str, *, ended: bool = False) -> None:
        """Write a content that differs each time, so that others see that the holder is alive."""
        fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        fresh.write_text(json.dumps({"holder": holder, "ended": ended, "beat": secrets.token_hex(4)}))
        os.replace(fresh, path)

    def _claims(self, name: str) -> Iterator[tuple[int, Path]]:
        place = self._at(name)
        for path in place.parent.glob(f"{place.name}~*"):
            number = path.name.rpartition("~")[2]
            if number.isdigit():
                yield int(number), path

    def _at(self, name: str) -> Path:
        return self._root / _checked(name)


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"not a name of this place: {name!a}")
    return name
