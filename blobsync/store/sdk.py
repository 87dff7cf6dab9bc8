"""Rare operations by azure-storage-blob: delegation keys, batches of deletes, new containers.

The SDK makes these complex requests and reads the responses, but sends nothing itself: each request goes through the
store's own :class:`BlobHttp`, so that connections, proxies, CA bundles, retries, closing and error messages are the
same for all. It logs nothing, and its errors are not shown, because they quote URLs.

Importing it takes 0.3 to 0.5 s, more than most commands, so only the functions that need it import it. Listing,
reading, writing and deleting few blobs are in ``store.rest``, signing a SAS in ``store.sas_token``.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from http.client import HTTPException
from typing import Any, TypeAlias, cast
from urllib.parse import urlsplit

from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential, TokenCredential
from azure.core.exceptions import AzureError
from azure.core.pipeline.transport import HttpRequest, HttpResponse, HttpTransport
from azure.core.utils import case_insensitive_dict
from azure.storage.blob import BlobServiceClient

from blobsync.base.errors import StorageError
from blobsync.base.locations import BlobContainer
from blobsync.base.redaction import Secret
from blobsync.store.rest.error_codes import Answer, translate
from blobsync.store.rest.http import API_VERSION, BlobHttp, answer_of
from blobsync.store.rest.request_signing import BearerSigner, SasSigner, SharedKeySigner, Signer
from blobsync.store.rest.transport import Response
from blobsync.store.sas_token import DelegationKey

# The maximum of blobs in one request: https://learn.microsoft.com/rest/api/storageservices/blob-batch
MAX_BATCH = 256

Credential: TypeAlias = "AzureNamedKeyCredential | AzureSasCredential | TokenCredential"

# Errors of the SDK for an unexpected response; no response may cause a traceback.
_MISREAD = (AzureError, HTTPException, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

# The SDK would send Python's version and the system; the transport sets the length.
_OWN_HEADERS = ("User-Agent", "Content-Length")

_GOOD = (200, 201, 202)

# Emulators have the account in the path.
_PATH_STYLE_HOSTS = ("127.0.0.1", "localhost")

_SILENT = logging.Logger("blobsync.silent")
_SILENT.disabled = True


class SdkContainer:
    """A container through the SDK, over the connections and with the credential of ``http``."""

    def __init__(self, container: BlobContainer, http: BlobHttp) -> None:
        self._container = container
        self._http = http
        options: dict[str, Any] = {
            "api_version": API_VERSION,
            "transport": _Carrier(http.for_signed_requests()),
            # BlobHttp retries, and a request signed for this host must not be sent to another.
            "retry_total": 0,
            "permit_redirects": False,
            "logger": _SILENT,
        }
        self._service = BlobServiceClient(container.endpoint, credential=_credential(http.signer), **options)

    def create(self) -> bool:
        """Create Container; False if it exists already."""
        try:
            with self._understood("create", "answer"):
                self._service.get_container_client(self._container.name).create_container()
        except StorageError as error:
            if error.service_code == "ContainerAlreadyExists":
                return False
            raise
        return True

    def user_delegation_key(self, starts: datetime, ends: datetime) -> DelegationKey:
        """Get User Delegation Key, which signs a SAS in the name of the identity; needs a bearer token."""
        with self._understood("sign for", "user delegation key"):
            key = self._service.get_user_delegation_key(starts, ends)
            base64.b64decode(_text(key.value), validate=True)
            return DelegationKey(
                object_id=_text(key.signed_oid),
                tenant_id=_text(key.signed_tid),
                starts=_text(key.signed_start),
                expires=_text(key.signed_expiry),
                service=_text(key.signed_service),
                version=_text(key.signed_version),
                value=Secret(_text(key.value)),
            )

    def delete_batch(self, blobs: Sequence[tuple[str, str | None]]) -> bool:
        """Blob Batch: delete up to 256 blobs with their snapshots, each only if it is still the version of its ETag.

        True: all of them are deleted. False: perhaps not all, or the server does not support batches. Which ones is
        unknown: the SDK matches responses to blobs by order, which the service does not guarantee.
        """
        endpoint = urlsplit(self._container.endpoint)
        if endpoint.path.strip("/") and endpoint.hostname not in _PATH_STYLE_HOSTS:
            # For other endpoints the SDK omits the path when it names a blob.
            return False
        doomed = [
            {"name": name, "etag": f'"{etag}"', "delete_snapshots": "include"} if etag else name for name, etag in blobs
        ]
        client = self._service.get_container_client(self._container.name)
        try:
            parts = client.delete_blobs(*doomed, delete_snapshots="include", raise_on_any_failure=False)
            statuses = [part.status_code for part in parts]
        except (_RefusedError, *_MISREAD):
            return False
        return len(statuses) == len(blobs) and {*statuses} <= {202, 404}

    @contextmanager
    def _understood(self, what: str, answer: str) -> Iterator[None]:
        try:
            yield
        except _RefusedError as refused:
            now, ended = self._http.clock(), self._http.signer.ended()
            raise translate(refused.answer, what, self._container, now=now, sas_ended=ended) from None
        except _MISREAD:
            raise StorageError(f"cannot parse the {answer} of {self._container}") from None


class _RefusedError(Exception):
    """An error that the SDK passes on; its own errors quote URLs and fail on responses without a text."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer


class _Carrier(HttpTransport[HttpRequest, HttpResponse]):
    """Sends requests of the SDK through :class:`BlobHttp`."""

    def __init__(self, http: BlobHttp) -> None:
        self._http = http

    def __exit__(self, *_: object) -> None: ...

    def open(self) -> None: ...

    def close(self) -> None: ...

    def send(self, request: HttpRequest, **_: object) -> HttpResponse:
        parts = urlsplit(request.url)
        headers = {name: value for name, value in request.headers.items() if name not in _OWN_HEADERS}
        body = request.body.encode() if isinstance(request.body, str) else request.body
        assert body is None or isinstance(body, bytes), "none of these requests is a form"
        reply = self._http.send(request.method, f"{parts.path}?{parts.query}", {}, headers, body)
        if reply.status not in _GOOD:
            raise _RefusedError(answer_of(reply))
        return _Answer(request, reply)


class _Answer(HttpResponse):
    """Adapts a response to the SDK's interface."""

    def __init__(self, request: HttpRequest, reply: Response) -> None:
        super().__init__(request, None)
        self._reply = reply
        self.status_code = reply.status
        self.headers = case_insensitive_dict(reply.headers)
        self.content_type = reply.headers.get("Content-Type")
        self.reason = ""

    def body(self) -> bytes:
        return self._reply.body


class _Login:
    """The token of a bearer signer as an SDK credential."""

    def __init__(self, signer: BearerSigner) -> None:
        self._signer = signer

    def get_token(self, *_: str, **__: Any) -> AccessToken:
        token, ends = self._signer.current()
        return AccessToken(token.reveal(), int(ends))


def _credential(signer: Signer) -> Credential:
    if isinstance(signer, SharedKeySigner):
        return AzureNamedKeyCredential(signer.account, signer.key.reveal())
    if isinstance(signer, SasSigner):
        return AzureSasCredential(signer.token.reveal())
    assert isinstance(signer, BearerSigner), "the SDK has no credential for this signer"
    return cast("TokenCredential", _Login(signer))


def _text(field: object) -> str:
    if not isinstance(field, str) or not field:
        raise ValueError
    return field
