"""The store that the command and the tasks of a spread transfer share: small named documents, and the seals on them.

Two kinds: blobs below ``.blobsync/spread/`` of the destination's container, and a folder of a shared file system.
Others can write to both, so the documents of a run of tasks, which is one job, are sealed with the run's key: those of
strangers count as missing. A seal is over the run, the document's name and its content, so that no document of another
run, nor one under another name, counts. The orders for the tasks are sealed, too: they are in the job's specification,
whose file others may be able to write to.

    shards/NUMBER     what a task is to move (``shard``)
    records/NUMBER    what became of it (``record``)
    ended             the transfer is over: tasks that have not begun end at once
    closing           which task closes a detached transfer; created once
    result            how a detached transfer ended
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

from blobsync.base.errors import BlobNotFoundError, FileFailure, LocalFileError, PreconditionFailedError
from blobsync.base.exit_codes import ExitCode
from blobsync.base.file_states import regular_only
from blobsync.base.plain_json import made_of, parse_object
from blobsync.base.records import dataclass
from blobsync.base.seals import SealKey
from blobsync.local.os_errors import naming
from blobsync.store.protocol import ANYTHING, BlobProperties, BlobStore, Precondition

# Maximum bytes of a document; shards and records are the largest.
LARGEST = 64 << 20
_NAME = re.compile(r"[a-z]+(/[A-Za-z0-9][A-Za-z0-9~.-]{0,199})?")
_PIECE = 4 << 20
# Maximum number of strangers' documents that are named one by one.
_MOST_TOLD = 10


class ContainerStore:
    """Blobs below ``prefix`` of a container: documents that appear atomically. A name is one word, or a word and a name
    below it. Thread-safe.

    Raises ``StorageError`` (a folder: ``LocalFileError``) if the store cannot be reached, after minutes of retries if
    the service is down: until :meth:`fail_soon`.
    """

    def __init__(self, store: BlobStore, prefix: str) -> None:
        self._store = store
        self._prefix = f"{prefix}/"

    @property
    def shown(self) -> str:
        """The store's name in messages."""
        return f"{self._store.container}/{self._prefix}"

    def write(self, name: str, body: bytes) -> None:
        """Write a document, replacing an older one."""
        self._put(name, body, ANYTHING)

    def create(self, name: str, body: bytes) -> bool:
        """Write a document; False if there is one, which stays."""
        try:
            self._put(name, body, Precondition(absent=True))
        except PreconditionFailedError:
            return False
        return True

    def read(self, name: str) -> bytes | None:
        """The content; None if there is no such document, empty if it is too large to be a valid one."""
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
        """The names below a word, sorted, without the word. Invalid names are left out."""
        above = len(self._prefix) + len(folder) + 1
        found = (blob.name[above:] for blob in self._store.list_blobs(f"{self._prefix}{folder}/"))
        return sorted(name for name in found if _NAME.fullmatch(f"{folder}/{name}"))

    def remove(self, name: str) -> None:
        """Remove a document; a missing one is no error."""
        with suppress(BlobNotFoundError):
            self._store.delete(self._at(name))

    def remove_all(self) -> str:
        """Remove every document of the store, and of those below it; returns why something is left, or nothing."""
        # In batches, where there are many.
        left = self._store.delete_many([blob.name for blob in self._store.list_blobs(self._prefix)])
        return next(iter(left.values()), "")

    def below(self, name: str) -> ContainerStore:
        """The store with its documents in a folder of this one."""
        return ContainerStore(self._store, self._at(name))

    def swap(self, name: str, known: bytes | None, body: bytes) -> bool:
        """Replace a document that still has the content ``known`` (None: that is not there); False if it has not."""
        version = self._store.head(self._at(name))
        if self.read(name) != known:
            return False
        condition = Precondition(absent=True) if version is None else Precondition(etag=version.etag)
        try:
            self._put(name, body, condition)
        except PreconditionFailedError:
            return False
        return True

    def has_others_than(self, known: str) -> bool:
        """Whether there are stores below this one besides ``known``."""
        above = len(self._prefix)
        names = (blob.name[above:] for blob in self._store.list_blobs(self._prefix))
        return any("/" in name and name.partition("/")[0] != known for name in names)

    def fail_soon(self) -> None:
        """From now on wait only seconds for a store that cannot be reached."""
        self._store.fail_soon()

    def _put(self, name: str, body: bytes, condition: Precondition) -> None:
        md5 = hashlib.md5(body, usedforsecurity=False).digest()
        properties = BlobProperties(content_type="application/json")
        self._store.put(self._at(name), body, md5=md5, properties=properties, condition=condition)

    def _at(self, name: str) -> str:
        return self._prefix + _checked(name)


