"""Receipts: what was verified, kept here and, with ``--receipt``, put beside the data that it is about."""

from __future__ import annotations

import hashlib
import json

import pytest

from tests.e2e.world import Container, Project, write_tree

pytestmark = pytest.mark.e2e

_FILES = {"a.txt": b"one", "d/b.txt": b"two" * 1000}


def test_a_receipt_lists_each_verified_file_with_its_md5(project: Project, container: Container) -> None:
    write_tree(project.data / "v", _FILES)
    project.configure(container)
    done = project.json("u", "data/v", "--receipt")
    assert done.code == 0, str(done)
    (name,) = [name for name in container.names("data/") if ".receipts/" in name]
    assert name.startswith("data/v.receipts/")
    receipt = json.loads(container.get(name))
    assert {each["path"]: (each["size"], each["md5"]) for each in receipt["files"]} == {
        f"data/v/{name}": (len(data), hashlib.md5(data).hexdigest()) for name, data in _FILES.items()
    }
    assert json.loads((project.root / done.data["receipt"]).read_text()) == receipt
    assert container.key not in container.get(name).decode()
    # It is no part of the data.
    assert project.json("u", "data").data["transferred"] == 0
    assert set(container.names("data/v/")) == {f"data/v/{each}" for each in _FILES}


def test_what_is_removed_is_named_in_a_receipt(project: Project, container: Container) -> None:
    write_tree(project.data / "v", _FILES)
    project.configure(container)
    assert project.json("u", "data/v").code == 0
    etags = {blob.name: blob.etag for blob in container.client.list_blobs()}
    done = project.json("rm", "data/v", "-y")
    assert (done.code, done.data["deleted"]) == (0, 2), str(done)
    receipt = json.loads((project.root / done.data["receipt"]).read_text())
    assert (receipt["route"], receipt["deleted"], receipt["interrupted"]) == ("rm", 2, False)
    gone = {each["path"]: (each["size"], each["md5"], each["etag"].strip('"')) for each in receipt["deleted_files"]}
    assert gone == {
        f"data/v/{name}": (len(data), hashlib.md5(data).hexdigest(), etags[f"data/v/{name}"].strip('"'))
        for name, data in _FILES.items()
    }
    assert container.key not in json.dumps(receipt)


def test_without_being_asked_nothing_is_put_beside_the_data(project: Project, container: Container) -> None:
    write_tree(project.data / "v", _FILES)
    project.configure(container)
    assert project.json("u", "data/v").code == 0
    assert sorted(container.names("data/")) == ["data/v/a.txt", "data/v/d/b.txt"]
    assert len(list((project.state / "receipts").glob("*.json"))) == 1
