"""Signs requests to the Blob service.

Each kind of credential has a signer. It signs the request just before it is sent (and again before each retry, because
a signature contains the time) and returns the query string to send. Rules:
https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key

azure-storage-blob signs the same way, and tests compare the two; importing it (0.3 to 0.5 s) takes longer than a
whole small transfer.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import threading
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from urllib.parse import quote

from blobsync.base.errors import CredentialError
from blobsync.base.redaction import SasToken, Secret
from blobsync.store.rest.transport import http_date

# A bearer token is renewed this long before it ends, so that none expires during a request.
RENEW_SECONDS_BEFORE = 300.0

_SIGNED_HEADERS = (
    "Content-Encoding",
    "Content-Language",
    "Content-Length",
    "Content-MD5",
    "Content-Type",
    "Date",
    "If-Modified-Since",
    "If-Match",
    "If-None-Match",
    "If-Unmodified-Since",
    "Range",
)


class Signer:
    """Adds the credential to a request; this one adds none, for requests that are already signed."""

    def sign(self, method: str, path: str, query: Mapping[str, str], headers: dict[str, str]) -> str:
        """Complete ``headers`` in place; return the query string, without ``?``.

        ``path`` is percent-encoded as it will be sent; ``query`` values are not encoded yet.
        ``headers`` must hold Content-Length where there is a body.
        """
        return encode_query(query)

    def renew(self) -> bool:
        """Forget a credential that the service refused; True if a new one may work."""
        return False

    def ended(self) -> bool:
        """Whether the credential is known to have expired."""
        return False


class SharedKeySigner(Signer):
    """Account key: an HMAC over the request; the key itself is never sent."""

    def __init__(self, account: str, key: Secret, *, clock: Callable[[], float] = time.time) -> None:
        try:
            self._key = base64.b64decode(key.reveal(), validate=True)
        except (binascii.Error, ValueError) as error:
            raise CredentialError(
                f"the account_key of {account} is not base64 text",
                hint="copy the key again from the portal: Storage account, Access keys",
            ) from error
        self.account = account
        self.key = key
        self._clock = clock

    def sign(self, method: str, path: str, query: Mapping[str, str], headers: dict[str, str]) -> str:
        headers["x-ms-date"] = http_date(int(self._clock()))
        text = shared_key_string_to_sign(self.account, method, path, query, headers)
        digest = hmac.digest(self._key, text.encode(), "sha256")
        headers["Authorization"] = f"SharedKey {self.account}:{binascii.b2a_base64(digest, newline=False).decode()}"
        return encode_query(query) if query else ""


class SasSigner(Signer):
    """SAS token: appended to the query only when a request is sent, never stored."""

    def __init__(self, token: SasToken, *, clock: Callable[[], float] = time.time) -> None:
        self.token = token
        self._clock = clock

    def sign(self, method: str, path: str, query: Mapping[str, str], headers: dict[str, str]) -> str:
        own = encode_query(query)
        return f"{own}&{self.token.reveal()}" if own else self.token.reveal()

    def ended(self) -> bool:
        ends = self.token.expires_at
        return ends is not None and ends.timestamp() <= self._clock()


class BearerSigner(Signer):
    """Identity: an OAuth token from ``provider``, which returns its text and expiry (seconds since 1970)."""

    def __init__(self, provider: Callable[[], tuple[Secret, float]], *, clock: Callable[[], float] = time.time) -> None:
        self._provider = provider
        self._clock = clock
        self._lock = threading.Lock()
        self._token: Secret | None = None
        self._ends = 0.0

    def sign(self, method: str, path: str, query: Mapping[str, str], headers: dict[str, str]) -> str:
        headers["x-ms-date"] = http_date(int(self._clock()))
        headers["Authorization"] = f"Bearer {self.current()[0].reveal()}"
        return encode_query(query)

    def renew(self) -> bool:
        with self._lock:
            self._token = None
        return True

    def current(self) -> tuple[Secret, float]:
        """A token that does not expire during a request, and its expiry."""
        with self._lock:
            if self._token is None or self._clock() > self._ends - RENEW_SECONDS_BEFORE:
                self._token, self._ends = self._provider()
            return self._token, self._ends


def shared_key_string_to_sign(
    account: str, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]
) -> str:
    """What a Shared Key signature covers, service versions 2015-02-21 and later."""
    is_empty = headers.get("Content-Length") == "0"
    form, names = _form(tuple(name for name in headers if name != "Content-Length") if is_empty else tuple(headers))
    text = f"{method}\n{form % tuple(map(headers.get, names))}/{account}{path}"
    return "\n".join([text, *sorted(f"{name.lower()}:{value}" for name, value in query.items())]) if query else text


def encode_query(query: Mapping[str, str]) -> str:
    """The query of a URL, every reserved character percent-encoded."""
    return "&".join([f"{name}={quote(value, safe='')}" for name, value in query.items()])


@lru_cache(maxsize=64)
def _form(headers: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """The signed lines of requests with these headers, and the headers that fill them in: a transfer has a few."""
    own = {name.lower(): name for name in headers if name[:5].lower() == "x-ms-"}
    ordered = sorted(own, key=_service_order)
    lines = ["%s" if name in headers else "" for name in _SIGNED_HEADERS]
    lines += [f"{name.replace('%', '%%')}:%s" for name in ordered]
    names = (*(name for name in _SIGNED_HEADERS if name in headers), *(own[name] for name in ordered))
    return "".join(f"{line}\n" for line in lines), names


def _service_order(header: str) -> str:
    # The service sorts like a dictionary: '-' is ignored, '_' comes before digits and letters.
    return header.replace("-", "").replace("_", " ")
