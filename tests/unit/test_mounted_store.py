from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from blobsync.base.errors import AccessDeniedError, BlobNotFoundError, PreconditionFailedError, StorageError
from blobsync.base.locations import MountedLocation
from blobsync.node.job_stores import MountedStore
from blobsync.store.protocol import BlockList


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    for name in ("b.txt", "a/one", "a/deep/two", "ab/three"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "empty").mkdir()
    return tmp_path


def test_files_are_blobs_and_folders_are_not(mount: Path) -> None:
    store = MountedStore(MountedLocation(mount))
    assert sorted(blob.name for blob in store.list_blobs()) == ["a/deep/two", "a/one", "ab/three", "b.txt"]
    assert sorted(blob.name for blob in store.list_blobs("a/")) == ["a/deep/two", "a/one"]
    assert sorted(blob.name for blob in store.list_blobs("a")) == ["a/deep/two", "a/one", "ab/three"]
    assert list(store.list_blobs("b.txt/")) == [] == list(store.list_blobs("nothing/"))
    assert {one if isinstance(one, str) else one.name for one in store.list_folder("a/")} == {"a/deep/", "a/one"}
    assert store.head("a") is None and store.head("gone") is None and store.head("b.txt/x") is None
    found = store.head("a/one")
    assert found is not None and (found.size, found.md5) == (5, None)
    assert store.block_list("a/one") == BlockList((), (), found.etag) and store.block_list("gone") is None


def test_a_range_of_one_version_is_read(mount: Path) -> None:
    store = MountedStore(MountedLocation(mount))
    found = store.head("a/deep/two")
    assert found is not None
    with store.open("a/deep/two", start=2, length=4, etag=found.etag) as reader:
        assert reader.info == found
        assert (reader.read(3), reader.read(3), reader.read(3)) == (b"dee", b"p", b"")
    with store.open("a/deep/two", start=2, etag=found.etag) as reader:
        assert reader.read(3) == b"dee"
        (mount / "a/deep/two").write_text("a/deep/2+")
        with pytest.raises(PreconditionFailedError, match="changed while"):
            reader.read(1)
    with pytest.raises(PreconditionFailedError, match="changed since"):
        store.open("a/deep/two", etag=found.etag)
    with pytest.raises(BlobNotFoundError):
        store.open("gone")
    with pytest.raises(BlobNotFoundError):
        store.properties("gone")


def test_nothing_is_written_to_a_mount(mount: Path) -> None:
    store = MountedStore(MountedLocation(mount))
    before = sorted(mount.rglob("*"))
    writes: list[Callable[[], object]] = [
        lambda: store.put("x", b"", md5=b""),
        lambda: store.put_block("x", "", b""),
        lambda: store.put_block_list("x", [], size=0, md5=b""),
        lambda: store.put_from_url("x", "", None),
        lambda: store.put_block_from_url("x", "", "", None, start=0, length=1),
        lambda: store.delete("b.txt"),
        lambda: store.delete_many(["b.txt"]),
    ]
    for write in writes:
        with pytest.raises(AccessDeniedError, match="is read-only"):
            write()
    assert sorted(mount.rglob("*")) == before


def test_an_unreadable_file_is_a_store_error(mount: Path) -> None:
    (mount / "loop").symlink_to("loop")
    with pytest.raises(StorageError, match="loop: cannot be read"):
        MountedStore(MountedLocation(mount)).head("loop")
    with pytest.raises(StorageError, match="loop: cannot be read"):
        MountedStore(MountedLocation(mount)).open("loop")
