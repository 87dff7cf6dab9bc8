"""The stand-in for an account with a hierarchical namespace, asked by Microsoft's own client for it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError

from tests.conftest import Azurite
from tests.servers.data_lake import data_lake

REASON = "pip install -e '.[test,oracle]' installs azure-storage-file-datalake"


@pytest.fixture
def lake(azurite: Azurite) -> Iterator[Any]:
    """A file system of Microsoft's client, in the stand-in."""
    client = pytest.importorskip("azure.storage.filedatalake", reason=REASON)
    with data_lake(azurite.url, azurite.keys) as server:
        url = f"{server.url}/one"
        service = client.DataLakeServiceClient(url, credential=azurite.keys["one"], retry_total=0)
        with service, service.create_file_system(f"c{uuid.uuid4().hex[:20]}") as found:
            yield found


def code_of(call: Any, *given: Any, **words: Any) -> tuple[int, str]:
    with pytest.raises(HttpResponseError) as caught:
        call(*given, **words)
    return caught.value.status_code or 0, str(getattr(caught.value, "error_code", ""))


def test_files_and_directories_are_what_the_client_expects(lake: Any) -> None:
    folder = lake.create_directory("a/b", metadata={"k": "v"})
    assert folder.exists() and lake.get_directory_client("a").exists()
    file = lake.get_file_client("a/b/f")
    file.upload_data(b"content", overwrite=True)
    found = file.get_file_properties()
    assert (found.size, file.download_file().readall()) == (7, b"content")
    assert file.get_access_control()["acl"].startswith("user::rw-")
    file.set_access_control(acl="user::rwx,group::r--,other::---")
    assert file.get_access_control()["acl"] == "user::rwx,group::r--,other::---"


def test_a_rename_holds_to_its_conditions(lake: Any) -> None:
    for name in ("old", "there"):
        lake.get_file_client(name).upload_data(name.encode(), overwrite=True)
    old, there = lake.get_file_client("old"), lake.get_file_client("there")
    target = f"{lake.file_system_name}/there"
    assert code_of(old.rename_file, target, match_condition=MatchConditions.IfMissing)[0] == 409
    assert code_of(old.rename_file, target, etag='"0x1"', match_condition=MatchConditions.IfNotModified)[0] == 412
    wrong = {"source_etag": '"0x1"', "source_match_condition": MatchConditions.IfNotModified}
    assert code_of(old.rename_file, target, **wrong)[0] == 412
    etag = there.get_file_properties().etag
    moved = old.rename_file(target, etag=etag, match_condition=MatchConditions.IfNotModified)
    assert moved.download_file().readall() == b"old" and not old.exists()


def test_a_directory_goes_with_what_is_in_it(lake: Any) -> None:
    lake.get_file_client("a/b/f").upload_data(b"x", overwrite=True)
    lake.get_directory_client("a").delete_directory()
    assert not lake.get_file_client("a/b/f").exists() and not lake.get_directory_client("a").exists()


def test_a_deleted_file_comes_back_by_the_id_of_its_deletion(lake: Any) -> None:
    for content in (b"one", b"two"):
        lake.get_file_client("a/f").upload_data(content, overwrite=True)
        lake.get_file_client("a/f").delete_file()
    found = list(lake.list_deleted_paths(path_prefix="a"))
    assert [each.name for each in found] == ["a/f", "a/f"]
    first = min(found, key=lambda each: each.deletion_id)
    assert lake._undelete_path(first.name, first.deletion_id).download_file().readall() == b"one"
    assert code_of(lake._undelete_path, first.name, first.deletion_id)[0] == 404
