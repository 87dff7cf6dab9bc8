from __future__ import annotations

import base64
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from azure.storage.blob._shared.authentication import SharedKeyCredentialPolicy

from blobsync.base.errors import CredentialError
from blobsync.base.redaction import SasToken, Secret
from blobsync.store.rest.request_signing import (
    BearerSigner,
    SasSigner,
    SharedKeySigner,
    encode_query,
    shared_key_string_to_sign,
)

KEY = base64.b64encode(b"k" * 64).decode()
AT = datetime(2026, 11, 20, 6, 13, tzinfo=timezone.utc).timestamp()


def test_the_string_to_sign_with_a_shared_key() -> None:
    headers = {
        "x-ms-version": "2023-11-03",
        "x-ms-date": "Fri, 20 Nov 2026 06:13:00 GMT",
        "x-ms-meta-b": "2",
        "X-Ms-Meta-A": "1",
        "Content-Length": "2",
        "Content-MD5": "SfaKXIST7CwL9ImCHCH8Ow==",
        "If-None-Match": "*",
        "User-Agent": "not signed",
    }
    text = shared_key_string_to_sign("acct", "PUT", "/acct/box/a%20b", {"comp": "block", "blockid": "YQ=="}, headers)
    assert text == (
        "PUT\n\n\n2\nSfaKXIST7CwL9ImCHCH8Ow==\n\n\n\n\n*\n\n\n"
        "x-ms-date:Fri, 20 Nov 2026 06:13:00 GMT\nx-ms-meta-a:1\nx-ms-meta-b:2\nx-ms-version:2023-11-03\n"
        "/acct/acct/box/a%20b\nblockid:YQ==\ncomp:block"
    )


def sdk_authorization(method: str, path: str, query: dict[str, str], headers: dict[str, str]) -> str:
    request = SimpleNamespace(
        method=method,
        url=f"https://host{path}",
        headers=dict(headers),
        query={name: value.replace("%", "%25") for name, value in query.items()},
    )
    pipeline: Any = SimpleNamespace(http_request=request, context=SimpleNamespace(transport=None))
    policy: Any = SharedKeyCredentialPolicy
    policy("acct", KEY).on_request(pipeline)
    return str(request.headers["Authorization"])


@pytest.mark.parametrize(
    ("method", "path", "query", "headers"),
    [
        ("GET", "/box", {"restype": "container", "comp": "list", "prefix": "a é%/", "marker": "2!x=="}, {}),
        ("PUT", "/box/a%20b", {}, {"Content-Length": "0", "x-ms-blob-type": "BlockBlob", "If-Match": '"0x1"'}),
        ("GET", "/acct/box/%C3%A9", {}, {"x-ms-range": "bytes=0-4"}),
        (
            "PUT",
            "/box/m",
            {},
            {
                "Content-Length": "7",
                **{f"x-ms-meta-{name}": "v" for name in ("a_b", "ab", "a1", "a", "b_", "z9", "z_9", "za")},
                "x-ms-blob-content-type": "text/plain",
                "x-ms-blob-cache-control": "no-cache",
                "x-ms-access-tier": "Cool",
                "x-ms-copy-source": "https://s/c/b?sig=x",
            },
        ),
        ("DELETE", "/box/a", {}, {"x-ms-delete-snapshots": "include"}),
    ],
)
def test_the_signature_equals_that_of_the_sdk(
    method: str, path: str, query: dict[str, str], headers: dict[str, str]
) -> None:
    ours = {"x-ms-version": "2023-11-03", **headers}
    SharedKeySigner("acct", Secret(KEY), clock=lambda: AT).sign(method, path, query, ours)
    assert ours["x-ms-date"] == "Fri, 20 Nov 2026 06:13:00 GMT"
    signed = ours.pop("Authorization")
    assert signed == sdk_authorization(method, path, query, ours)


def test_the_error_about_a_key_that_is_not_base64_does_not_show_it() -> None:
    with pytest.raises(CredentialError) as caught:
        SharedKeySigner("acct", Secret("no key!"))
    assert str(caught.value) == "the account_key of acct is not base64 text"


def test_a_sas_goes_into_the_query_only() -> None:
    signer = SasSigner(SasToken.parse("?sp=r&sig=SENTINEL%3D"), clock=lambda: AT)
    headers = {"x-ms-version": "1"}
    assert signer.sign("GET", "/box", {"comp": "list", "prefix": "a b&c"}, headers) == (
        "comp=list&prefix=a%20b%26c&sp=r&sig=SENTINEL%3D"
    )
    assert signer.sign("GET", "/box/a", {}, headers) == "sp=r&sig=SENTINEL%3D"
    assert headers == {"x-ms-version": "1"}
    assert not signer.ended() and not signer.renew()


def test_when_a_sas_counts_as_expired() -> None:
    assert SasSigner(SasToken.parse("se=2026-11-20T06:13:00Z&sig=x"), clock=lambda: AT).ended()
    assert not SasSigner(SasToken.parse("se=2026-11-20T06:13:01Z&sig=x"), clock=lambda: AT).ended()


def test_a_bearer_token_is_reused_until_shortly_before_its_expiry() -> None:
    clock = [AT]
    given = iter([(Secret("one"), AT + 3600), (Secret("two"), AT + 9999), (Secret("three"), AT + 99999)])
    signer = BearerSigner(lambda: next(given), clock=lambda: clock[0])

    def sent() -> str:
        headers: dict[str, str] = {}
        signer.sign("GET", "/box", {}, headers)
        return headers["Authorization"]

    assert sent() == sent() == "Bearer one"
    clock[0] = AT + 3600 - 299
    assert sent() == "Bearer two"
    assert signer.renew()
    assert sent() == "Bearer three"


def test_queries_are_encoded_byte_for_byte() -> None:
    assert encode_query({"prefix": "é/+ ~", "comp": "list"}) == "prefix=%C3%A9%2F%2B%20~&comp=list"
