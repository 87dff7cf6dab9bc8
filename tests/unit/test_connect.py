"""Which credential opens a container, and which SAS are made of it for others."""

from __future__ import annotations

import base64
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from blobsync.base.errors import CredentialError, SasExpiredError, SasPermissionError
from blobsync.base.redaction import SasToken, Secret
from blobsync.config.model import Cluster, FolderEntry, StorageAccount
from blobsync.store.connect import check_copy, check_sas, connect, signer_for
from blobsync.store.open_locations import Connections
from blobsync.store.rest.request_signing import BearerSigner, SasSigner, SharedKeySigner
from blobsync.store.sas import mint_sas, sas_url
from tests.fakes.store import MemoryStore

KEY = Secret(base64.b64encode(b"k" * 64).decode())
SAS = SasToken.parse("sv=2023-11-03&sp=rl&sr=c&se=2099-01-01T00:00:00Z&sig=SENTINEL")
BARE = StorageAccount("vig.yaml", "acct", "box", "https://acct.blob.core.windows.net")


@pytest.mark.parametrize(
    ("account", "kind"),
    [
        (BARE._replace(account_key=KEY, sas_token=SAS), SasSigner),
        (BARE._replace(account_key=KEY), SharedKeySigner),
        (BARE, BearerSigner),
        (BARE._replace(account_key=KEY, sas_token=SAS, auth="key"), SharedKeySigner),
        (BARE._replace(account_key=KEY, sas_token=SAS, auth="identity"), BearerSigner),
    ],
)
def test_which_credential_is_chosen(account: StorageAccount, kind: type) -> None:
    assert type(signer_for(account, environ={})) is kind


@pytest.mark.parametrize(
    ("account", "says"),
    [
        (BARE._replace(auth="sas"), "vig.yaml has auth: sas but no sas_token"),
        (BARE._replace(auth="key"), "vig.yaml has auth: key but no account_key"),
        (BARE._replace(account_key=Secret("not base64!")), "the account_key of acct is not base64 text"),
        (BARE._replace(blob_endpoint="http://127.0.0.1:1/acct"), "an identity needs an https blob_endpoint"),
    ],
)
def test_unusable_credentials_are_refused(account: StorageAccount, says: str) -> None:
    with pytest.raises(CredentialError) as caught:
        connect(account, environ={})
    assert says in str(caught.value)


def test_an_expired_sas_is_refused_before_any_request() -> None:
    ended = BARE._replace(sas_token=SasToken.parse("sp=rl&sr=c&se=2020-01-01&sig=x"))
    with pytest.raises(SasExpiredError):
        connect(ended, environ={})
    with pytest.raises(SasExpiredError):
        mint_sas(ended, "r", 60)


def test_a_login_makes_no_sas_for_an_untrusted_host() -> None:
    strange = BARE._replace(blob_endpoint="https://evil.example")
    with pytest.raises(CredentialError, match="names evil"):
        check_copy(BARE, strange, {"HOME": "/nonexistent"})
    outside = BARE._replace(account_key=KEY, from_outside=frozenset({"key"}))
    with pytest.raises(CredentialError, match="names evil"):
        check_copy(outside, strange, {"HOME": "/nonexistent"})
    check_copy(BARE, BARE, {})
    check_copy(BARE._replace(account_key=KEY), strange, {})
    check_copy(BARE, strange, {"HOME": "/nonexistent", "BLOBSYNC_TRUSTED_HOSTS": "evil.example"})


def test_only_a_sas_is_checked_before_the_first_request() -> None:
    assert check_sas(BARE._replace(account_key=KEY), "rwdl") == ()
    with pytest.raises(SasPermissionError):
        check_sas(BARE._replace(sas_token=SAS), "d")


def test_a_store_after_fail_soon_is_replaced_by_a_new_one() -> None:
    made: list[MemoryStore] = []

    def make(account: StorageAccount) -> MemoryStore:
        made.append(MemoryStore("box"))
        return made[-1]

    cluster = Cluster("aml", "aml.yaml", Path("/nowhere"), folders=(FolderEntry("data", BARE, "data"),))
    connections = Connections([cluster], make)
    before = connections.store(BARE.container)
    connections.fail_soon()
    # Code that holds the store still uses it; the next transfer of the same project retries as usual.
    assert (made[0].failing_soon, made[0].closed) == (1, 0)
    assert connections.store(BARE.container) is not before
    assert made[1].failing_soon == 0


def test_a_key_makes_a_sas_with_least_rights() -> None:
    token = mint_sas(BARE._replace(account_key=KEY), "lr", 3600)
    assert (token.permissions, token.field("sr"), token.field("srt"), token.field("spr")) == ("rl", "c", None, "https")
    assert token.expires_at is not None
    left = token.expires_at - datetime.now(timezone.utc)
    assert timedelta(minutes=59) < left <= timedelta(hours=1)
    assert KEY.reveal() not in token.reveal()


def test_a_new_sas_is_made_with_the_key_if_the_file_has_both() -> None:
    both = BARE._replace(account_key=KEY, sas_token=SAS)
    assert type(signer_for(both, environ={})) is SasSigner
    token = mint_sas(both, "rw", 3600)
    assert (token.permissions, token.field("sr")) == ("rw", "c")
    url = sas_url(both, BARE.container.child("a"), "r", 60)
    assert SasToken.parse(url.partition("?")[2]).field("sr") == "b"
    assert mint_sas(both._replace(auth="sas"), "r", 60) is SAS


def test_a_sas_of_the_account_file_is_used_as_it_is() -> None:
    account = BARE._replace(sas_token=SAS)
    assert mint_sas(account, "rl", 3600) is SAS
    with pytest.raises(SasPermissionError, match="needs w"):
        mint_sas(account, "rw", 3600)


def test_a_url_for_one_blob() -> None:
    url = sas_url(BARE._replace(account_key=KEY), BARE.container.child("d/a é.txt"), "r", 60)
    place, _, query = url.partition("?")
    assert place == "https://acct.blob.core.windows.net/box/d/a%20%C3%A9.txt"
    assert SasToken.parse(query).field("sr") == "b"


def test_the_sas_of_a_folder_url_is_for_that_directory_only() -> None:
    url = sas_url(BARE._replace(account_key=KEY), BARE.container.child("d/e"), "rl", 60, scope="folder")
    token = SasToken.parse(url.partition("?")[2])
    assert (token.field("sr"), token.field("sdd")) == ("d", "2")


def test_scope_container_makes_a_sas_for_the_container() -> None:
    url = sas_url(BARE._replace(account_key=KEY), BARE.container.child("d"), "rl", 60, scope="container")
    assert SasToken.parse(url.partition("?")[2]).field("sr") == "c"


def test_a_sas_of_the_account_file_that_grants_more_is_not_given_away() -> None:
    account = BARE._replace(sas_token=SAS)
    blob = BARE.container.child("a")
    with pytest.raises(CredentialError, match="one with fewer cannot be made"):
        sas_url(account, blob, "r", 60, scope="container")
    with pytest.raises(CredentialError, match="a narrower one cannot be made"):
        sas_url(account, blob, "lr", 60)
    assert sas_url(account, blob, "lr", 60, scope="container").endswith(SAS.reveal())
    whole = BARE._replace(sas_token=SasToken.parse("ss=b&srt=sco&sp=rl&se=2099-01-01T00:00:00Z&sig=SENTINEL"))
    with pytest.raises(CredentialError, match="every container of the account"):
        sas_url(whole, blob, "lr", 60, scope="container")
