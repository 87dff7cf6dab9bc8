from __future__ import annotations

import base64
import hashlib
import hmac
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import parse_qsl

import pytest
from azure.storage.blob import UserDelegationKey
from azure.storage.blob._shared_access_signature import BlobSharedAccessSignature

from blobsync.base.errors import CredentialError, SasExpiredError, SasPermissionError
from blobsync.base.locations import BlobUrl, ContainerUrl, SasToken, Secret
from blobsync.store import sas

KEY = base64.b64encode(b"k" * 64).decode()
NOW = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)
BOX = ContainerUrl("acct", "box", "https://acct.blob.core.windows.net")
LOCAL = ContainerUrl("acct", "box", "http://127.0.0.1:10000/acct")
DELEGATED = sas.DelegationKey(
    object_id="oid",
    tenant_id="tid",
    starts="2026-11-20T12:00:00Z",
    expires="2026-11-21T12:00:00Z",
    service="b",
    version="2023-11-03",
    value=Secret(KEY),
)


def fields(token: SasToken) -> dict[str, str | None]:
    names = ("sp", "st", "se", "spr", "sv", "sr", "skoid", "sktid", "skt", "ske", "sks", "skv")
    return {name: token.field(name) for name in names if token.field(name)}


def test_the_text_that_is_signed_for_a_container() -> None:
    text = sas.sas_string_to_sign(BOX, {"sp": "rl", "se": "E", "spr": "https", "sv": "V", "sr": "c"}, delegated=False)
    assert text == "rl\n\nE\n/blob/acct/box\n\n\nhttps\nV\nc\n\n\n\n\n\n\n"


def test_the_text_that_is_signed_for_a_blob_by_delegation() -> None:
    given = {
        "sp": "r",
        "st": "S",
        "se": "E",
        "sv": "V",
        "sr": "b",
        "skoid": "o",
        "sktid": "t",
        "skt": "ks",
        "ske": "ke",
    }
    text = sas.sas_string_to_sign(BOX.blob("a é/b"), {**given, "sks": "b", "skv": "kv"}, delegated=True)
    assert text == "r\nS\nE\n/blob/acct/box/a é/b\no\nt\nks\nke\nb\nkv\n\n\n\n\n\nV\nb\n\n\n\n\n\n\n"


@pytest.mark.parametrize("target", [BOX, BOX.blob("a/é #%.txt"), LOCAL])
def test_a_service_sas_is_the_sdks_own(target: ContainerUrl | BlobUrl) -> None:
    ends = NOW + timedelta(hours=2)
    ours = sas.sign_sas(target, "lwr", key=Secret(KEY), expires=ends, starts=NOW)
    factory = BlobSharedAccessSignature("acct", KEY)
    factory.x_ms_version = sas.SAS_VERSION
    container = target if isinstance(target, ContainerUrl) else target.container
    protocol = "https" if container is BOX else None
    if isinstance(target, ContainerUrl):
        theirs = factory.generate_container("box", "rwl", ends, NOW, protocol=protocol)
    else:
        theirs = factory.generate_blob("box", target.name, permission="rwl", expiry=ends, start=NOW, protocol=protocol)
    assert dict(parse_qsl(ours.reveal())) == dict(parse_qsl(theirs))


@pytest.mark.parametrize("name", ["d", "a/é #%", "a/b/c"])
def test_a_directorys_sas_is_the_sdks_own(name: str) -> None:
    ends = NOW + timedelta(hours=2)
    ours = sas.sign_sas(BOX.blob(f"{name}/"), "rl", key=Secret(KEY), expires=ends, folder=True)
    factory = BlobSharedAccessSignature("acct", KEY)
    factory.x_ms_version = sas.SAS_VERSION
    theirs = factory.generate_blob("box", name, permission="rl", expiry=ends, protocol="https", is_directory=True)
    assert dict(parse_qsl(ours.reveal())) == dict(parse_qsl(theirs))
    assert (ours.field("sr"), ours.field("sdd")) == ("d", str(name.count("/") + 1))


def test_a_user_delegation_sas_signs_what_the_sdk_signs() -> None:
    make_key: Any = UserDelegationKey
    key = make_key()
    key.signed_oid, key.signed_tid, key.signed_service, key.signed_version = "oid", "tid", "b", "2023-11-03"
    key.signed_start, key.signed_expiry, key.value = DELEGATED.starts, DELEGATED.expires, KEY
    texts: list[str] = []
    factory = BlobSharedAccessSignature("acct", user_delegation_key=key)
    factory.x_ms_version = sas.SAS_VERSION
    ends = NOW + timedelta(hours=2)
    theirs = factory.generate_container("box", "rl", ends, protocol="https", sts_hook=texts.append)
    ours = sas.sign_sas(BOX, "rl", key=DELEGATED, expires=ends)
    assert fields(ours) == fields(SasToken.parse(theirs))
    # Newer SDKs sign fields of service versions 2025-07-05 (two after scid) and 2026-04-06 (two before rscc),
    # which a token of an older version does not have; all of them are empty here.
    lines = texts[0].split("\n")
    for gone, place in ((2, 13), (2, 19)):
        if len(lines) > 24:
            assert lines[place : place + gone] == [""] * gone
            del lines[place : place + gone]
    digest = hmac.new(base64.b64decode(KEY), "\n".join(lines).encode(), hashlib.sha256).digest()
    assert dict(parse_qsl(ours.reveal()))["sig"] == base64.b64encode(digest).decode()


