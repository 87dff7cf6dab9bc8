"""The format of shared access signatures: signed with a key, and checked before use. Pure: no network, no files.

azure-storage-blob can make them as well, but importing it (0.3 to 0.5 s) would triple the time of ``url`` and
``submit``; ``tests/unit/test_sas_token.py`` compares every kind with the SDK's.

String-to-sign: https://learn.microsoft.com/rest/api/storageservices/create-service-sas and
.../create-user-delegation-sas, as of service version 2020-12-06 and later.
"""

import base64
from datetime import datetime, timedelta, timezone
from typing import TypeAlias
from urllib.parse import quote

from blobsync.base.errors import CredentialError, SasExpiredError, SasPermissionError
from blobsync.base.locations import BlobContainer, BlobLocation
from blobsync.base.records import NamedTuple
from blobsync.base.redaction import SasToken, Secret

# Rights in the order that the service requires:
# https://learn.microsoft.com/rest/api/storageservices/create-service-sas#specify-permissions
_ORDER = "racwdxyltfmeopi"

_WORDS = {
    "r": "read",
    "a": "add",
    "c": "create",
    "w": "write",
    "d": "delete",
    "l": "list",
    "t": "tags",
    "x": "versions",
}

# Seconds; a SAS that expires sooner causes a warning.
WARN_BEFORE = timedelta(hours=1)

# The service version in a SAS determines the rules for it. User delegation SAS of 2025-07-05 and later sign more
# fields, none of which is needed here.
SAS_VERSION = "2023-11-03"

ASK_ANEW = "store a new one: blobsync login, or sas_token in the storage account file if that holds it"

Target: TypeAlias = "BlobContainer | BlobLocation"


class DelegationKey(NamedTuple):
    """The result of Get User Delegation Key; times as the service wrote them (ISO 8601, UTC)."""

    object_id: str
    tenant_id: str
    starts: str
    expires: str
    service: str
    version: str
    value: Secret


def ordered_rights(rights: str) -> str:
    """Each letter once, in the service's order; ``ValueError`` for unknown letters and for none."""
    unknown = set(rights) - set(_ORDER)
    if unknown or not rights:
        raise ValueError(f"not rights of a SAS: {''.join(sorted(unknown)) or 'none given'}")
    return "".join(letter for letter in _ORDER if letter in rights)


def rights_in_words(rights: str) -> str:
    """Format ``rl`` as ``read, list``."""
    return ", ".join(_WORDS.get(letter, letter) for letter in rights)


def sign_sas(
    target: Target,
    rights: str,
    *,
    key: Secret | DelegationKey,
    expires: datetime,
    folder: bool = False,
) -> SasToken:
    """A SAS for one container, for one blob, or with ``folder`` for one directory and what is below.

    It is signed with the account key or a user delegation key. ``rights`` are letters of ``racwdxyltfmeopi`` in any
    order; ``ValueError`` for others. If the endpoint is https, the token is valid for https only. Only accounts with a
    hierarchical namespace have directories:
    https://learn.microsoft.com/rest/api/storageservices/create-service-sas#specify-the-directory-depth
    """
    container = target if isinstance(target, BlobContainer) else target.container
    fields = {
        "sp": ordered_rights(rights),
        "se": _iso(expires),
        "spr": "https" if container.endpoint.startswith("https:") else "",
        "sv": SAS_VERSION,
        "sr": "c" if isinstance(target, BlobContainer) else "d" if folder else "b",
    }
    if isinstance(target, BlobLocation) and folder:
        target = BlobLocation(container, target.name.strip("/"))
        fields["sdd"] = str(len(target.name.split("/")))
    if isinstance(key, DelegationKey):
        fields |= {
            "skoid": key.object_id,
            "sktid": key.tenant_id,
            "skt": key.starts,
            "ske": key.expires,
            "sks": key.service,
            "skv": key.version,
        }
    secret = key.value if isinstance(key, DelegationKey) else key
    text = sas_string_to_sign(target, fields, delegated=isinstance(key, DelegationKey))
    return _signed(fields, text, secret)


def sign_share_sas(share: str, rights: str, *, key: Secret, expires: datetime, https: bool = True) -> SasToken:
    """A SAS for one file share, ``ACCOUNT/SHARE``, signed with the account key.

    https://learn.microsoft.com/rest/api/storageservices/create-service-sas#version-2015-04-05-and-later (Azure Files).
    """
    fields = {
        "sp": ordered_rights(rights),
        "se": _iso(expires),
        "spr": "https" if https else "",
        "sv": SAS_VERSION,
        "sr": "s",
    }
    lines = [fields["sp"], "", fields["se"], f"/file/{share}", "", "", fields["spr"], fields["sv"], *[""] * 5]
    return _signed(fields, "\n".join(lines), key)


