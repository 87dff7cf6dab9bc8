"""The Azure SDK behind ``storage.BlobStore``: the oracle that the REST client is held to.

Plain and slow; whatever the SDK raises becomes the error that the protocol names.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.storage.blob import BlobBlock, BlobPrefix, BlobType, ContainerClient, ContentSettings, StandardBlobTier

from blobsync.base.errors import (
    BlobNotFoundError,
    ChecksumError,
    ContainerNotFoundError,
    PreconditionFailedError,
    StorageError,
)
from blobsync.base.locations import BlobContainer
from blobsync.store.account_features import UNKNOWN, AccountFeatures
from blobsync.store.protocol import (
    ANYTHING,
    BlobInfo,
    BlobProperties,
    Block,
    BlockKind,
    BlockList,
    FileBody,
    Precondition,
    Sent,
    sha256_of_block,
)
from tests.fakes.store import deleted_singly

_NO_PROPERTIES = BlobProperties()


class SdkBlobStore:
    """One container through azure-storage-blob."""

    def __init__(self, container: BlobContainer, key: str) -> None:
        self._container = container
        self._client = ContainerClient(container.endpoint, container.name, credential=key)

    @property
    def container(self) -> BlobContainer:
        return self._container

    def orders(self) -> None:
        return None

    def list_from(self, prefix: str, start: str, most: int = 0, end: str = "") -> None:
        return None

    def close(self) -> None:
        self._client.close()

    def fail_soon(self) -> None:
        pass

    def features(self) -> AccountFeatures:
        return UNKNOWN

    def list_blobs(self, prefix: str = "") -> Iterator[BlobInfo]:
        with translated(""):
            for blob in self._client.list_blobs(name_starts_with=prefix or None, include=["metadata"]):
                yield info(blob)

    def first_blobs(self, prefix: str, most: int) -> Sequence[BlobInfo]:
        return list(itertools.islice(self.list_blobs(prefix), most))

    def list_folder(self, prefix: str = "") -> Iterator[BlobInfo | str]:
        with translated(""):
            for found in self._client.walk_blobs(name_starts_with=prefix or None, include=["metadata"]):
                yield found.name if isinstance(found, BlobPrefix) else info(found)

    def head(self, name: str) -> BlobInfo | None:
        try:
            with translated(name):
                return info(self._client.get_blob_client(name).get_blob_properties())
        except BlobNotFoundError:
            return None

    def properties(self, name: str) -> BlobProperties:
        with translated(name):
            return carried(self._client.get_blob_client(name).get_blob_properties())

    def open(self, name: str, *, start: int = 0, length: int | None = None, etag: str | None = None) -> SdkReader:
        with translated(name):
            blob = self._client.get_blob_client(name)
            whole = info(blob.get_blob_properties())
            if not whole.size:
                start, length = 0, None
            ranged: dict[str, Any] = {"offset": start, "length": length} if start or length is not None else {}
            found = blob.download_blob(**ranged, **condition_of(etag))
            return SdkReader(whole, carried(found.properties), found.readall())

    def put(
        self,
        name: str,
        body: bytes | FileBody,
        *,
        md5: bytes,
        properties: BlobProperties = _NO_PROPERTIES,
        condition: Precondition = ANYTHING,
        sent: Sent | None = None,
    ) -> BlobInfo:
        assert isinstance(body, bytes)
        # The SDK computes Content-MD5 by itself and offers no way to send a wrong one.
        if md5_of(body) != md5:
            raise ChecksumError("the SDK would send the right MD5")
        with translated(name):
            self._client.get_blob_client(name).upload_blob(
                body,
                overwrite=not condition.absent,
                blob_type=BlobType.BLOCKBLOB,
                validate_content=True,
                **(condition_of(condition.etag)),
                **settings(properties, md5),
            )
        return self._there(name)

    def put_block(self, name: str, block_id: str, body: bytes, *, sent: Sent | None = None) -> None:
        with translated(name):
            self._client.get_blob_client(name).stage_block(RawId(block_id), body, validate_content=True)

    def put_block_list(
        self,
        name: str,
        block_ids: Sequence[str],
        *,
        size: int,
        md5: bytes,
        properties: BlobProperties = _NO_PROPERTIES,
        condition: Precondition = ANYTHING,
        committed: AbstractSet[str] = frozenset(),
    ) -> BlobInfo:
        more = conditions(condition) | settings(properties, md5 or None)
        with translated(name):
            # The SDK sends committed blocks before all others, whatever their order: "latest" keeps it.
            blocks = [BlobBlock(block_id=RawId(block_id)) for block_id in block_ids]
            self._client.get_blob_client(name).commit_block_list(blocks, **more)
        return self._there(name)

    def block_list(self, name: str, kind: BlockKind = "all") -> BlockList | None:
        etags = []

        def keep(response: Any) -> None:
            etags.append(response.http_response.headers.get("ETag", ""))

        try:
            with translated(name):
                found = self._client.get_blob_client(name).get_block_list(kind, raw_response_hook=keep)
        except BlobNotFoundError:
            return None
        committed, uncommitted = (tuple(Block(encoded_id(each.id), each.size) for each in blocks) for blocks in found)
        return BlockList(committed, uncommitted, etags[-1].strip('"'))

    def _not_asked(self, *given: Any, **words: Any) -> Any:
        raise NotImplementedError("the suite copies with the REST client alone")

    put_from_url = put_block_from_url = _not_asked

    def delete(self, name: str, *, etag: str | None = None) -> bool:
        try:
            with translated(name):
                self._client.get_blob_client(name).delete_blob(delete_snapshots="include", **condition_of(etag))
        except BlobNotFoundError:
            return False
        return True

    def delete_many(self, names: Sequence[str], *, etags: Mapping[str, str] | None = None) -> Mapping[str, str]:
        return deleted_singly(self, names, etags or {})

    def _there(self, name: str) -> BlobInfo:
        found = self.head(name)
        if found is None:
            raise StorageError(f"{name} is gone again")
        return found


class SdkReader:
    """All of the body, read at once."""

    def __init__(self, blob: BlobInfo, properties: BlobProperties, body: bytes) -> None:
        self.info = blob
        self.properties = properties
        self._body = body

    def __enter__(self) -> SdkReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def read(self, limit: int) -> bytes:
        piece, self._body = self._body[:limit], self._body[limit:]
        return piece


def carried(found: Any) -> BlobProperties:
    content = found.content_settings
    return BlobProperties(
        content_type=content.content_type or "",
        content_encoding=content.content_encoding or "",
        content_language=content.content_language or "",
        content_disposition=content.content_disposition or "",
        cache_control=content.cache_control or "",
        tier="" if found.blob_tier_inferred else str(found.blob_tier or ""),
        metadata=dict(found.metadata or {}),
    )


def info(blob: Any) -> BlobInfo:
    md5 = blob.content_settings.content_md5
    return BlobInfo(
        name=blob.name,
        size=blob.size,
        etag=blob.etag.strip('"'),
        md5=bytes(md5) if md5 else None,
        last_modified=blob.last_modified.timestamp(),
        tier=str(blob.blob_tier) if blob.blob_tier else None,
        content_type=blob.content_settings.content_type,
        blob_type=str(getattr(blob.blob_type, "value", blob.blob_type)),
        is_folder_stub=(blob.metadata or {}).get("hdi_isfolder") == "true",
        tier_inferred=bool(blob.blob_tier_inferred),
    )


def settings(properties: BlobProperties, md5: bytes | None) -> dict[str, Any]:
    content: Any = ContentSettings
    found: dict[str, Any] = {
        "content_settings": content(
            content_type=properties.content_type or None,
            content_encoding=properties.content_encoding or None,
            content_language=properties.content_language or None,
            content_disposition=properties.content_disposition or None,
            cache_control=properties.cache_control or None,
            content_md5=bytearray(md5) if md5 else None,
        ),
        "metadata": dict(properties.metadata) or None,
    }
    if properties.tier:
        found["standard_blob_tier"] = StandardBlobTier(properties.tier)
    return found


def condition_of(etag: str | None) -> dict[str, Any]:
    return {"etag": f'"{etag}"', "match_condition": MatchConditions.IfNotModified} if etag else {}


def conditions(condition: Precondition) -> dict[str, Any]:
    if condition.absent:
        return {"match_condition": MatchConditions.IfMissing}
    return condition_of(condition.etag)


class RawId(str):
    """An id in base64 that the SDK, which encodes what it is given, sends as it is: also one that is no text."""

    def __str__(self) -> str:
        return self

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return base64.b64decode(str.encode(self, "ascii"))


def encoded_id(block_id: str) -> str:
    """The SDK decodes ids that are text, and leaves those encoded that hold a digest."""
    return block_id if sha256_of_block(block_id) else base64.b64encode(block_id.encode()).decode()


def md5_of(body: bytes) -> bytes:
    return hashlib.md5(body).digest()


@contextmanager
def translated(name: str) -> Iterator[None]:
    try:
        yield
    except HttpResponseError as error:
        code = getattr(error, "error_code", "") or ""
        code = str(getattr(code, "value", code))
        status = error.status_code or 0
        if "ContainerNotFound" in code:
            raise ContainerNotFoundError(str(error), status=status) from error
        if isinstance(error, ResourceNotFoundError):
            raise BlobNotFoundError(str(error), status=status) from error
        if status in (304, 409, 412):
            raise PreconditionFailedError(str(error), status=status) from error
        raise StorageError(str(error), status=status, service_code=code) from error
