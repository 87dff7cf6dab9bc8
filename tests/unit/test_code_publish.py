"""Publishing code: the order of writes, and the state after each failure."""

from __future__ import annotations

import io
import os
from typing import BinaryIO

import pytest

from blobsync.base.errors import AccessDeniedError, CopySourceRefusedError, StorageUnreachableError
from blobsync.base.events import SilentListener
from blobsync.base.redaction import SasToken
from blobsync.code.publish import (
    KEPT_ARCHIVES,
    KEPT_SECONDS,
    CodePlace,
    RemoteCode,
    look_up_code,
    prune_archives,
    publish_archive,
)
from tests.fakes.store import MemoryStore, Request

DIGEST = "ab" * 32
NAME = "exp/code.zip"
KEPT = f"{NAME}.d/{DIGEST}.zip"
SMALL = b"a zip"
LARGE = os.urandom(9 * 1024 * 1024)


class Archive:
    """Counts how often the zip is made."""

    def __init__(self, body: bytes = SMALL) -> None:
        self.body = body
        self.made = 0

    def __call__(self) -> tuple[BinaryIO, int]:
        self.made += 1
        return io.BytesIO(self.body), len(self.body)


def place(store: MemoryStore) -> CodePlace:
    return CodePlace(store, NAME, lambda: SasToken("sig=x"))


def run(store: MemoryStore, archive: Archive, digest: str = DIGEST) -> None:
    publish_archive(place(store), digest, look_up_code(place(store), digest), archive, SilentListener())


@pytest.mark.parametrize("body", [SMALL, LARGE], ids=["one request", "blocks"])
def test_the_archive_is_kept_first_and_then_becomes_code_path(body: bytes) -> None:
    store, archive = MemoryStore(), Archive(body)
    assert look_up_code(place(store), DIGEST) == RemoteCode(None, kept=False)
    run(store, archive)
    assert store.body(KEPT) == store.body(NAME) == body
    assert look_up_code(place(store), DIGEST) == RemoteCode(DIGEST, kept=True)
    written = [
        request.name for request in store.requests if request.operation in ("put", "put_block_list", "put_from_url")
    ]
    assert written == [KEPT, NAME]
    assert archive.made == 1


def test_unchanged_code_writes_nothing() -> None:
    store = MemoryStore()
    run(store, Archive())
    store.requests.clear()
    archive = Archive()
    run(store, archive)
    assert {request.operation for request in store.requests} == {"head", "properties"}
    assert archive.made == 0


def test_code_that_is_kept_is_copied_without_an_archive() -> None:
    store = MemoryStore()
    run(store, Archive())
    run(store, Archive(b"other"), "cd" * 32)
    archive = Archive()
    run(store, archive)
    assert (store.body(NAME), archive.made) == (SMALL, 0)


@pytest.mark.parametrize(
    "refusal", [CopySourceRefusedError("no", service_code="CannotVerifyCopySource"), AccessDeniedError("no")]
)
def test_where_the_service_refuses_to_copy_it_is_uploaded(refusal: Exception) -> None:
    store = MemoryStore()

    def refuse(request: Request) -> None:
        if request.operation == "put_from_url":
            raise refusal

    store.before = refuse
    run(store, Archive(LARGE))
    assert store.body(NAME) == LARGE
    assert look_up_code(place(store), DIGEST).digest == DIGEST


@pytest.mark.parametrize("operation", ["put_block", "put_block_list", "put_from_url"])
def test_a_failure_leaves_code_path_as_it_was(operation: str) -> None:
    store = MemoryStore()
    run(store, Archive(), "cd" * 32)

    def fail(request: Request) -> None:
        if request.operation == operation:
            raise StorageUnreachableError("the line is down")

    store.before = fail
    with pytest.raises(StorageUnreachableError):
        run(store, Archive(LARGE))
    assert store.body(NAME) == SMALL
    assert look_up_code(place(store), "cd" * 32) == RemoteCode("cd" * 32, kept=True)
    store.before = lambda request: None
    run(store, Archive(LARGE))
    assert store.body(NAME) == LARGE


def test_somebody_else_may_publish_the_same_code_meanwhile() -> None:
    store = MemoryStore()
    before = look_up_code(place(store), DIGEST)
    run(store, Archive())
    etag = store.blobs[KEPT].info.etag
    publish_archive(place(store), DIGEST, before, Archive(b"same code, other commit"), SilentListener())
    assert store.blobs[KEPT].info.etag == etag
    assert store.body(NAME) == SMALL


def test_a_foreign_archive_is_replaced() -> None:
    store = MemoryStore()
    store.add(NAME, b"put there by hand")
    run(store, Archive())
    assert store.body(NAME) == SMALL


class TestPrune:
    """The fake's clock counts writes: blob n is written at second n."""

    @staticmethod
    def store(count: int) -> MemoryStore:
        store = MemoryStore()
        for number in range(count):
            store.add(f"{NAME}.d/{number:064x}.zip", b"")
        return store

    def test_the_newest_stay(self) -> None:
        store = self.store(KEPT_ARCHIVES + 3)
        store.add(f"{NAME}.d/readme.txt", b"not ours")
        removed = prune_archives(place(store), DIGEST, now=1e9)
        assert removed == tuple(f"{NAME}.d/{number:064x}.zip" for number in (2, 1, 0))
        assert len(store.blobs) == KEPT_ARCHIVES + 1

    def test_what_is_young_stays(self) -> None:
        assert prune_archives(place(self.store(KEPT_ARCHIVES + 3)), DIGEST, now=KEPT_SECONDS) == ()

    def test_the_archive_in_use_stays(self) -> None:
        removed = prune_archives(place(self.store(KEPT_ARCHIVES + 2)), f"{0:064x}", now=1e9)
        assert removed == (f"{NAME}.d/{1:064x}.zip",)
