"""Reads buckets of S3-compatible services: Amazon, MinIO, Ceph, R2, Google Cloud Storage with HMAC keys.

boto3 finds the credentials, signs and lists. What the service says of an object is believed as far as it binds: a
version by its ETag, content by an MD5 or by a checksum of the whole object. An ETag is the MD5 of the content only of
an object that was written in one part without a key of KMS or of the customer
(https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html), and a listing does not tell that: so only the
answers about one object have an MD5.
"""

from __future__ import annotations

import binascii
import re
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from typing import Any

from blobsync.base.errors import (
    AccessDeniedError,
    BlobNotFoundError,
    BlobsyncError,
    ChecksumError,
    ContainerNotFoundError,
    CredentialError,
    PreconditionFailedError,
    StorageError,
    StorageUnreachableError,
    ThrottledError,
    UsageError,
)
from blobsync.base.lazy_regexes import pattern
from blobsync.base.locations import AMAZON, Bucket, quote_blob_name
from blobsync.base.redaction import SignedUrl
from blobsync.base.trusted_hosts import is_loopback
from blobsync.config.model import StorageAccount
from blobsync.store.protocol import MAX_BLOB_BYTES, BlobInfo, BlobProperties, Checksum
from blobsync.store.read_only import SourceStore
from blobsync.store.rest.headers import byte_range
from blobsync.store.rest.transport import CERTIFICATE_HINT, UNTRUSTED_CERTIFICATE
from blobsync.store.rest.xml import BadAnswerError, Markers, checked_etag
from blobsync.store.resumed_reader import Body
from blobsync.store.source_trust import check_bucket

# The client of boto3, as far as it is used: ``list_objects_v2``, ``head_object``, ``get_object``,
# ``generate_presigned_url``, ``close``.
S3Client = Any

