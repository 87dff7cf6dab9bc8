"""``undo`` as a program, on accounts with versions, with soft delete alone, and with neither; seen by the Azure SDK."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from azure.core.exceptions import HttpResponseError
from azure.storage.blob import BlobServiceClient

from tests.conftest import Azurite
from tests.e2e.world import Container, Project, hashes, kill_tree, on_flat_accounts, write_tree
from tests.servers.past_blobs import past_blobs
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, on_flat_accounts]

_ALL = ("--max-delete", "100%")


@pytest.fixture(scope="module", params=["versions", "deleted"])
def account(azurite: Azurite, request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """What the account keeps, and the URL of its service."""
    with past_blobs(azurite.url, azurite.keys, request.param) as server:
        yield request.param, server.url


def history(project: Project) -> list[str]:
    return [each["id"] for each in project.json("history").data["transfers"]]


def test_the_stand_in_answers_as_the_sdk_expects(account: tuple[str, str], container: Container) -> None:
    keeps, url = account
    service = BlobServiceClient(f"{url}/{container.account}", credential=container.key)
    blob = service.get_blob_client(container.name, "data/a b")
    first = blob.upload_blob(b"one")
    second = blob.upload_blob(b"two", overwrite=True)
    blob.delete_blob()
    client = service.get_container_client(container.name)
    if keeps == "versions":
        listed = list(client.list_blobs(include=["versions"]))
        assert [(each.version_id, each.is_current_version) for each in listed] == [
            (first["version_id"], None),
            (second["version_id"], None),
        ]
        old = service.get_blob_client(container.name, "data/a b", version_id=first["version_id"])
        assert old.download_blob().readall() == b"one"
        blob.undelete_blob()
        assert not blob.exists(), "with versions, Undelete brings no blob back"
    else:
        (gone,) = client.list_blobs(include=["deleted", "versions"])
        assert gone.deleted and gone.remaining_retention_days == 6 and gone.version_id is None
        assert list(client.list_blobs()) == []
        (past,) = (each for each in client.list_blobs(include=["deleted", "snapshots"]) if each.snapshot)
        source = f"{blob.url}?snapshot={past.snapshot}&{container.sas('r')}"
        with pytest.raises(HttpResponseError, match="does not exist"):
            blob.upload_blob_from_url(source, overwrite=True)
        blob.undelete_blob()
        assert blob.download_blob().readall() == b"two"
        blob.upload_blob_from_url(source, overwrite=True)
        assert blob.download_blob().readall() == b"one"
        with pytest.raises(HttpResponseError, match="snapshots"):
            blob.delete_blob()
        service.get_blob_client(container.name, "data/a b", snapshot=past.snapshot).delete_blob()
        blob.delete_blob()


@pytest.mark.parametrize(
    ("deleted", "replaced"), [(30, 20), pytest.param(500, 200, marks=[pytest.mark.soak, pytest.mark.timeout(900)])]
)
def test_a_mirror_that_deleted_and_an_upload_that_replaced_are_taken_back(
    account: tuple[str, str], project: Project, container: Container, deleted: int, replaced: int
) -> None:
    _, url = account
    gone = {f"gone/f{number:03}": f"gone {number}".encode() for number in range(deleted)}
    old = {f"new/f{number:03}": f"old {number}".encode() for number in range(replaced)}
    new = {name: data.upper() + b"!" for name, data in old.items()}
    kept = {"keep/a": b"a", "keep/b": b""}
    project.configure(container, url=url)
    write_tree(project.data, {**kept, **gone, **old})
    assert project.json("u", "data").code == 0
    for name in gone:
        (project.data / name).unlink()
    done = project.run("u", "data", "--mirror", *_ALL, "-y")
    assert done.code == 0 and "blobsync undo" in done.err, str(done)
    write_tree(project.data, new)
    assert project.json("u", "data").data["transferred"] == replaced
    upload, mirror, *_ = history(project)
    shown = project.json("undo", mirror, "--dry-run").data
    assert (shown["planned"], shown["conflicts"]) == (deleted, 0)
    done = project.json("undo", mirror)
    assert (done.code, done.data["transferred"]) == (0, deleted), str(done)
    assert container.contents("data/") == hashes({**kept, **gone, **new})
    done = project.json("undo", upload)
    assert (done.code, done.data["transferred"]) == (0, replaced), str(done)
    assert container.contents("data/") == hashes({**kept, **gone, **old})
    account_client = BlobServiceClient(f"{url}/{container.account}", credential=container.key)
    listed = account_client.get_container_client(container.name).list_blobs(include=["deleted", "snapshots"])
    assert not [each.name for each in listed if each.snapshot and not each.deleted], "they would stay for good"


def test_a_run_that_is_killed_half_way_is_taken_back(azurite: Azurite, project: Project, container: Container) -> None:
    old = {f"f{number}": bytes([number]) * 5000 for number in range(30)}
    with past_blobs(azurite.url, azurite.keys, "versions") as server:
        project.configure(container, url=server.url)
        write_tree(project.data, old)
        assert project.json("u", "data").code == 0
        write_tree(project.data, {name: data[::2] * 2 + b"!" for name, data in old.items()})
        write_tree(project.data, {f"added{number}": b"added" * 1000 for number in range(30)})
        running = project.start("u", "data", "--engine", "direct", "--cap-mbps", "0.1")
        wait_until(lambda: len(container.names("data/added")) > 1)
        kill_tree(running.pid)
        running.communicate()
        killed = project.json("history").data["transfers"][0]
        assert killed["result"] == "killed" and len(container.names("data/added")) < 30
        done = project.json("undo", killed["id"], "-y")
        assert done.code == 0, str(done)
        assert container.contents("data/") == hashes(old)


def test_where_nothing_is_kept_that_is_said_before_and_undo_names_what_is_lost(
    project: Project, container: Container
) -> None:
    project.configure(container)
    write_tree(project.data, {"a": b"one", "b": b"two"})
    assert project.json("u", "data").code == 0
    assert "cannot" in project.run("rm", "data/a").err.replace("not a terminal, cannot ask", "")
    assert project.json("rm", "data/a", "data/b", "-y").code == 0
    (project.data / "a").unlink()
    done = project.json("undo", history(project)[0])
    assert (done.code, done.named()) == (3, {"data/a"}), str(done)
    assert container.contents("data/") == hashes({"b": b"two"})
    project.configure(container, extra={"undo": "required"})
    refused = project.json("rm", "data/b", "-y")
    assert (refused.code, refused.codes) == (2, {"undo_impossible"}), str(refused)