class FolderStore:
    """The same in a folder that all nodes see."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def shown(self) -> str:
        return f"{self._root}/"

    def write(self, name: str, body: bytes) -> None:
        path, fresh = self._written(name, body)
        with naming(path):
            os.replace(fresh, path)

    def create(self, name: str, body: bytes) -> bool:
        path, fresh = self._written(name, body)
        with naming(path):
            try:
                # Linking to a name is atomic: if several try, one succeeds.
                os.link(fresh, path)
            except FileExistsError:
                return False
            finally:
                fresh.unlink(missing_ok=True)
        return True

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

    def remove_all(self) -> str:
        errors: list[OSError] = []
        shutil.rmtree(self._root, onerror=lambda *about: errors.append(about[2][1]))
        return next((str(each) for each in errors if not isinstance(each, FileNotFoundError)), "")

    def below(self, name: str) -> FolderStore:
        return FolderStore(self._at(name))

    def fail_soon(self) -> None:
        """Does nothing: a folder needs no waiting."""

    def _written(self, name: str, body: bytes) -> tuple[Path, Path]:
        path = self._at(name)
        fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        with naming(path):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fresh.write_bytes(body)
        return path, fresh

    def _at(self, name: str) -> Path:
        return self._root / _checked(name)


SharedStore: TypeAlias = ContainerStore | FolderStore


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"not a name of this place: {name!a}")
    return name


def new_run() -> str:
    """A unique name of a run."""
    return secrets.token_hex(8)


class SealedStore:
    """Seals what it writes to ``place``, and hides documents without a valid seal. See ``ContainerStore``."""

    def __init__(self, place: SharedStore, key: SealKey, run: str, warn: Callable[[str], None]) -> None:
        """``key`` is that of ``run``. ``warn`` is called for each document that is not part of it."""
        self._place = place
        self._key = key
        self._warn = warn
        self._strange: set[str] = set()
        self.run = run

    @property
    def shown(self) -> str:
        return self._place.shown

    def write(self, name: str, body: bytes) -> None:
        self._place.write(name, self._key.seal("spread", self.run, name, body))

    def create(self, name: str, body: bytes) -> bool:
        return self._place.create(name, self._key.seal("spread", self.run, name, body))

    def read(self, name: str) -> bytes | None:
        document = self._place.read(name)
        body = self._key.opened("spread", self.run, name, document) if document is not None else None
        if document is not None and body is None:
            self._name(name)
        return body

    def names(self, folder: str) -> list[str]:
        return self._place.names(folder)

    def fail_soon(self) -> None:
        self._place.fail_soon()

    def _name(self, name: str) -> None:
        if name in self._strange or len(self._strange) >= _MOST_TOLD:
            return
        self._strange.add(name)
        more = "; others are not named any more" if len(self._strange) == _MOST_TOLD else ""
        self._warn(f"{self.shown}{name} has no seal of this transfer: it counts as absent{more}")


def orders_seal(run: SealKey, orders: Mapping[str, Any]) -> str:
    """The seal over all orders except itself, which is one of them."""
    plain = {name: value for name, value in orders.items() if name != "seal"}
    body = json.dumps(plain, sort_keys=True).encode()
    return run.derive("orders").seal("orders", str(orders.get("run")), "orders", body).split()[2].decode()


@dataclass(frozen=True, slots=True)
class Result:
    """The result; ``job`` is the job's run id, ``exit_code`` what the command would have ended with."""

    job: str
    exit_code: ExitCode
    transferred: int
    verified: int
    failures: tuple[FileFailure, ...]

    def body(self) -> bytes:
        """The document."""
        return json.dumps({**asdict(self), "failures": [each._asdict() for each in self.failures]}).encode()


def earlier_result(run_id: str, place: SealedStore) -> Result | None:
    """The result that a task of this job saved at the sealed ``place``; None if there is none, or it is invalid."""
    try:
        result = made_of(Result, parse_object(place.read("result") or b""))
    except ValueError:
        return None
    return result if result.job == run_id else None
