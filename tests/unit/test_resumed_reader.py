"""The body of a file: continued where it broke off, from the same version and size, or a failure."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from blobsync.base.errors import StorageUnreachableError
from blobsync.store.protocol import BlobInfo, BlobProperties
from blobsync.store.resumed_reader import ResumedReader


class _Body:
    def __init__(self, *parts: bytes) -> None:
        self.parts, self.closed = list(parts), False

    def read(self, limit: int, /) -> bytes:
        return self.parts.pop(0) if self.parts else b""

    def close(self) -> None:
        self.closed = True


class _Server:
    """Answers each GET with the next size and body; ``asked`` has start, length and version of each."""

    def __init__(self, *answers: tuple[int, _Body]) -> None:
        self.answers, self.asked = list(answers), list[tuple[int, int | None, str | None]]()

    def get(
        self, name: str, start: int, length: int | None, etag: str | None
    ) -> tuple[BlobInfo, Callable[[], BlobProperties], _Body]:
        self.asked.append((start, length, etag))
        size, body = self.answers.pop(0)
        return BlobInfo(name, size=size, etag="v1", last_modified=0.0), BlobProperties, body


def _reader(server: _Server) -> ResumedReader:
    return ResumedReader(server.get, lambda breaks: breaks <= 5, StorageUnreachableError, "a", 0, None)


def test_a_body_that_breaks_off_is_continued_from_the_same_version() -> None:
    first = _Body(b"abc")
    server = _Server((6, first), (6, _Body(b"def")))
    with _reader(server) as reader:
        assert reader.read(9) + reader.read(9) + reader.read(9) == b"abcdef"
    assert server.asked == [(0, None, None), (3, 3, "v1")]
    assert first.closed


def test_one_of_another_size_under_the_same_version_is_not_continued() -> None:
    server = _Server((6, _Body(b"abc")), (9, _Body(b"def")))
    with _reader(server) as reader:
        assert reader.read(9) == b"abc"
        with pytest.raises(StorageUnreachableError, match="ended at byte 3 of 6"):
            reader.read(9)


def test_a_body_is_continued_as_often_as_its_store_goes_on() -> None:
    server = _Server(*((6, _Body()) for _ in range(6)))
    with _reader(server) as reader, pytest.raises(StorageUnreachableError):
        reader.read(9)
    assert len(server.asked) == 6