def sas_string_to_sign(target: Target, fields: dict[str, str], *, delegated: bool) -> str:
    """The text that is signed; ``fields`` are the query parameters of the token, unencoded."""
    container = target if isinstance(target, BlobContainer) else target.container
    resource = f"/blob/{container.account}/{container.name}"
    if isinstance(target, BlobLocation):
        resource += f"/{target.name}"
    issuer = ("skoid", "sktid", "skt", "ske", "sks", "skv", "saoid", "suoid", "scid") if delegated else ("si",)
    tail = ("sip", "spr", "sv", "sr", "snapshot", "ses", "rscc", "rscd", "rsce", "rscl", "rsct")
    lines = [fields.get("sp", ""), fields.get("st", ""), fields.get("se", ""), resource]
    lines += [fields.get(name, "") for name in (*issuer, *tail)]
    return "\n".join(lines)


def _signed(fields: dict[str, str], text: str, key: Secret) -> SasToken:
    import hashlib  # late: it loads OpenSSL, and few commands make a SAS
    import hmac

    digest = hmac.new(base64.b64decode(key.reveal()), text.encode(), hashlib.sha256).digest()
    signed = {**fields, "sig": base64.b64encode(digest).decode()}
    return SasToken.parse("&".join(f"{name}={quote(value, safe='')}" for name, value in signed.items() if value))


def kind(token: SasToken) -> str:
    """The kind of SAS, in words."""
    if token.field("srt"):
        return "account SAS"
    if token.field("skoid"):
        return "user delegation SAS"
    return "service SAS"


def remaining(token: SasToken, now: datetime) -> timedelta | None:
    """The remaining validity of the token, negative if expired; None if a stored access policy decides."""
    ends = token.expires_at
    return None if ends is None else ends - now


def check_token(
    token: SasToken, container: BlobContainer, needs: str, *, now: datetime, seconds: int = 0
) -> tuple[str, ...]:
    """Check everything that the token itself shows, before anything starts.

    ``needs`` are the rights that the coming requests need (``rl``), ``seconds`` how long they may take.
    Returns warnings, each a sentence. Raises ``SasExpiredError``, ``SasPermissionError`` or
    ``CredentialError``. A service SAS does not show its container: only a failing signature reveals a wrong one.
    """
    _check_times(token, container, now)
    _check_scope(token, container, needs)
    policy = token.field("si")
    if not token.permissions:
        if policy is None:
            raise SasPermissionError(f"the SAS for {container.account} grants no rights", hint=ASK_ANEW)
        warnings = [f"the rights of the SAS for {container.account} are defined by the access policy {policy}"]
    else:
        missing = "".join(letter for letter in needs if letter not in token.permissions)
        if missing:
            known = "".join({*token.permissions} & {*_ORDER})
            raise SasPermissionError(
                f"the SAS for {container} needs {ordered_rights(missing)} ({rights_in_words(missing)}), "
                f"has {token.permissions}",
                hint=f"make one with the rights {ordered_rights(needs + known)}",
            )
        warnings = []
    left = remaining(token, now)
    if left is not None and left < max(WARN_BEFORE, timedelta(seconds=seconds)):
        minutes = max(1, round(left.total_seconds() / 60))
        warnings.append(f"the SAS for {container} expires in {minutes} min, at {token.field('se')}")
    return tuple(warnings)


def _check_times(token: SasToken, container: BlobContainer, now: datetime) -> None:
    ends, begins = token.expires_at, token.starts_at
    if ends is None and token.field("se"):
        raise CredentialError(f"the SAS for {container} has an invalid expiry: se={token.field('se')}", hint=ASK_ANEW)
    if ends is None and token.field("si") is None:
        raise CredentialError(f"the SAS for {container} has no expiry (se)", hint=ASK_ANEW)
    if ends is not None and ends <= now:
        raise SasExpiredError(
            f"the SAS for {container} expired at {_iso(ends)}; this machine's clock says {_iso(now)}", hint=ASK_ANEW
        )
    if begins is not None and begins > now:
        raise CredentialError(
            f"the SAS for {container} is not valid before {_iso(begins)}; this machine's clock says {_iso(now)}",
            hint="wait, correct the clock, or create one without a start time",
        )


def _check_scope(token: SasToken, container: BlobContainer, needs: str) -> None:
    if token.field("spr") == "https" and container.endpoint.startswith("http:"):
        raise CredentialError(f"the SAS for {container} is for https only", hint="use an https blob_endpoint")
    types = token.field("srt")
    if types is None:
        resource = token.field("sr") or "c"
        if resource not in ("c", "d"):
            raise SasPermissionError(
                f"the SAS for {container} is for a single blob or file (sr={resource}), not for the container",
                hint="make a SAS of the container (sr=c)",
            )
        return
    if "b" not in (token.field("ss") or ""):
        raise SasPermissionError(
            f"the account SAS for {container.account} is not for the Blob service (ss={token.field('ss')})",
            hint="make one with ss=b",
        )
    lacking = [
        letter
        for letter, wanted in (("c", "l" in needs), ("o", bool(set(needs) - {"l"})))
        if wanted and letter not in types
    ]
    if lacking:
        words = {"c": "Container", "o": "Object"}
        raise SasPermissionError(
            f"the account SAS for {container.account} needs the resource type "
            f"{' and '.join(words[letter] for letter in lacking)} (srt={''.join(lacking)}), has srt={types}",
            hint="make one with srt=co, or a SAS of the container",
        )


def _iso(moment: datetime) -> str:
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