# Seconds; connections at once; attempts of one request.
_CONNECT_SECONDS, _READ_SECONDS, _CONNECTIONS, _ATTEMPTS = 10, 60, 64, 5
# boto3's own variable, and those that everything else here goes by.
_BUNDLES = ("AWS_CA_BUNDLE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
# Version ids have up to so many characters; most buckets have none.
_ANY_VERSION = "v" * 40
_MD5 = pattern(r"[0-9a-f]{32}")
_RANGE = pattern(r"bytes ([0-9]{1,15})-[0-9]{1,15}/([0-9]{1,15})")
# A page has up to 1,000 names of up to 1,024 bytes, in XML; boto3 reads an answer whole.
_MOST_ANSWER = 8 << 20
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/directory-buckets-overview.html: their ETags are no MD5s.
_DIRECTORY_BUCKET = "--x-s3"
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/storage-class-intro.html: these have to be restored first.
_ARCHIVES = frozenset({"GLACIER", "DEEP_ARCHIVE"})
# Names in answers, with the bytes of each. A composite one is of the checksums of parts, which nobody else knows.
_CHECKSUMS = {"crc64nvme": 8, "sha256": 32, "sha1": 20, "crc32c": 4, "crc32": 4}
# What a malformed answer about objects raises.
_MISREAD = (KeyError, TypeError, ValueError, BadAnswerError)
_GOOGLE_HASHES = {"crc32c": 4, "md5": 16}
# https://learn.microsoft.com/rest/api/storageservices/setting-and-retrieving-properties-and-metadata-for-blob-resources
_METADATA_NAME = pattern(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
INSTALL = "pip install 'blobsync[s3]'"


def open_bucket(account: StorageAccount, environ: Mapping[str, str]) -> S3Store:
    """The bucket of ``account``. Its first request raises ``UsageError`` without boto3, and ``CredentialError`` for a
    bucket that the account's file may not name, or a profile that does not exist."""

    # Here, before threads ask: two that import the same large package at a time may find a half of it.
    with suppress(ImportError):
        import boto3  # noqa: F401
        import botocore.exceptions  # noqa: F401

    def connected() -> S3Client:
        check_bucket(account, environ)
        return _client_of(account, environ)

    pays = account.bucket is not None and account.bucket.requester_pays
    return S3Store(Bucket.at(account.container_name, account.blob_endpoint), connected, requester_pays=pays)


def _client_of(account: StorageAccount, environ: Mapping[str, str]) -> S3Client:
    """With the credentials that boto3 finds. Uses no network of its own."""
    access = account.bucket
    assert access is not None
    try:
        import boto3
        import botocore.session
        from botocore import UNSIGNED
        from botocore.config import Config
    except ImportError as error:
        raise UsageError(f"{account.container} needs boto3, which is not installed", hint=INSTALL) from error
    is_amazon = account.blob_endpoint == AMAZON
    config = Config(
        signature_version=UNSIGNED if access.anonymous else "s3v4",
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        max_pool_connections=_CONNECTIONS,
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        s3={"addressing_style": "auto" if is_amazon else "path"},
        # Bodies are compared with what the service says of them once they are complete.
        response_checksum_validation="when_required",
        # The file says where the bucket is, and the user trusted that.
        ignore_configured_endpoint_urls=True,
        # No proxy elsewhere gets what is meant for this machine.
        proxies={} if is_loopback(account.blob_endpoint) else None,
    )
    with _translated(str(account.container)):
        settings = botocore.session.Session(profile=access.profile or None)
        session = boto3.session.Session(botocore_session=settings)
        # Other services do not know regions, but a signature names one.
        region = access.region or session.region_name or "us-east-1"
        endpoint = None if is_amazon else account.blob_endpoint
        given = filter(None, map(environ.get, _BUNDLES))
        # boto3 alone knows no SSL_CERT_FILE, and does not take an empty variable for none.
        bundle = next(given, None) or settings.get_config_variable("ca_bundle") or True
        client = session.client("s3", region_name=region, endpoint_url=endpoint, config=config, verify=bundle)
    _limit_answers(client, str(account.container))
    return client


def _limit_answers(client: S3Client, shown: str) -> None:
    """Have the client read no more of an answer than any has, but for the bodies of objects, which we read."""
    # boto3 has no limit, nor an event between the headers of an answer and its body.
    http = client._endpoint.http_session

    def send(request: Any, **_: Any) -> Any:
        # Its body is read when it is parsed.
        request.stream_output = True
        reply = http.send(request)
        reply.raw = _Limited(reply.raw, shown)
        return reply

    client.meta.events.register("before-send.s3", send)


class _Limited:
    """The body of an answer. ``stream`` is how boto3 reads what it parses."""

    def __init__(self, raw: Any, shown: str) -> None:
        self._raw, self._shown = raw, shown

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def stream(self) -> Iterator[bytes]:
        left = _MOST_ANSWER
        for piece in self._raw.stream():
            left -= len(piece)
            if left < 0:
                self._raw.close()
                raise StorageError(f"{self._shown}: the answer is larger than {_MOST_ANSWER >> 20} MiB, so no bucket's")
            yield piece


class S3Store(SourceStore):
    """One bucket. Thread-safe, as boto3's clients are."""

    def __init__(self, bucket: Bucket, connect: Callable[[], S3Client], *, requester_pays: bool = False) -> None:
        """``connect`` makes the client when it is needed first."""
        super().__init__(bucket)
        self._connect = connect
        self._words = {"Bucket": bucket.name, **({"RequestPayer": "requester"} if requester_pays else {})}
        self._connected: S3Client | None = None
        self._connecting = threading.Lock()
        # What a URL has besides the name.
        self._signed: int | None = None

    @property
    def _client(self) -> S3Client:
        with self._connecting:
            if self._connected is None:
                self._connected = self._connect()
            return self._connected

    def close(self) -> None:
        if self._connected is not None:
            self._connected.close()

    # -- reading ------------------------------------------------------------------------------------------

    def list_blobs(self, prefix: str = "") -> Iterator[BlobInfo]:
        """ListObjectsV2, page by page. Raises the store's errors; a listing that breaks off is never taken for a whole
        one."""
        return (entry for entry in self._list(prefix, "") if isinstance(entry, BlobInfo))

    def list_folder(self, prefix: str = "") -> Iterator[BlobInfo | str]:
        """ListObjectsV2 with the delimiter ``/``."""
        return self._list(prefix, "/")

    def described(self, name: str) -> tuple[BlobInfo, BlobProperties] | None:
        """HeadObject. Metadata whose names Azure does not take are left out."""
        try:
            with _translated(self._shown(name)):
                reply = self._client.head_object(**self._words, Key=name, ChecksumMode="ENABLED")
        except BlobNotFoundError:
            return None
        return self._info(name, reply), _properties(reply)

    def source_url(self, name: str, version: str, seconds: int) -> SignedUrl:
        """A URL that opens this object for ``seconds``; of this ``version`` if it is not empty.

        Raises ``CredentialError`` if there is nothing to sign with.
        """
        words = {"Bucket": self._container.name, "Key": name, **({"VersionId": version} if version else {})}
        with _translated(self._shown(name)):
            url = self._client.generate_presigned_url("get_object", Params=words, ExpiresIn=seconds)
        return SignedUrl(url)

    def url_length(self, name: str) -> int:
        """The characters of such a URL, at most; signed once for all names."""
        if self._signed is None:
            self._signed = self.source_url("x", _ANY_VERSION, 1).length - 1
        return self._signed + len(quote_blob_name(name))

    # -- requests -----------------------------------------------------------------------------------------

    def _list(self, prefix: str, delimiter: str) -> Iterator[BlobInfo | str]:
        words: dict[str, Any] = {**self._words, "Prefix": prefix}
        words |= {"Delimiter": delimiter} if delimiter else {}
        words["OptionalObjectAttributes"] = ["RestoreStatus"]
        tokens, token = Markers(), ""
        while True:
            with _translated(str(self._container)):
                page = self._client.list_objects_v2(**words, **({"ContinuationToken": token} if token else {}))
            found = self._entries(page, prefix)
            yield from found
            if not page.get("IsTruncated"):
                return
            try:
                token = tokens.checked(str(page.get("NextContinuationToken") or ""), is_empty=not found)
            except BadAnswerError as error:
                raise StorageError(f"{self._container}: cannot understand the listing: {error}") from error
            if not token:
                raise StorageError(f"{self._container}: the service broke the listing off, and does not say where")

    def _entries(self, page: Mapping[str, Any], prefix: str) -> Sequence[BlobInfo | str]:
        try:
            folders = [str(each["Prefix"]) for each in page.get("CommonPrefixes", ())]
            objects = [_listed(each) for each in page.get("Contents", ())]
        except _MISREAD as error:
            raise StorageError(f"{self._container}: cannot understand the listing") from error
        for each in (*folders, *(blob.name for blob in objects)):
            if not each.startswith(prefix):
                raise StorageError(f"{self._container}: the service lists names that were not asked for")
        return [*folders, *objects]

    def _get(
        self, name: str, start: int, length: int | None, etag: str | None
    ) -> tuple[BlobInfo, Callable[[], BlobProperties], Body]:
        words: dict[str, Any] = {**self._words, "Key": name, "ChecksumMode": "ENABLED"}
        if start or length is not None:
            words["Range"] = byte_range(start, length)
        if etag is not None:
            words["IfMatch"] = f'"{etag}"'
        shown = self._shown(name)
        with _translated(shown):
            reply = self._client.get_object(**words)
        try:
            size = _whole_size(reply, start) if "Range" in words else reply.get("ContentLength")
            info = self._info(name, {**reply, "ContentLength": size})
            if etag is not None and info.etag != etag:
                # A service that does not heed the condition.
                raise PreconditionFailedError(f"{shown} is another version now", status=412)
        except BaseException:
            reply["Body"].close()
            raise
        return info, partial(_properties, reply), _Body(reply["Body"], shown)

    def _info(self, name: str, reply: Mapping[str, Any]) -> BlobInfo:
        try:
            etag = checked_etag(reply["ETag"])
            kept_by_key = reply.get("ServerSideEncryption", "AES256") != "AES256" or "SSECustomerAlgorithm" in reply
            is_md5 = not kept_by_key and not self._container.name.endswith(_DIRECTORY_BUCKET)
            google = _google_hashes(reply)
            version = reply.get("VersionId") or ""
            return BlobInfo(
                name,
                _size(reply["ContentLength"]),
                etag,
                md5=bytes.fromhex(etag) if is_md5 and _MD5.fullmatch(etag) else google.get("md5"),
                last_modified=_seconds(reply.get("LastModified")),
                tier=reply.get("StorageClass") or "STANDARD",
                content_type=reply.get("ContentType"),
                tier_inferred=True,
                archived=_archived(reply.get("StorageClass"), reply.get("Restore") or ""),
                checksum=_checksum(reply) or (Checksum("crc32c", google["crc32c"]) if "crc32c" in google else None),
                # Suspended versioning gives this one name to each new version.
                version="" if version == "null" else version,
            )
        except _MISREAD as error:
            raise StorageError(f"{self._shown(name)}: cannot understand what the service says of it") from error

    def _shown(self, name: str) -> str:
        return str(self._container.child(name))


class _Body:
    """The body of an object, with our errors."""

    def __init__(self, body: Any, shown: str) -> None:
        self._body, self._shown = body, shown

    def read(self, limit: int) -> bytes:
        with _translated(self._shown):
            data: bytes = self._body.read(limit)
        return data

    def close(self) -> None:
        self._body.close()


def _listed(entry: Mapping[str, Any]) -> BlobInfo:
    storage = entry.get("StorageClass") or "STANDARD"
    status = entry.get("RestoreStatus") or {}
    restored = 'ongoing-request="false"' if status.get("RestoreExpiryDate") else ""
    return BlobInfo(
        str(entry["Key"]),
        _size(entry["Size"]),
        checked_etag(entry["ETag"]),
        last_modified=_seconds(entry.get("LastModified")),
        tier=storage,
        # Consoles make them so that an empty folder shows.
        is_folder_stub=str(entry["Key"]).endswith("/") and entry["Size"] == 0,
        tier_inferred=True,
        archived=_archived(storage, restored),
    )


def _archived(storage: str | None, restore: str) -> str:
    if storage not in _ARCHIVES or 'ongoing-request="false"' in restore:
        return ""
    return f"it is in the storage class {storage}, and has to be restored before it can be read"


def _size(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value <= MAX_BLOB_BYTES:
        raise ValueError("not a size")
    return value


def _seconds(when: object) -> float:
    return max(when.timestamp(), 0.0) if isinstance(when, datetime) else 0.0


def _whole_size(reply: Mapping[str, Any], start: int) -> object:
    """What the answer to a request for a range says of the object's size; ``StorageError`` if it is another range."""
    given = _RANGE.fullmatch(reply.get("ContentRange") or "")
    if int(given[1]) != start if given is not None else start:
        raise StorageError("the service sends other bytes than those that it was asked for")
    return int(given[2]) if given is not None else reply.get("ContentLength")


def _checksum(reply: Mapping[str, Any]) -> Checksum | None:
    """The best checksum of the whole object. A composite one ends with ``-`` and the number of parts."""
    if reply.get("ChecksumType", "FULL_OBJECT") != "FULL_OBJECT":
        return None
    for name, length in _CHECKSUMS.items():
        text = reply.get(f"Checksum{name.upper()}")
        try:
            value = b64decode(text or "", validate=True)
        except (binascii.Error, ValueError):
            continue
        if len(value) == length:
            return Checksum(name, value)
    return None


def _google_hashes(reply: Mapping[str, Any]) -> Mapping[str, bytes]:
    """What Google Cloud Storage says of an object's bytes as it stores them: a CRC32C, and an MD5 unless it was
    composed of others (https://cloud.google.com/storage/docs/xml-api/reference-headers#xgooghash).

    Those of an object that it unpacks as it sends it are left out: others arrive.
    """
    headers = reply.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    if headers.get("x-goog-stored-content-encoding", "identity") != "identity":
        return {}
    found = {}
    for each in headers.get("x-goog-hash", "").split(","):
        name, _, text = each.strip().partition("=")
        with suppress(binascii.Error, ValueError):
            value = b64decode(text, validate=True)
            if len(value) == _GOOGLE_HASHES.get(name):
                found[name] = value
    return found


def _properties(reply: Mapping[str, Any]) -> BlobProperties:
    metadata = {
        key: value
        for key, value in (reply.get("Metadata") or {}).items()
        if _METADATA_NAME.fullmatch(key) and value.isascii() and value.isprintable()
    }

    def text(key: str) -> str:
        value = reply.get(key) or ""
        return value if value.isascii() and value.isprintable() else ""

    return BlobProperties(
        content_type=text("ContentType"),
        content_encoding=text("ContentEncoding"),
        content_language=text("ContentLanguage"),
        content_disposition=text("ContentDisposition"),
        cache_control=text("CacheControl"),
        metadata=metadata,
    )


_AGAIN = "sign in again, for example: aws sso login"
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"})
_BUSY = frozenset({"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests"})


@contextmanager
def _translated(shown: str) -> Iterator[None]:
    """Convert boto3's exceptions to ours. Their texts are left out: they quote requests."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        raise _refusal(shown, error.response) from error
    except BotoCoreError as error:
        raise _failure(shown, error) from error
    except (OSError, ValueError) as error:
        # A connection that was closed while it was read.
        raise StorageUnreachableError(f"{shown}: the connection broke ({type(error).__name__})") from error


_CREDENTIALS = {
    "NoCredentialsError": "boto3 finds no credentials",
    "PartialCredentialsError": "boto3 finds only a part of the credentials",
    "ProfileNotFound": "there is no such profile in your configuration of AWS",
    "SSOTokenLoadError": "the login by SSO has ended",
    "UnauthorizedSSOTokenError": "the login by SSO has ended",
    "TokenRetrievalError": "the login by SSO has ended",
    "CredentialRetrievalError": "the credentials cannot be fetched",
    "ConfigParseError": "your configuration of AWS cannot be read",
    "LoginRefreshRequired": "the login has ended",
}
_UNREACHABLE = frozenset(
    {
        *("EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ConnectionClosedError"),
        *("HTTPClientError", "ProxyConnectionError", "ResponseStreamingError", "IncompleteReadError", "SSLError"),
    }
)


def _failure(shown: str, error: Exception) -> BlobsyncError:
    kind = type(error).__name__
    if kind in _CREDENTIALS:
        hint = f"{_AGAIN}; or export AWS_PROFILE=NAME; a public bucket needs none: anonymous: true, --no-sign-request"
        return CredentialError(f"{shown}: {_CREDENTIALS[kind]}", hint=hint)
    if kind == "FlexibleChecksumError":
        return ChecksumError(f"{shown} arrived with another checksum than the service's own")
    if kind == "SSLError" and "certificate" in str(error).lower():
        said = f"{shown}: the service {UNTRUSTED_CERTIFICATE}"
        return StorageUnreachableError(said, hint=CERTIFICATE_HINT)
    if kind in _UNREACHABLE:
        return StorageUnreachableError(f"{shown}: the service cannot be reached ({kind})")
    return StorageError(f"{shown}: boto3 cannot ask for it ({kind})")


def _refusal(shown: str, reply: Mapping[str, Any]) -> BlobsyncError:
    code = str(reply.get("Error", {}).get("Code", ""))[:60]
    status = int(reply.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    region = reply.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("x-amz-bucket-region", "")
    known = f": {region}" if re.fullmatch(r"[a-z0-9-]{1,40}", region) else ""
    said = f": the service answers {code or status}"
    no_right = "your credentials may not read this; the aws command line with the same profile shows the same"
    # The first that applies.
    kinds: tuple[tuple[bool, type[StorageError], str, str | None], ...] = (
        (code == "NoSuchBucket", ContainerNotFoundError, ": there is no such bucket", None),
        (status == 404, BlobNotFoundError, ": there is no such object", None),
        (status == 412, PreconditionFailedError, " is another version now", None),
        (status in (429, 503) or code in _BUSY, ThrottledError, said, None),
        (code in _EXPIRED, AccessDeniedError, ": your credentials have ended", _AGAIN),
        (code == "InvalidObjectState", AccessDeniedError, ": it is archived", "restore it first"),
        (
            status in (301, 307) or code == "AuthorizationHeaderMalformed",
            StorageError,
            f": the bucket is in another region{known}",
            "set region",
        ),
        (status in (401, 403), AccessDeniedError, said, no_right),
        (status >= 500, ThrottledError, said, None),
        (True, StorageError, said, None),
    )
    _, kind, text, hint = next(row for row in kinds if row[0])
    shown_code = code if code.isascii() and code.isprintable() else ""
    return kind(f"{shown}{text}", hint=hint, status=status, service_code=shown_code)
