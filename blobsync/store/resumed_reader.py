"""The body of a blob or of a source's object, read as a stream that survives broken connections."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Protocol, final

from blobsync.base.errors import StorageError, StorageUnreachableError
from blobsync.store.protocol import BlobInfo, BlobProperties
from blobsync.store.rest.transport import TransportError


class Body(Protocol):
    """What a GET is answered with."""

    def read(self, limit: int, /) -> bytes:
        """At most ``limit`` bytes; none at the end. Raises ``TransportError`` or ``StorageUnreachableError`` if it
        breaks off."""
        ...

    def close(self) -> None:
        """Give up the rest."""
        ...


# A GET of a name, from a byte on, so many bytes (None: all), of a version (None: any).
Get = Callable[[str, int, int | None, str | None], tuple[BlobInfo, Callable[[], BlobProperties], Body]]


@final
class ResumedReader:
    """See :class:`blobsync.store.protocol.BlobReader`. A body that breaks off is continued, from the same version."""

    def __init__(
        self,
        get: Get,
        goes_on: Callable[[int], bool],
        lost: type[StorageError],
        name: str,
        start: int,
        length: int | None,
        etag: str | None = None,
    ) -> None:
        """``goes_on`` gets the number of breaks in a row, and may wait; ``lost`` is the error if it returns False."""
        self._get, self._goes_on, self._lost, self._name, self._at = get, goes_on, lost, name, start
        self.info, self._properties, self._body = get(name, start, length, etag)
        self._end = self.info.size if length is None else min(self.info.size, start + length)

    @property
    def properties(self) -> BlobProperties:
        return self._properties()

    def __enter__(self) -> ResumedReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._body.close()

    def read(self, limit: int) -> bytes:
        """At most ``limit`` bytes, empty at the end."""
        breaks = 0
        while limit and self._at < self._end:
            broken: Exception | None = None
            try:
                piece = self._body.read(min(limit, self._end - self._at))
            except (TransportError, StorageUnreachableError) as error:
                piece, broken = b"", error
            if piece:
                self._at += len(piece)
                if self._at >= self._end:
                    self._body.close()
                return piece
            breaks += 1
            self._body.close()
            if not self._goes_on(breaks):
                if isinstance(broken, StorageError):
                    raise broken
                raise self._broken_off() from broken
            found, _, self._body = self._get(self._name, self._at, self._end - self._at, self.info.etag)
            if found.size != self.info.size:
                raise self._broken_off() from broken
        return b""

    def _broken_off(self) -> StorageError:
        return self._lost(f"{self._name}: the body ended at byte {self._at} of {self._end}", path=self._name)
