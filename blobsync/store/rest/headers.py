"""Reads and writes the properties of blobs in HTTP headers.

Header names: https://learn.microsoft.com/rest/api/storageservices/put-blob and .../get-blob-properties.
"""

from __future__ import annotations

from collections.abc import Mapping

from blobsync.base.errors import ChecksumError, StorageError
from blobsync.base.redaction import SasToken
from blobsync.store.protocol import BlobInfo, BlobProperties, CopiedBlob, Precondition
from blobsync.store.rest.transport import Response
from blobsync.store.rest.xml import BadAnswerError, checked_date, checked_etag, checked_size, decode_md5

# Field of BlobProperties, header that sets it, header that shows it.
_PROPERTY_HEADERS = (
    ("content_type", "x-ms-blob-content-type", "Content-Type"),
    ("content_encoding", "x-ms-blob-content-encoding", "Content-Encoding"),
    ("content_language", "x-ms-blob-content-language", "Content-Language"),
    ("content_disposition", "x-ms-blob-content-disposition", "Content-Disposition"),
    ("cache_control", "x-ms-blob-cache-control", "Cache-Control"),
)

_IN_BETWEEN = "a proxy or cache on the way to the service gives wrong answers: NO_PROXY names hosts to reach without it"


def read_asked(name: str, reply: Response, start: int, etag: str | None) -> BlobInfo:
    """The whole blob's properties in a response to Get Blob that must begin at byte ``start``, of version ``etag`` if
    given.

    Raises ``ChecksumError`` if it does not, as from a cache or from a proxy that does not know ``x-ms-range``: not
    every blob has an MD5 that would show it.
    """
    headers, first = reply.headers, "bytes 0"
    if reply.status == 206:
        # For a range, Content-MD5 would be that of the range.
        place, _, total = (headers.get("Content-Range") or "").rpartition("/")
        found = info(name, headers, total, decode_md5(headers.get("x-ms-blob-content-md5")))
        first = place.partition("-")[0]
    else:
        found = whole_info(name, headers)
    if first != f"bytes {start}":
        raise ChecksumError(f"{name}: the answer does not begin at byte {start:,}", hint=_IN_BETWEEN, path=name)
    if etag not in (None, found.etag):
        raise _another_version(name)
    return found


def demand_version(name: str, reply: Response, etag: str) -> None:
    """As :func:`read_asked`, for the whole of a blob of which only the bytes matter. Raises ``StorageError`` for an
    invalid ETag."""
    try:
        found = checked_etag(reply.headers.get("ETag"))
    except BadAnswerError as error:
        raise _unreadable(name, error) from error
    if found != etag:
        raise _another_version(name)


def _another_version(name: str) -> ChecksumError:
    return ChecksumError(f"{name}: the answer is of another version than was asked for", hint=_IN_BETWEEN, path=name)


def _unreadable(name: str, error: BadAnswerError) -> StorageError:
    return StorageError(f"cannot parse the response about the blob {name!a}: {error}", path=name)


def whole_info(name: str, headers: Mapping[str, str]) -> BlobInfo:
    """The properties in a response to HEAD, or to GET of the whole blob."""
    return info(name, headers, headers.get("Content-Length"), decode_md5(headers.get("Content-MD5")))


def info(name: str, headers: Mapping[str, str], size: str | None, md5: bytes | None) -> BlobInfo:
    """The properties of a blob of ``size`` bytes with this Content-MD5, from the headers of a response.

    Raises ``StorageError`` for an invalid number or ETag.
    """
    try:
        count = checked_size(size)
    except BadAnswerError as error:
        raise _unreadable(name, error) from error
    return written(name, headers, count, md5)._replace(
        tier=headers.get("x-ms-access-tier"),
        content_type=headers.get("Content-Type"),
        blob_type=headers.get("x-ms-blob-type") or "BlockBlob",
        is_folder_stub=headers.get("x-ms-resource-type") == "directory"
        or (headers.get("x-ms-meta-hdi_isfolder") or "").lower() == "true",
        tier_inferred=_is_inferred(headers),
    )


def written(name: str, headers: Mapping[str, str], size: int, md5: bytes | None) -> BlobInfo:
    """As :func:`info`, for the response to a write, which has no other properties."""
    try:
        etag, date = checked_etag(headers.get("ETag")), checked_date(headers.get("Last-Modified"))
    except BadAnswerError as error:
        raise _unreadable(name, error) from error
    return BlobInfo(name, size, etag, md5, date)


def copied(name: str, headers: Mapping[str, str]) -> CopiedBlob:
    """The result of a copy from a URL. Raises ``StorageError`` for an invalid ETag."""
    found = written(name, headers, 0, decode_md5(headers.get("Content-MD5")))
    return CopiedBlob(found.etag, found.md5)


def properties_of(headers: Mapping[str, str]) -> BlobProperties:
    """The properties that a copy keeps, from the response to Get Blob Properties or, without the tier, to Get Blob.

    https://learn.microsoft.com/rest/api/storageservices/get-blob#response-headers names all of it but the tier.
    """
    plain = {field: headers.get(shown) or "" for field, _, shown in _PROPERTY_HEADERS}
    metadata = {key[10:]: value for key, value in headers.items() if key.lower().startswith("x-ms-meta-")}
    tier = "" if _is_inferred(headers) else headers.get("x-ms-access-tier") or ""
    return BlobProperties(**plain, tier=tier, metadata=metadata)


def _is_inferred(headers: Mapping[str, str]) -> bool:
    return headers.get("x-ms-access-tier-inferred", "").lower() == "true"


def add_properties(headers: dict[str, str], properties: BlobProperties) -> None:
    """Add ``properties`` to the headers of a write."""
    # A write has few of them: most have their default.
    for value, (_, sent, _) in zip(properties[:5], _PROPERTY_HEADERS, strict=True):
        if value:
            headers[sent] = value
    if properties.tier:
        headers["x-ms-access-tier"] = properties.tier
    for key, value in properties.metadata.items():
        headers[f"x-ms-meta-{key}"] = value


def add_condition(headers: dict[str, str], condition: Precondition) -> None:
    """Add ``condition`` to the headers of a write."""
    if condition.absent:
        headers["If-None-Match"] = "*"
    elif condition.etag:
        headers["If-Match"] = f'"{condition.etag}"'


def byte_range(start: int, length: int | None) -> str:
    """The value of a ``Range`` header: ``length`` bytes from ``start`` on, None: to the end."""
    return f"bytes={start}-{'' if length is None else start + length - 1}"


def with_sas(url: str, sas: SasToken | None) -> str:
    """The value of ``x-ms-copy-source``."""
    # A version or a snapshot of a blob has a query already.
    return f"{url}{'&' if '?' in url else '?'}{sas.reveal()}" if sas else url
