"""Which sources a project may name, and what the nodes of a job are told of them: nothing inside the network."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from blobsync.base.errors import CredentialError, PlanError
from blobsync.base.locations import AMAZON, BlobContainer, Bucket, UrlList, is_source
from blobsync.config.accounts import AccountFile
from blobsync.config.model import StorageAccount
from blobsync.config.sources import BucketAccess, ListedFile, WebFiles
from blobsync.store.connect import check_sas, connect, signer_for
from blobsync.store.s3 import S3Store
from blobsync.store.sas import READ_FOLDER, REMOVE, WRITE_FOLDER, mint_sas, sas_url
from blobsync.store.source_orders import open_source, source_values
from blobsync.store.source_trust import check_bucket, reaches_inside, why_not_fetched
from blobsync.store.url_list import UrlListStore

NOWHERE = {"HOME": "/nonexistent"}


def account(endpoint: str = AMAZON, **access: object) -> StorageAccount:
    return StorageAccount("laion.yaml", "", "b-1", endpoint, bucket=BucketAccess(**access))  # type: ignore[arg-type]


def at(*addresses: str) -> Iterable[str]:
    return addresses


def outside(host: str) -> Iterable[str]:
    return at("93.184.216.34")


@pytest.mark.parametrize("listed", ["s3://b-1", AMAZON])
def test_a_listed_bucket_is_read_with_the_users_credentials(listed: str) -> None:
    with pytest.raises(CredentialError, match="not one of your trusted buckets") as raised:
        check_bucket(account(), NOWHERE, outside)
    assert "BLOBSYNC_TRUSTED_BUCKETS=s3://b-1" in (raised.value.hint or "")
    check_bucket(account(), {**NOWHERE, "BLOBSYNC_TRUSTED_BUCKETS": f"s3://other {listed}"}, outside)


@pytest.mark.parametrize("listed", ["s3://b-10", "s3://b", "https://s3.example", "s3://", "b-1"])
def test_another_one_is_not(listed: str) -> None:
    with pytest.raises(CredentialError):
        check_bucket(account(), {**NOWHERE, "BLOBSYNC_TRUSTED_BUCKETS": listed}, outside)


def test_the_same_name_at_another_service_is_another_bucket() -> None:
    there = account("https://minio.example")
    with pytest.raises(CredentialError):
        check_bucket(there, {**NOWHERE, "BLOBSYNC_TRUSTED_BUCKETS": "s3://b-1"}, outside)
    check_bucket(there, {**NOWHERE, "BLOBSYNC_TRUSTED_BUCKETS": "https://minio.example/b-1"}, outside)


def test_a_profile_is_listed_apart(tmp_path: Path) -> None:
    environ = {**NOWHERE, "XDG_CONFIG_HOME": str(tmp_path), "BLOBSYNC_TRUSTED_BUCKETS": "s3://b-1"}
    with pytest.raises(CredentialError, match="trusted profiles"):
        check_bucket(account(profile="research"), environ, outside)
    file = tmp_path / "blobsync/config.yaml"
    file.parent.mkdir(mode=0o700)
    file.write_text("trusted_profiles: [research]\n")
    file.chmod(0o600)
    check_bucket(account(profile="research"), environ, outside)


@pytest.mark.parametrize(
    "inside", ["127.0.0.1", "10.0.0.5", "169.254.169.254", "192.168.1.1", "::1", "fd00::1", "fe80::1%eth0", "0.0.0.0"]
)
def test_a_project_reaches_nothing_inside_the_network(inside: str) -> None:
    there = account("https://minio.example", anonymous=True)
    check_bucket(there, NOWHERE, outside)
    with pytest.raises(CredentialError, match="inside your network"):
        check_bucket(there, NOWHERE, lambda host: at("93.184.216.34", inside))
    check_bucket(there, {**NOWHERE, "BLOBSYNC_TRUSTED_BUCKETS": "https://minio.example/b-1"}, lambda host: at(inside))


def test_what_the_user_typed_is_the_users_word() -> None:
    check_bucket(account("https://minio.example", by_hand=True), NOWHERE, lambda host: at("10.0.0.1"))


def test_credentials_sign_nothing_that_the_network_can_read() -> None:
    for by_hand in (True, False):
        with pytest.raises(CredentialError, match="plain http"):
            check_bucket(account("http://minio.example", by_hand=by_hand), NOWHERE, outside)
    check_bucket(account("http://127.0.0.1:9000", by_hand=True), NOWHERE, outside)


def test_what_a_service_cannot_fetch() -> None:
    azure = StorageAccount("eu.yaml", "acct", "c", "https://acct.blob.core.windows.net")
    emulator = StorageAccount("eu.yaml", "acct", "c", "http://127.0.0.1:10000/acct")
    assert why_not_fetched(account(), azure, outside) == ""
    assert "inside your network" in why_not_fetched(account("https://m.example"), azure, lambda host: at("10.1.1.1"))
    assert "plain http" in why_not_fetched(account("http://m.example"), azure, outside)
    assert why_not_fetched(account("http://127.0.0.1:9000"), emulator, outside) == ""
    paid = StorageAccount("s3.yaml", "", "b-1", "https://s3.example", bucket=BucketAccess(requester_pays=True))
    assert "the requester pays" in why_not_fetched(paid, azure, outside)
    assert "the requester pays" in why_not_fetched(paid, emulator, outside)


def test_literal_addresses_need_no_lookup() -> None:
    assert reaches_inside("https://10.0.0.1", lambda host: at())
    assert reaches_inside("https://[::ffff:10.0.0.1]", lambda host: at())
    assert not reaches_inside("https://93.184.216.34", lambda host: at("93.184.216.34"))


def test_locations_of_sources() -> None:
    amazon, other = Bucket.at("b"), Bucket.at("b", "https://minio.example:9000")
    assert str(amazon.child("a b")) == "s3://b/a%20b" and str(other.child("x")) == "https://minio.example:9000/b/x"
    assert amazon != other and amazon != BlobContainer(amazon.account, "b", AMAZON)
    assert not amazon.same_service(amazon) and len({amazon, Bucket.at("b"), other}) == 2
    assert (
        is_source(amazon.child("x"))
        and is_source(UrlList("", "list.tsv", ""))
        and not is_source(BlobContainer("a", "c", "https://a.blob.core.windows.net"))
    )
    assert str(UrlList("", "list.tsv", "").child("a")) == "list:list.tsv/a"


def test_a_source_gives_no_rights_and_opens_no_container() -> None:
    there = account()
    assert check_sas(there, READ_FOLDER) == () and there.granting_credential == "aws"
    for ask in (
        lambda: check_sas(there, WRITE_FOLDER),
        lambda: check_sas(there, REMOVE),
        lambda: connect(there, environ=NOWHERE),
        lambda: signer_for(there, environ=NOWHERE),
        lambda: mint_sas(there, READ_FOLDER, 60, environ=NOWHERE),
        lambda: sas_url(there, there.container.child("x"), READ_FOLDER, 60, environ=NOWHERE),
    ):
        with pytest.raises(PlanError, match="is a source"):
            ask()


def test_the_file_of_a_bucket(tmp_path: Path) -> None:
    (tmp_path / "s3.yaml").write_text(
        "storage_type: s3\nbucket: laion-data\nendpoint: https://minio.example/\nregion: eu-west-1\nprofile: p\n"
        "requester_pays: true\n"
    )
    found = AccountFile(tmp_path / "s3.yaml", "s3.yaml", NOWHERE)
    assert not found.problems and found.account is not None and not found.takes_login and not found.holds_secret
    assert str(found.account.container) == "https://minio.example/laion-data"
    assert (
        found.account.bucket == BucketAccess("eu-west-1", "p", requester_pays=True)
        and found.account.credential == "aws"
    )


@pytest.mark.parametrize(
    "text",
    [
        "storage_type: s3",
        "storage_type: s3\nbucket: b",
        "storage_type: s3\nbucket: laion\naccount_name: x",
        "storage_type: s3\nbucket: laion\naccount_key: x",
        "storage_type: s3\nbucket: laion\nendpoint: minio.example",
        "storage_type: s3\nbucket: laion\nendpoint: https://u:p@minio.example",
        "storage_type: s3\nbucket: laion\nregion: 'a b'",
        "storage_type: s3\nbucket: laion\nprofile: p\nanonymous: true",
        "storage_type: s3\nbucket: laion\nrequester_pays: true\nanonymous: true",
        "storage_type: gcs\nbucket: laion",
        "account_name: acct\ncontainer_name: data\nbucket: laion",
        "account_name: acct\ncontainer_name: data\nanonymous: true",
    ],
)
def test_a_file_that_is_neither_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "s3.yaml").write_text(text)
    found = AccountFile(tmp_path / "s3.yaml", "s3.yaml", NOWHERE)
    assert found.problems and found.account is None


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
