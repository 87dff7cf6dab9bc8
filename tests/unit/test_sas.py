from __future__ import annotations

import base64
from datetime import datetime, timedelta, timezone

import pytest

from blobsync.base.errors import CredentialError, SasPermissionError
from blobsync.base.redaction import SasToken, Secret
from blobsync.config.model import StorageAccount
from blobsync.store.connect import signer_for
from blobsync.store.rest.request_signing import SasSigner
from blobsync.store.sas import mint_sas, sas_url

KEY = Secret(base64.b64encode(b"k" * 64).decode())
SAS = SasToken.parse("sv=2023-11-03&sp=rl&sr=c&se=2099-01-01T00:00:00Z&sig=SENTINEL")
BARE = StorageAccount("vig.yaml", "acct", "box", "https://acct.blob.core.windows.net")


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
