"""What the nodes of a job are told of a source: no credential, and no more of the network than its user allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from blobsync.base.locations import UrlList
from blobsync.config.model import StorageAccount
from blobsync.config.sources import BucketAccess, ListedFile, WebFiles
from blobsync.store.s3 import S3Store
from blobsync.store.source_orders import open_source, source_values
from blobsync.store.url_list import UrlListStore


def _environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path), "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI", "AWS_PROFILE": "own"}


def test_a_bucket_is_opened_as_its_file_says(tmp_path: Path) -> None:
    access = BucketAccess("eu-west-1", "research", anonymous=False)
    account = StorageAccount("a.yaml", "", "laion", "https://s3.example", bucket=access)
    values = source_values(account, _environ(tmp_path))
    assert values == {
        "name": "laion",
        "endpoint": "https://s3.example",
        "region": "eu-west-1",
        "profile": "research",
        "anonymous": False,
    }
    store = open_source(values, _environ(tmp_path))
    assert isinstance(store, S3Store) and store.container == account.container


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_list_names_the_hosts_inside_the_network_that_it_may_reach(tmp_path: Path, *, by_hand: bool) -> None:
    files = {"a": ListedFile("https://10.0.0.1/a"), "b": ListedFile("https://10.0.0.2:8443/x/b")}
    account = StorageAccount("--source", "", "list.tsv", "", web=WebFiles(files, by_hand=by_hand))
    environ = {**_environ(tmp_path), "BLOBSYNC_TRUSTED_BUCKETS": "https://10.0.0.2:8443/ https://10.0.0.3"}
    values = source_values(account, environ)
    listed = ["https://10.0.0.2:8443"]
    assert values["reaches"] == (["https://10.0.0.1", *listed] if by_hand else listed)
    store = open_source(values, _environ(tmp_path))
    assert isinstance(store, UrlListStore) and store.container == UrlList("", "list.tsv", "")
    assert store.listed("a") is None
    store.set_files(files)
    assert store.listed("a") == files["a"] and store.source_url("b", "", 1).reveal() == files["b"].url
