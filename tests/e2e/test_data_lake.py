"""On an account with a hierarchical namespace: directories are no files, and what the other end wrote is replaced."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from urllib.parse import quote

import pytest
import urllib3

from tests.conftest import Azurite
from tests.e2e.world import HAS_DIRECTORIES, Container, Project, hashes, read_tree, write_tree
from tests.servers.data_lake import data_lake

pytestmark = pytest.mark.e2e

_RIGHTS = "racwdlmep"
# More than goes in one request by choice (direct/engine.py).
_LARGE = 18 << 20


class Lake(Container):
    """A container with its other end."""

    def ask(self, method: str, name: str, query: str, *, body: bytes = b"", **headers: str) -> int:
        """The status of a request to the other end."""
        url = f"{self.service}/{self.account}/{self.name}/{quote(name)}?{query}&{self.sas(_RIGHTS)}"
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        return urllib3.request(method, url, body=body, headers={"x-ms-version": "2021-12-02", **named}).status

    def write(self, name: str, data: bytes) -> None:
        """Write a file by the other end."""
        assert self.ask("PUT", name, "resource=file") == 201
        assert self.ask("PATCH", name, "action=append&position=0", body=data) == 202
        assert self.ask("PATCH", name, f"action=flush&position={len(data)}") == 200

    def mkdir(self, name: str) -> None:
        assert self.ask("PUT", name, "resource=directory") == 201

    def files(self) -> dict[str, str]:
        """Name below ``data/`` -> SHA-256."""
        return {name: content for name, content in self.contents("data/").items() if name not in self.directories()}

    def directories(self) -> set[str]:
        """The names below ``data/`` of all directories."""
        listed = self.client.list_blobs(name_starts_with="data/", include=["metadata"])
        return {blob.name[5:] for blob in listed if "hdi_isfolder" in (blob.metadata or {})}


@pytest.fixture(scope="module")
def lake_url(azurite: Azurite) -> Iterator[str]:
    if HAS_DIRECTORIES:
        yield azurite.url
        return
    with data_lake(azurite.url, azurite.keys) as lake:
        yield lake.url


@pytest.fixture
def lake(lake_url: str, azurite: Azurite) -> Lake:
    found = Lake(lake_url, "one", azurite.keys["one"], f"c{uuid.uuid4().hex[:20]}")
    found.create()
    return found


@pytest.mark.parametrize("engine", ["direct", "azcopy"])
def test_files_of_the_other_end_are_replaced_whatever_their_size(with_azcopy: Project, lake: Lake, engine: str) -> None:
    with_azcopy.configure(lake)
    before = {"small": b"one", "deep/er/large": os.urandom(_LARGE)}
    for name, data in before.items():
        lake.write(f"data/{name}", data)
    down = with_azcopy.json("d", "data")
    assert (down.code, read_tree(with_azcopy.data)) == (0, hashes(before)), str(down)
    after = {"small": b"two, longer", "deep/er/large": os.urandom(_LARGE + 1)}
    write_tree(with_azcopy.data, after)
    up = with_azcopy.json("u", "data", "--engine", engine)
    assert (up.code, up.data["transferred"], up.data["verified"]) == (0, 2, 2), str(up)
    assert lake.files() == hashes(after)
    # Once it is a blob, it takes blocks again.
    write_tree(with_azcopy.data, {"deep/er/large": os.urandom(_LARGE)})
    assert with_azcopy.json("u", "data", "--engine", engine).data["transferred"] == 1
    assert with_azcopy.json("verify", "data", "--deep").data["counts"] == {"equal": 2}
    # What somebody else wrote meanwhile is not replaced.
    lake.write("data/deep/er/large", os.urandom(_LARGE + 2))
    write_tree(with_azcopy.data, {"deep/er/large": os.urandom(_LARGE + 3)})
    conflict = with_azcopy.json("u", "data", "--engine", engine)
    assert (conflict.code, conflict.named()) == (3, {"data/deep/er/large"}), str(conflict)


def test_directories_are_no_files_and_go_with_what_is_removed(project: Project, lake: Lake) -> None:
    project.configure(lake)
    write_tree(project.data, {"a/1": b"1", "a/b/2": b"2", "c/3": b"3", "4": b"4"})
    assert project.run("u", "data").code == 0
    lake.mkdir("data/empty/inside")
    assert lake.directories() == {"a", "a/b", "c", "empty", "empty/inside"}
    assert [each["path"] for each in project.json("ls", "-r", "data").data["entries"]] == [
        *("data/4", "data/a/1", "data/a/b/2", "data/c/3"),
    ]
    assert project.json("verify", "data").data["counts"] == {"equal": 4}
    assert project.json("d", "data", "--mirror", "-y").data["unchanged"] == 4
    assert project.json("plan", "u", "data").data["accounts"][0]["hierarchical_namespace"] is True
    (project.data / "c/3").unlink()
    mirrored = project.json("u", "data", "--mirror", "-y", "--max-delete", "100%")
    assert (mirrored.code, mirrored.data["deleted"]) == (0, 1), str(mirrored)
    gone = project.run("rm", "data/a", "-y")
    assert gone.code == 0 and "deleted 2 blobs" in gone.out, str(gone)
    assert (set(lake.files()), lake.directories()) == ({"4"}, {"c", "empty", "empty/inside"})
    assert project.run("rm", "data/empty", "-y").code == 0
    assert lake.directories() == {"c"}


def test_deleted_files_come_back_while_their_directory_is_there(project: Project, lake: Lake) -> None:
    project.configure(lake)
    write_tree(project.data, {"a/1": b"1", "a/2": b"2", "b/3": b"3"})
    assert project.run("u", "data").code == 0
    for content in (b"other", b""):
        (project.data / "a/1").unlink()
        mirrored = project.run("u", "data", "--mirror", "-y", "--max-delete", "100%")
        assert mirrored.code == 0 and "'blobsync undo' brings them back" in mirrored.err, str(mirrored)
        write_tree(project.data, {"a/1": content, "a/2": b"new" + content})
        assert project.run("u", "data").code == 0
    for name in ("a/1", "b/3"):
        (project.data / name).unlink()
    assert project.run("rm", "data/a/1", "-y").code == 0 and project.run("rm", "data/b", "-y").code == 0
    folder, file, replaced, _, _, mirror, *_ = (each["id"] for each in project.json("history").data["transfers"])
    # Each of the three deletions has an id of its own.
    done = project.json("undo", mirror, "-y")
    assert (done.code, done.data["transferred"]) == (0, 1), str(done)
    assert lake.files() == hashes({"a/1": b"1", "a/2": b"new"})
    assert project.json("undo", file, "-y").named() == {"data/a/1"}
    for run, lost in ((replaced, "data/a/2"), (folder, "data/b/3")):
        done = project.json("undo", run, "-y")
        assert done.code == 3 and lost in done.named(), str(done)
    assert lake.files() == hashes({"a/1": b"1", "a/2": b"new"})


def test_a_directory_and_a_file_of_one_name_are_told_apart(project: Project, lake: Lake) -> None:
    project.configure(lake)
    lake.mkdir("data/there")
    write_tree(project.data, {"there": b"a file here", "other": b"o"})
    done = project.json("u", "data")
    assert (done.code, done.named()) == (3, {"data/there"}), str(done)
    (said,) = done.errors
    assert "is a directory" in said["message"] and "blobsync rm" in said["hint"], str(done)
    assert set(lake.files()) == {"other"}
    assert project.run("rm", "data/there", "-y").code == 0 and project.run("u", "data").code == 0
    assert lake.files() == hashes({"there": b"a file here", "other": b"o"})


def test_doctor_finds_nothing_left_behind_where_there_are_directories(project: Project, lake: Lake) -> None:
    project.configure(lake)
    lake.mkdir("data/empty")
    write_tree(project.data, {"a": b"1"})
    assert project.run("u", "data").code == 0
    shown = project.run("doctor")
    assert "HNS: yes" in shown.out and "leftovers" not in shown.out, str(shown)
