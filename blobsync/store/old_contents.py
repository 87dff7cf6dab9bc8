"""Contents that are no current blob any more: an earlier version of a blob, or a local file that has the same bytes.

A plan names such a content by the blob's name and an ETag of its own. The store of the plan's source gives it like any
blob; everything else it passes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, cast

from blobsync.base.errors import BlobsyncError, StorageError
from blobsync.base.file_states import LocalState, RemoteState
from blobsync.base.records import NamedTuple
from blobsync.local.files import SourceFile
from blobsync.store.open_locations import OpenBlob
from blobsync.store.protocol import (
    BlobInfo,
    BlobProperties,
    BlobReader,
    BlobStore,
    GetOrder,
    Order,
    Orders,
    VersionedStore,
)
from blobsync.store.resumed_reader import ResumedReader


class OldContent(NamedTuple):
    """Where one is: the id of a version, or a local ``file`` in that ``state``. ``now`` is the present blob of that
    name, None if there is none."""

    now: RemoteState | None
    version: str = ""
    file: Path | None = None
    state: LocalState | None = None


# By the container, the blob's name, and the ETag in the plan.
OldContents = Mapping[tuple[str, str, str], OldContent]


def with_old_contents(end: OpenBlob, known: OldContents) -> OpenBlob:
    """The same end, which also gives these contents."""
    return OpenBlob(cast("BlobStore", _Store(end.store, known)), end.name)


class _Store:
    """Passes everything on that it does not know better."""

    def __init__(self, store: BlobStore, known: OldContents) -> None:
        self._store, self._known = store, known

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def open(
        self, name: str, *, start: int = 0, length: int | None = None, etag: str | None = None
    ) -> AbstractContextManager[BlobReader]:
        old = self._known.get((str(self._store.container), name, etag or ""))
        if old is None:
            return self._store.open(name, start=start, length=length, etag=etag)
        if old.file is not None and old.state is not None:
            return _reader_of(name, old.file, old.state, start, length)
        assert isinstance(self._store, VersionedStore)
        return self._store.open_version(name, old.version, start=start, length=length)

    def orders(self) -> Orders | None:
        inner = self._store.orders()
        return None if inner is None else _Orders(inner, self)

    def knows(self, order: GetOrder) -> bool:
        """Whether what is ordered is no current blob."""
        return (str(self._store.container), order.name, order.etag) in self._known


class _Orders:
    """As the store's own; what is no current blob is read at once, since there is little of it."""

    def __init__(self, inner: Orders, store: _Store) -> None:
        self._inner, self._store = inner, store
        self._read: list[tuple[object, BlobInfo | bytes | BlobsyncError]] = []

    @property
    def under_way(self) -> int:
        return self._inner.under_way + len(self._read)

    @property
    def throttled(self) -> int:
        return self._inner.throttled

    def begin(self, key: object, order: Order) -> None:
        if not isinstance(order, GetOrder) or not self._store.knows(order):
            self._inner.begin(key, order)
            return
        try:
            body = b""
            with self._store.open(order.name, etag=order.etag) as reader:
                # One byte too many shows that it is another content; there may be no end of it.
                while piece := reader.read(order.size + 1 - len(body)):
                    body += piece
            self._read.append((key, body))
        except BlobsyncError as error:
            self._read.append((key, error))

    def ended(self, seconds: float) -> list[tuple[object, BlobInfo | bytes | BlobsyncError]]:
        read, self._read = self._read, []
        others = self._inner.ended(0 if read else seconds) if self._inner.under_way else []
        return [*read, *others]

    def close(self) -> None:
        self._inner.close()


class _FileBody:
    """The rest of a local file."""

    def __init__(self, file: SourceFile, at: int) -> None:
        self._file, self._at, self.close = file, at, file.close

    def read(self, limit: int) -> bytes:
        """See ``Body``. Raises ``ChangedWhileReadError``."""
        data = self._file.read_at(self._at, limit)
        self._at += len(data)
        return data


def _reader_of(name: str, file: Path, state: LocalState, start: int, length: int | None) -> ResumedReader:
    """A local file as the body of a blob."""
    body = _FileBody(SourceFile(file, state), start)
    found = BlobInfo(name, state.size, "", state.md5), BlobProperties, body
    return ResumedReader(lambda *_: found, lambda breaks: False, StorageError, name, start, length)
