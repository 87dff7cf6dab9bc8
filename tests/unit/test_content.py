"""``cat`` and ``diff`` of one path, with a container in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from blobsync.base.errors import (
    ChecksumError,
    LocalFileError,
    NothingMatchedError,
    ShapeConflictError,
    StorageError,
)
from blobsync.project import content
from tests.fakes.opened_project import Opened


class Place(Opened):
    """A project with the entry ``data`` in a container in memory."""

    def there(self, name: str, body: bytes, *, with_md5: bool = True) -> None:
        self.store.add(f"store/data/{name}", body, with_md5=with_md5)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "project")
    yield place
    place.project.close()


@pytest.mark.parametrize("body", [b"", b"abc\0\xff", os.urandom(3_000_001)], ids=["empty", "short", "pieces"])
@pytest.mark.parametrize("with_md5", [True, False])
def test_a_blob_is_read_as_it_is(place: Place, body: bytes, with_md5: bool) -> None:
    place.there("sub/a", body, with_md5=with_md5)
    assert b"".join(place.project.read("data/sub/a")) == body


def test_a_blob_is_looked_for_before_anything_is_read(place: Place) -> None:
    place.there("folder/a", b"a")
    with pytest.raises(NothingMatchedError, match="data/b: no blob or folder has that name"):
        place.project.read("data/b")
    for name in ("data/folder", "data/folder/", "data"):
        with pytest.raises(ShapeConflictError, match="is a folder, and cat reads blobs") as caught:
            place.project.read(name)
        assert caught.value.hint and "blobsync ls data" in caught.value.hint


def test_output_never_mixes_two_versions(place: Place) -> None:
    place.there("a", b"one")
    pieces = place.project.read("data/a")
    place.there("a", b"two")
    with pytest.raises(StorageError):
        list(pieces)


def test_damaged_bytes_are_printed_and_then_reported(place: Place) -> None:
    place.there("a", b"good")
    stored = place.store.blobs["store/data/a"]
    stored.body = b"evil"
    pieces = place.project.read("data/a")
    assert next(pieces) == b"evil"
    with pytest.raises(ChecksumError, match="data/a: its bytes have the MD5"):
        next(pieces)


@pytest.mark.parametrize("with_md5", [True, False])
def test_equal_files_have_no_difference(place: Place, with_md5: bool) -> None:
    place.there("a", b"one\n", with_md5=with_md5)
    (place.root / "data" / "a").write_bytes(b"one\n")
    found = place.project.diff("data/a")
    assert (found.status, found.here, found.there, found.lines, found.no_lines) == ("equal", 4, 4, (), "")


def test_texts_are_compared_line_by_line(place: Place) -> None:
    place.there("a", b"one\ntwo\nthree\n")
    (place.root / "data" / "a").write_bytes(b"one\n2\nthree\n")
    found = place.project.diff("data/a")
    assert found.status == "differs"
    assert found.lines == ("@@ -1,3 +1,3 @@", " one", "-two", "+2", " three")
    assert found.etag == place.store.blobs["store/data/a"].info.etag


@pytest.mark.parametrize("mine", [b"a\0b", b"\xff\xfe", b"a" + b"\0" * 10])
def test_binary_files_only_differ(place: Place, mine: bytes) -> None:
    place.there("a", b"one\n")
    (place.root / "data" / "a").write_bytes(mine)
    found = place.project.diff("data/a")
    assert (found.status, found.lines, found.no_lines) == ("differs", (), "binary")


def test_a_file_missing_on_one_side(place: Place) -> None:
    place.there("theirs", b"th")
    (place.root / "data" / "mine").write_bytes(b"m")
    mine, theirs = place.project.diff("data/mine"), place.project.diff("data/theirs")
    assert (mine.status, mine.here, mine.there) == ("local_only", 1, None)
    assert (theirs.status, theirs.here, theirs.there) == ("remote_only", None, 2)
    with pytest.raises(NothingMatchedError):
        place.project.diff("data/neither")


def test_diff_of_a_folder_is_refused_with_a_hint_to_verify(place: Place) -> None:
    place.there("there/a", b"a")
    (place.root / "data" / "here").mkdir()
    for name in ("data", "data/here", "data/there", "data/there/"):
        with pytest.raises(ShapeConflictError, match="is a folder, and diff compares one file") as caught:
            place.project.diff(name)
        assert caught.value.hint and "blobsync verify data" in caught.value.hint


def test_special_files_are_refused(place: Place) -> None:
    place.there("pipe", b"a")
    os.mkfifo(place.root / "data" / "pipe")
    with pytest.raises(LocalFileError, match="data/pipe: neither a file nor a folder"):
        place.project.diff("data/pipe")


@pytest.mark.parametrize("with_md5", [True, False])
@pytest.mark.parametrize("change", [True, False])
def test_large_files_are_compared_without_their_lines(place: Place, with_md5: bool, change: bool) -> None:
    body = b"line\n" * (content.MOST_BYTES // 5 + 1)
    place.there("a", body, with_md5=with_md5)
    (place.root / "data" / "a").write_bytes(body[:-2] + b"x\n" if change else body)
    found = place.project.diff("data/a")
    assert (found.status, found.no_lines) == (("differs", "large") if change else ("equal", ""))


def test_too_many_changed_lines_are_not_compared(place: Place) -> None:
    place.there("a", b"".join(b"%d\n" % number for number in range(9000)))
    (place.root / "data" / "a").write_bytes(b"".join(b"%d\n" % -number for number in range(1, 9000)))
    assert place.project.diff("data/a").no_lines == "large"
