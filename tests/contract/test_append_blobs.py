"""Append blobs, on Azurite and with the Azure SDK; lost responses by a script."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from azure.storage.blob import BlobClient

from blobsync.base.errors import PreconditionFailedError
from blobsync.base.locations import BlobContainer
from blobsync.base.redaction import SasToken
from blobsync.config.model import StorageAccount
from blobsync.store.connect import signer_for
from blobsync.store.rest.http import BlobHttp
from blobsync.store.rest.request_signing import SasSigner
from blobsync.store.rest.retries import RetryPolicy
from blobsync.store.rest.store import RestBlobStore
from tests.conftest import Azurite
from tests.contract.test_blob_store import new_account
from tests.fakes.scripted_http import Step, scripted

NAME = "logs/std log.txt"
FACTS = {"ETag": '"0x1"', "Last-Modified": "Sun, 22 Nov 2026 03:00:00 GMT", "x-ms-blob-type": "AppendBlob"}


@pytest.fixture
def account(azurite: Azurite) -> StorageAccount:
    return new_account(azurite)


@pytest.fixture
def blobs(account: StorageAccount) -> Iterator[RestBlobStore]:
    http = BlobHttp(account.container, signer_for(account), environ={"BLOBSYNC_TRANSPORT": "urllib3"})
    yield RestBlobStore(account.container, http)
    http.close()


def test_a_blob_grows_at_its_end_and_only_from_where_it_is(
    blobs: RestBlobStore, account: StorageAccount, azurite: Azurite
) -> None:
    oracle = BlobClient(account.blob_endpoint, account.container_name, NAME, credential=azurite.keys["one"])
    assert blobs.appendable_size(NAME) is None
    blobs.create_appendable(NAME, "text/plain")
    blobs.append(NAME, b"one\n", at=0)
    blobs.append(NAME, b"two\n", at=4)
    with pytest.raises(PreconditionFailedError):
        blobs.append(NAME, b"lost", at=4)
    assert blobs.appendable_size(NAME) == 8
    assert oracle.download_blob().readall() == b"one\ntwo\n"
    assert oracle.get_blob_properties().content_settings.content_type == "text/plain"
    blobs.create_appendable(NAME, "text/plain")
    assert blobs.appendable_size(NAME) == 0


def test_a_blob_of_another_type_has_no_size_here(
    blobs: RestBlobStore, account: StorageAccount, azurite: Azurite
) -> None:
    oracle = BlobClient(account.blob_endpoint, account.container_name, NAME, credential=azurite.keys["one"])
    oracle.upload_blob(b"a block blob")
    assert blobs.appendable_size(NAME) is None


def grown(size: int) -> list[Step]:
    """A block whose response is lost, the refusal of the second attempt, and a HEAD of the blob."""
    refused = Step(412, b"", {"x-ms-error-code": "AppendPositionConditionNotMet"})
    return [Step(reset=True), refused, Step(200, b"", {**FACTS, "Content-Length": str(size)})]


@pytest.mark.parametrize(("size", "ours"), [(4, True), (9, False)])
def test_a_block_whose_answer_got_lost_is_not_written_twice(size: int, ours: bool) -> None:
    with scripted(grown(size)) as script:
        container = BlobContainer("acct", "box", script.url)
        retry = RetryPolicy(base=0.01)
        environ = {"BLOBSYNC_TRANSPORT": "urllib3"}
        http = BlobHttp(container, SasSigner(SasToken.parse("sig=abc")), environ=environ, retry=retry)
        appended = RestBlobStore(container, http)
        if ours:
            appended.append("log", b"line", at=0)
        else:
            with pytest.raises(PreconditionFailedError):
                appended.append("log", b"line", at=0)
        http.close()
    assert [seen.method for seen in script.seen] == ["PUT", "PUT", "HEAD"]
