"""The forms of locations, as texts and as values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from blobsync.backends.aml import node_start
from blobsync.base.errors import CredentialError
from blobsync.base.locations import (
    BlobContainer,
    BlobLocation,
    LocalLocation,
    MountedLocation,
    parse_store_location,
    reaches_another,
)
from blobsync.node.job_stores import MountedStore
from blobsync.node.standalone import bootstrap
from blobsync.store.open_locations import OpenBlob, location_of
from tests.fakes.store import MemoryStore

AZURE = BlobContainer("acct", "box", "https://acct.blob.core.windows.net")
EMULATOR = BlobContainer("devstoreaccount1", "box", "http://127.0.0.1:10000/devstoreaccount1")


@pytest.mark.parametrize("container", [AZURE, EMULATOR])
def test_the_text_of_a_container_is_read_as_the_same_container(container: BlobContainer) -> None:
    assert BlobContainer.parse(str(container)) == container
    assert BlobContainer.parse(f"{container}/") == container


@pytest.mark.parametrize(
    "text", ["", "box", "no-scheme/box", "file:///etc", "https://acct.blob.core.windows.net", "https://a@b/box"]
)
def test_what_is_no_url_of_a_container_is_refused(text: str) -> None:
    with pytest.raises(CredentialError, match="is not a container URL"):
        BlobContainer.parse(text)


def test_a_blob_is_quoted_in_its_url_and_nowhere_else() -> None:
    blob = AZURE.child("a b/ü#?%")
    assert blob.name == "a b/ü#?%" and str(blob) == f"{AZURE}/a%20b/%C3%BC%23%3F%25"
    assert str(AZURE.child("")) == str(AZURE)


def test_a_child_of_a_blob_location_lies_below_it() -> None:
    folder = AZURE.child("data")
    assert folder.child("a/b") == BlobLocation(AZURE, "data/a/b")
    assert folder.child("") == folder and AZURE.child("").child("a") == AZURE.child("a")


def test_one_service_is_one_account_at_one_endpoint_however_it_is_written() -> None:
    shouted = BlobContainer("acct", "other", "https://ACCT.blob.core.windows.net")
    assert AZURE.same_service(shouted) and not AZURE.same_service(EMULATOR)
    elsewhere = BlobContainer("other", "box", AZURE.endpoint)
    assert not AZURE.same_service(elsewhere)


def test_only_a_backslash_makes_a_name_reach_another_blob() -> None:
    assert reaches_another("a\\b") and not reaches_another("a/b")


def test_a_child_of_a_local_folder_has_its_boundary() -> None:
    folder = LocalLocation(Path("/p/data"), (Path("/p"),))
    assert folder.child("a/b") == LocalLocation(Path("/p/data/a/b"), (Path("/p"),))
    assert folder.at("a/b") == folder.child("a/b").path and folder.at("") == folder.path and folder.child("") == folder
    assert str(folder.child("a b")) == "/p/data/a b"


def test_workers_read_a_local_folder_as_it_was_written() -> None:
    folder = LocalLocation(Path("/p/data"), (Path("/p"), Path("/mnt")))
    assert folder.to_json() == {"root": "/p/data", "boundary": ["/p", "/mnt"]}
    assert LocalLocation.from_json(folder.to_json()) == folder
    trashing = replace(folder, kept=Path("/p/.blobsync/trash/1/data"))
    assert LocalLocation.from_json(trashing.to_json()).kept == trashing.kept
    assert trashing.kept is not None
    assert (trashing.child("a").kept, trashing.parent.kept) == (trashing.kept / "a", trashing.kept.parent)
    for wrong in ({}, {"root": "/p"}, {"root": 1, "boundary": []}):
        with pytest.raises((KeyError, TypeError)):
            LocalLocation.from_json(wrong)


def test_the_parent_of_a_location_is_its_folder() -> None:
    assert LocalLocation(Path("/p/data"), (Path("/p"),)).parent == LocalLocation(Path("/p"), (Path("/p"),))
    assert AZURE.child("data/a").parent == AZURE.child("data") and AZURE.child("data").parent == AZURE.child("")


def test_an_open_blob_lies_where_its_location_says() -> None:
    store = MemoryStore()
    folder = OpenBlob(store, "data")
    assert folder.location == store.container.child("data") and str(folder) == str(folder.location)
    assert folder.child("a").location == folder.location.child("a") and folder.at("a") == "data/a"
    assert folder.child("") == folder and folder.child("a").parent == folder
    assert folder.parent == OpenBlob(store, "") and folder.parent.at("x") == "x"


def test_a_location_without_its_store_is_the_same_place() -> None:
    local = LocalLocation(Path("/p"))
    blob = OpenBlob(MemoryStore(), "data")
    assert location_of(local) == local and location_of(blob) == blob.location


def test_a_mounted_location_is_named_by_its_path() -> None:
    mount = MountedLocation(Path("/mnt/a b"))
    assert str(mount) == "mounted:/mnt/a b" and parse_store_location(str(mount)) == mount
    assert mount.child("c/d") == MountedLocation(Path("/mnt/a b/c/d")) and mount.child("") == mount
    assert mount.child("c").parent == mount


def test_what_is_not_mounted_is_the_url_of_a_container() -> None:
    assert parse_store_location(str(AZURE)) == AZURE
    with pytest.raises(CredentialError, match="is not a container URL"):
        parse_store_location("/mnt/a")


@pytest.mark.parametrize("module", [node_start, bootstrap])
def test_what_runs_alone_on_a_node_writes_the_same_text_for_a_mount(module: ModuleType) -> None:
    assert str(MountedLocation(Path("/x"))) == f"{module.MOUNTED}/x"


def test_only_what_is_in_a_container_has_a_place_in_one(tmp_path: Path) -> None:
    store = MemoryStore()
    assert OpenBlob(store, "a").in_container() == store.container.child("a")
    mounted = OpenBlob(MountedStore(MountedLocation(tmp_path)), "a")
    assert str(mounted) == f"mounted:{tmp_path}/a"
    with pytest.raises(ValueError, match="is in no container"):
        mounted.in_container()
