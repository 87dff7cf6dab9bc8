"""Reading one blob as a stream that survives broken connections."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import final

from blobsync.base.errors import StorageError
from blobsync.store.protocol import BlobInfo, BlobProperties
from blobsync.store.rest.headers import properties_of, read_asked
from blobsync.store.rest.http import BlobHttp, Reply
from blobsync.store.rest.transport import Response, TransportError


@final
class RestBlobReader:
    """The body of a Get Blob; see ``storage.BlobReader``."""

    def __init__(
        self,
        get: Callable[[str, int, int | None, str | None], Reply],
        name: str,
        start: int,
        length: int | None,
        etag: str | None,
        http: BlobHttp,
    ) -> None:
        self._get = get
        self._name = name
        self._http = http
        self._at = start
        try:
            reply, self._info = self._ask(None if length is None else start + length, etag)
        except StorageError as error:
            # 416: an empty blob has no range at all, not even the one that starts at 0.
            if error.status != 416 or start:
                raise
            reply, self._info = self._ask(None, etag)
        self._headers = reply.headers
        self._end = self._info.size if length is None else min(self._info.size, start + length)
        self._response: Response | None = reply.response

    @property
    def info(self) -> BlobInfo:
        return self._info

    @property
    def properties(self) -> BlobProperties:
        return properties_of(self._headers)

    def __enter__(self) -> RestBlobReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connection back; one with unread bytes on it is closed."""
        response, self._response = self._response, None
        if response is not None:
            response.close()

    def read(self, limit: int) -> bytes:
        """At most ``limit`` bytes, empty at the end."""
        failures = 0
        while limit and self._at < self._end:
            broken: Exception | None = None
            try:
                if self._response is None:
                    self._response = self._ask(self._end, self._info.etag)[0].response
                piece = self._response.read(min(limit, self._end - self._at))
                if piece:
                    self._at += len(piece)
                    if self._at >= self._end:
                        self._response.close()
                    return piece
            except TransportError as error:
                broken = error
            failures += 1
            if self._response is not None:
                self._response.close()
                self._response = None
            if not self._http.resumes(failures):
                raise StorageError(
                    f"{self._name}: the body ended at byte {self._at} of {self._end}", path=self._name
                ) from broken
            self._http.pause(failures)
        return b""

    def _ask(self, end: int | None, etag: str | None) -> tuple[Reply, BlobInfo]:
        """From here on."""
        reply = self._get(self._name, self._at, end, etag)
        try:
            return reply, read_asked(self._name, reply, self._at, etag)
        except BaseException:
            reply.response.close()
            raise
