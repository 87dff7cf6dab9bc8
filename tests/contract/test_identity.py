"""Identities, user delegation SAS and TLS, against Azurite with OAuth over https."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import pytest

from blobsync.base.errors import AccessDeniedError, StorageUnreachableError
from blobsync.base.locations import BlobContainer
from blobsync.base.redaction import SasToken, Secret
from blobsync.emulator import new_key
from blobsync.store import sas_token
from blobsync.store.rest.http import BlobHttp
from blobsync.store.rest.request_signing import BearerSigner, SasSigner, SharedKeySigner, Signer
from blobsync.store.rest.retries import RetryPolicy
from blobsync.store.rest.store import RestBlobStore
from blobsync.store.sdk import SdkContainer
from tests.conftest import FOR_INSTALLERS, TOOLS, Azurite
from tests.servers.recording_server import RecordingServer
from tests.servers.tls_azurite import TlsAzurite, access_token, tls_azurite

KEY = new_key()


@pytest.fixture(scope="module")
def server(azurite: Azurite) -> Iterator[TlsAzurite]:
    """Asks for ``azurite`` so that the programs are installed."""
    with tls_azurite(TOOLS, FOR_INSTALLERS, {"one": KEY.reveal()}) as running:
        yield running


@pytest.fixture(scope="module")
def box(server: TlsAzurite) -> BlobContainer:
    container = BlobContainer("one", "box", f"{server.url}/one")
    http = BlobHttp(container, SharedKeySigner("one", KEY), environ={"SSL_CERT_FILE": str(server.certificate)})
    made = http.send("PUT", http.root, {"restype": "container"}, {}, b"")
    assert made.status == 201
    return container


def connected(server: TlsAzurite, box: BlobContainer, signer: Signer) -> RestBlobStore:
    environ = {"SSL_CERT_FILE": str(server.certificate)}
    return RestBlobStore(box, BlobHttp(box, signer, environ=environ, retry=RetryPolicy(2, 0.01)))


def bearer(seconds: float = 3600) -> BearerSigner:
    return BearerSigner(lambda: (Secret(access_token(seconds=seconds)), time.time() + 3600))


def put(store: RestBlobStore, name: str) -> None:
    store.put(name, b"hello", md5=hashlib.md5(b"hello").digest())


def test_a_token_reads_writes_lists_and_deletes(server: TlsAzurite, box: BlobContainer) -> None:
    with connected(server, box, bearer()) as store:
        put(store, "t/a é")
        assert [blob.name for blob in store.list_blobs("t/")] == ["t/a é"]
        with store.open("t/a é") as reader:
            assert reader.read(9) == b"hello"
        assert store.delete_many(["t/a é"]) == {} and store.head("t/a é") is None


def test_a_token_deletes_in_batches(server: TlsAzurite, box: BlobContainer) -> None:
    with connected(server, box, bearer()) as store:
        for name in ("t/a é", "t/.."):
            put(store, name)
        # One that cannot be deleted would be deleted singly, which hides whether batches work.
        http = BlobHttp(box, bearer(), environ={"SSL_CERT_FILE": str(server.certificate)})
        assert SdkContainer(box, http).delete_batch([("t/a é", None), ("t/..", None), ("t/none", None)])
        assert list(store.list_blobs("t/")) == []


def test_a_token_that_ended_is_refused(server: TlsAzurite, box: BlobContainer) -> None:
    with connected(server, box, bearer(seconds=-10)) as store, pytest.raises(AccessDeniedError):
        list(store.list_blobs())


@pytest.fixture
def delegated(server: TlsAzurite, box: BlobContainer) -> sas_token.DelegationKey:
    now = datetime.now(timezone.utc)
    with connected(server, box, bearer()) as store:
        return store.user_delegation_key(now, now + timedelta(hours=1))


def test_a_delegated_sas_opens_the_container_for_its_rights(
    server: TlsAzurite, box: BlobContainer, delegated: sas_token.DelegationKey
) -> None:
    token = sas_token.sign_sas(box, "rwl", key=delegated, expires=datetime.now(timezone.utc) + timedelta(minutes=30))
    assert sas_token.kind(token) == "user delegation SAS" and token.field("spr") == "https"
    with connected(server, box, SasSigner(token)) as store:
        put(store, "d/a")
        assert [blob.name for blob in store.list_blobs("d/")] == ["d/a"]
        with pytest.raises(AccessDeniedError, match="is not allowed to delete"):
            store.delete("d/a")


def test_a_delegated_sas_of_one_blob_opens_no_other(
    server: TlsAzurite, box: BlobContainer, delegated: sas_token.DelegationKey
) -> None:
    with connected(server, box, bearer()) as store:
        put(store, "one é#")
        put(store, "other")
    token = sas_token.sign_sas(
        box.child("one é#"), "r", key=delegated, expires=datetime.now(timezone.utc) + timedelta(minutes=9)
    )
    with connected(server, box, SasSigner(token)) as store:
        assert store.head("one é#") is not None
        with pytest.raises(AccessDeniedError):
            store.head("other")


def test_a_changed_delegated_sas_is_refused(
    server: TlsAzurite, box: BlobContainer, delegated: sas_token.DelegationKey
) -> None:
    token = sas_token.sign_sas(box, "rl", key=delegated, expires=datetime.now(timezone.utc) + timedelta(minutes=30))
    wider = SasToken.parse(token.reveal().replace("sp=rl", "sp=rwdl"))
    with connected(server, box, SasSigner(wider)) as store, pytest.raises(AccessDeniedError):
        list(store.list_blobs())


def test_an_unsigned_certificate_is_refused_without_retries(box: BlobContainer) -> None:
    store = RestBlobStore(box, BlobHttp(box, SharedKeySigner("one", KEY), environ={}))
    with pytest.raises(StorageUnreachableError) as caught:
        store.head("a")
    assert str(caught.value) == "127.0.0.1 presented a TLS certificate that this machine does not trust"
    assert "SSL_CERT_FILE" in str(caught.value.hint)


def test_plain_http_to_a_tls_port_and_the_reverse(azurite: Azurite, box: BlobContainer) -> None:
    quick = RetryPolicy(2, 0.01)
    wrong = BlobContainer("one", "box", azurite.endpoint("one").replace("http:", "https:"))
    with pytest.raises(StorageUnreachableError, match="the TLS connection to") as caught:
        RestBlobStore(wrong, BlobHttp(wrong, SharedKeySigner("one", KEY), environ={}, retry=quick)).head("a")
    assert caught.value.hint == "check that blob_endpoint is an https endpoint"
    plain = BlobContainer("one", "box", box.endpoint.replace("https:", "http:"))
    with pytest.raises(StorageUnreachableError, match="the connection to"):
        RestBlobStore(plain, BlobHttp(plain, SharedKeySigner("one", KEY), environ={}, retry=quick)).head("a")


def test_an_identity_that_this_machine_serves_is_asked_without_a_proxy() -> None:
    """As on Azure's application hosts: https://learn.microsoft.com/azure/app-service/overview-managed-identity."""
    answer = json.dumps(
        {"access_token": "theirs", "expires_on": str(int(time.time()) + 3600), "resource": "x", "token_type": "Bearer"}
    ).encode()
    served = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
        len(answer),
        answer,
    )
    code = "from blobsync.store.azure_identity import token_provider; print(token_provider({})()[0].reveal())"
    with RecordingServer({"GET /token": served}) as identity, RecordingServer() as proxy:
        env = {
            "PATH": os.environ["PATH"],
            "HOME": "/nonexistent",
            "IDENTITY_ENDPOINT": f"{identity.url}/token",
            "IDENTITY_HEADER": "hush",
            **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), proxy.url),
        }
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.stdout == "theirs\n", done.stderr
    assert len(identity.requests) == 1
    assert proxy.requests == []