def test_a_token_for_plain_http_is_not_bound_to_https() -> None:
    assert sas.sign_sas(LOCAL, "r", key=Secret(KEY), expires=NOW).field("spr") is None
    assert sas.sign_sas(BOX, "r", key=Secret(KEY), expires=NOW).field("spr") == "https"


@pytest.mark.parametrize("rights", ["", "rq", "R"])
def test_rights_that_are_none(rights: str) -> None:
    with pytest.raises(ValueError, match="no rights of a SAS"):
        sas.sign_sas(BOX, rights, key=Secret(KEY), expires=NOW)


def test_nothing_shows_the_signature() -> None:
    token = sas.sign_sas(BOX, "r", key=Secret(KEY), expires=NOW)
    assert dict(parse_qsl(token.reveal()))["sig"] not in repr(token) + str(token)
    assert "sig=***" in repr(token)
    assert KEY not in repr(DELEGATED)


def token(**given: str) -> SasToken:
    every = {"sp": "rwl", "sr": "c", "se": "2026-12-01T00:00:00Z", **given, "sig": "SENTINEL"}
    return SasToken.parse("&".join(f"{name}={value}" for name, value in every.items() if value))


@pytest.mark.parametrize(
    "ends",
    [
        "2026-11-20",
        "2026-11-20T11:59Z",
        "2026-11-20T11:59:59Z",
        "2026-11-20T11:59:59.1234567Z",
        "2026-11-20T11:59:59.1Z",
        "2026-11-20T12:59:59.25%2B01:00",
    ],
)
def test_every_form_of_an_expiry_in_the_past_is_refused(ends: str) -> None:
    with pytest.raises(SasExpiredError, match="ended at 2026-11-20T"):
        sas.check_token(token(se=ends), BOX, "r", now=NOW)


def test_an_expiry_within_the_hour_warns() -> None:
    assert sas.check_token(token(se="2026-11-20T12:43:00Z"), BOX, "r", now=NOW) == (
        "the SAS for https://acct.blob.core.windows.net/box ends in 43 min, at 2026-11-20T12:43:00Z",
    )
    assert sas.check_token(token(se="2026-11-20T13:01:00Z"), BOX, "r", now=NOW) == ()


def test_work_that_outlives_the_sas_warns() -> None:
    assert len(sas.check_token(token(se="2026-11-20T15:00:00Z"), BOX, "r", now=NOW, seconds=4 * 3600)) == 1


def test_a_sas_of_tomorrow_is_refused() -> None:
    with pytest.raises(CredentialError, match="is not valid before 2026-11-21T00:00:00Z; this machine's clock says"):
        sas.check_token(token(st="2026-11-21"), BOX, "r", now=NOW)


def test_missing_rights_are_named() -> None:
    with pytest.raises(SasPermissionError) as caught:
        sas.check_token(token(sp="r"), BOX, "rwl", now=NOW)
    assert "needs wl (write, list), has r" in str(caught.value)
    assert caught.value.hint == "make one with the rights rwl"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"sr": "b"}, "is for a single blob or file (sr=b)"),
        ({"sr": "", "ss": "f", "srt": "co"}, "is not for the Blob service (ss=f)"),
        ({"sr": "", "ss": "b", "srt": "o"}, "needs the resource type Container (srt=c), has srt=o"),
        ({"sr": "", "ss": "b", "srt": "s"}, "needs the resource type Container and Object (srt=co), has srt=s"),
        ({"sp": ""}, "gives no rights at all"),
    ],
)
def test_a_sas_of_the_wrong_scope(given: dict[str, str], says: str) -> None:
    with pytest.raises(SasPermissionError) as caught:
        sas.check_token(token(**given), BOX, "rl", now=NOW)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"se": ""}, "has no expiry"),
        ({"se": "soon"}, "invalid expiry: se=soon"),
        ({"spr": "https"}, "is for https only"),
    ],
)
def test_a_sas_that_cannot_work(given: dict[str, str], says: str) -> None:
    with pytest.raises(CredentialError, match=says):
        sas.check_token(token(**given), LOCAL, "rl", now=NOW)


def test_what_an_access_policy_holds_is_not_guessed() -> None:
    warnings = sas.check_token(token(sp="", se="", si="weekly"), BOX, "rwdl", now=NOW)
    assert warnings == ("the rights of the SAS for acct are held by the access policy weekly",)


def test_a_good_account_sas_passes() -> None:
    assert sas.check_token(token(sr="", ss="bf", srt="sco", sp="rwdlac"), BOX, "rwdl", now=NOW) == ()


def test_kinds() -> None:
    assert sas.kind(token()) == "service SAS"
    assert sas.kind(token(sr="", srt="co", ss="b")) == "account SAS"
    assert sas.kind(token(skoid="x")) == "user delegation SAS"
