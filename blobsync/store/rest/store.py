"""A thin client of the Blob service's REST interface: :class:`RestBlobStore`.

Only the requests that blobsync needs; each method is named after its page under
https://learn.microsoft.com/rest/api/storageservices/. Every write carries the MD5 of its body, so that the
service itself refuses damaged bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from types import TracebackType
from typing import NamedTuple, TypeVar, final

from blobsync.base.azure_urls import ContainerUrl, SasToken, reaches_another
from blobsync.base.background_calls import Ahead, side_by_side
from blobsync.base.errors import (
    BlobNotFoundError,
    BlobsyncError,
    PreconditionFailedError,
    StorageError,
)
from blobsync.store.protocol import (
    ANYTHING,
    BlobInfo,
    BlobProperties,
    BlockKind,
    BlockList,
    CopiedBlob,
    Precondition,
    PutOrder,
    Sent,
)
from blobsync.store.rest.blob_steps import BlobSteps, RestOrders
from blobsync.store.rest.errors import skew_seconds
from blobsync.store.rest.headers import add_condition, copied, properties_of, with_sas
from blobsync.store.rest.http import BlobHttp, Reply
from blobsync.store.rest.leases import BlobLeases
from blobsync.store.rest.reader import RestBlobReader
from blobsync.store.rest.uncommitted import blobs_without_content
from blobsync.store.rest.xml import BadAnswerError, Markers, block_lists, checked_etag, list_page
from blobsync.store.sas import DelegationKey

_S = TypeVar("_S")
_T = TypeVar("_T")

_DELETE_THREADS = 32
# The service is slow with a batch, so several run at a time.
_BATCH_THREADS = 4
# Fewer are as fast one by one, also 40 ms away: importing the SDK takes 0.3 to 0.5 s (docs/performance.md, "Deleting").
_FEWEST_FOR_BATCHES = 1000
_NO_PROPERTIES = BlobProperties()
_NOTHING: dict[str, str] = {}


class Recovery(NamedTuple):
    """What brings deleted blobs back: days of soft delete (0: none), versioning; None where unknown."""

    soft_delete_days: int | None = None
    versioning: bool | None = None


@final
class RestBlobStore:
    """``storage.BlobStore`` for one container; safe to use from several threads.

    Creating one uses no network. ``close`` (or use as a context manager) drops idle connections and ends
    waiting retries.
    """

    def __init__(self, container: ContainerUrl, http: BlobHttp) -> None:
        self._container = container
        self._http = http
        self._put_from_url_works = True
        self._steps = BlobSteps(container, http)
        self._path, self._error = self._steps.path, self._steps.error

    @property
    def container(self) -> ContainerUrl:
        return self._container

    def __enter__(self) -> RestBlobStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drop idle connections; requests that wait for a retry fail at once."""
        self._http.close()

    def hurry(self) -> None:
        """See the protocol."""
        self._http.hurry()

    # -- reading ------------------------------------------------------------------------------------------

    def list_blobs(self, prefix: str = "") -> Iterator[BlobInfo]:
        """List Blobs, flat. The next page is on its way while the caller works on this one."""
        for entry in self._list(prefix, ""):
            if isinstance(entry, BlobInfo):
                yield entry

    def list_folder(self, prefix: str = "") -> Iterator[BlobInfo | str]:
        """List Blobs with the delimiter ``/``."""
        return self._list(prefix, "/")

    def head(self, name: str) -> BlobInfo | None:
        """Get Blob Properties; None where there is no such blob."""
        return self._http.run(self._steps.head(name))

    def orders(self) -> RestOrders | None:
        """See the protocol; None with a library that blocks the thread that sends."""
        driver = self._http.side_by_side()
        return None if driver is None else RestOrders(driver, self._http, self._steps)

    def leases(self) -> BlobLeases:
        """The leases of the container's blobs, over the same connections."""
        return BlobLeases(self._container, self._http)

    def properties(self, name: str) -> BlobProperties:
        """Get Blob Properties, the part that a copy carries over; raises ``BlobNotFoundError``."""
        reply = self._http.send("HEAD", self._path(name), _NOTHING, _NOTHING)
        if reply.status != 200:
            raise self._error(reply, "read", name)
        return properties_of(reply.headers)

    def open(self, name: str, *, start: int = 0, length: int | None = None, etag: str | None = None) -> RestBlobReader:
        """Get Blob, ``length`` bytes from ``start`` (to the end where None); only version ``etag`` where given.

        A connection that breaks is resumed where it broke, from the same version of the blob.
        """
        return RestBlobReader(self._get, name, start, length, etag, self._http)

    # -- writing ------------------------------------------------------------------------------------------

    def put(
        self,
        name: str,
        body: bytes,
        *,
        md5: bytes,
        properties: BlobProperties = _NO_PROPERTIES,
        condition: Precondition = ANYTHING,
        sent: Sent | None = None,
    ) -> BlobInfo:
        """Put Blob: the whole blob in one request; the service checks ``md5`` and keeps it as Content-MD5."""
        return self._http.run(self._steps.put(PutOrder(name, body, md5, properties, condition)), sent)

    def put_block(self, name: str, block_id: str, body: bytes, *, md5: bytes, sent: Sent | None = None) -> None:
        """Put Block: one uncommitted block, checked by the service."""
        self._http.run(self._steps.put_block(name, block_id, body, md5), sent)

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
        """Put Block List. An empty ``md5`` stores none.

        ``Latest`` lets a retry after a lost response find the blocks that the first try committed. What is taken from
        ``committed`` is not to be replaced by a block that somebody else put under the same id.
        """
        return self._http.run(
            self._steps.put_block_list(name, block_ids, size, md5, properties, condition, committed=committed)
        )

    def block_list(self, name: str, kind: BlockKind = "all") -> BlockList | None:
        """Get Block List, of the blob or of what was never committed to one; None where there is neither."""
        query = {"comp": "blocklist", "blocklisttype": kind}
        reply = self._http.send("GET", self._path(name), query, _NOTHING)
        if reply.status != 200:
            error = self._error(reply, "read", name)
            if isinstance(error, BlobNotFoundError):
                return None
            raise error
        committed, uncommitted = self._understood("list of blocks", block_lists, reply.body)
        etag = reply.headers.get("ETag")
        return BlockList(committed, uncommitted, self._understood("list of blocks", checked_etag, etag) if etag else "")

    def put_from_url(
        self,
        name: str,
        source_url: str,
        source_sas: SasToken | None,
        *,
        condition: Precondition = ANYTHING,
        tier: str = "",
        source_etag: str = "",
    ) -> CopiedBlob:
        """Put Blob From URL, or Copy Blob From URL where the server has only that (emulators).

        Both copy content properties and metadata, not the tier: give ``tier`` to set it. With ``source_etag`` only
        that version is copied. Raises ``CopySourceRefusedError``, ``SourceChangedError``. Put Blob From URL answers
        with the MD5 that the service computed of what it stored
        (https://learn.microsoft.com/rest/api/storageservices/put-blob-from-url#response-headers), the other with none.
        """
        headers = _copy_source(source_url, source_sas, source_etag)
        if tier:
            headers["x-ms-access-tier"] = tier
        add_condition(headers, condition)
        if self._put_from_url_works:
            reply = self._copy(name, _NOTHING, {**headers, "x-ms-blob-type": "BlockBlob"})
            self._put_from_url_works = not _lacks_request(reply)
        if not self._put_from_url_works:
            reply = self._copy(name, _NOTHING, {**headers, "x-ms-requires-sync": "true"})
        if reply.status not in (201, 202):
            raise self._error(reply, "write", name, copying=True)
        return copied(name, reply.headers)

    def put_block_from_url(
        self,
        name: str,
        block_id: str,
        source_url: str,
        source_sas: SasToken | None,
        *,
        start: int,
        length: int,
        source_etag: str = "",
    ) -> None:
        """Put Block From URL: ``length`` bytes from ``start`` of the source as one uncommitted block."""
        headers = _copy_source(source_url, source_sas, source_etag)
        headers["x-ms-source-range"] = f"bytes={start}-{start + length - 1}"
        reply = self._copy(name, {"comp": "block", "blockid": block_id}, headers)
        if reply.status != 201:
            raise self._error(reply, "write", name, copying=True)

    def delete(self, name: str, *, etag: str | None = None) -> bool:
        """Delete Blob, its snapshots included; False where there was none."""
        headers = {"x-ms-delete-snapshots": "include"}
        if etag:
            headers["If-Match"] = f'"{etag}"'
        reply = self._http.send("DELETE", self._path(name), _NOTHING, headers)
        if reply.status == 202:
            return True
        error = self._error(reply, "delete", name)
        if isinstance(error, BlobNotFoundError):
            # After a lost response, "not found" means that the first try succeeded.
            return reply.attempts > 1
        raise error

    def delete_many(self, names: Sequence[str], *, etags: Mapping[str, str] | None = None) -> Mapping[str, str]:
        """Single deletes of few, batches of many; single deletes as well where the server has no batches."""
        versions = etags or {}
        unsafe = {name: why for name in names if (why := reaches_another(name))}
        if unsafe:
            names = [name for name in names if name not in unsafe]
        singly = names if len(names) < _FEWEST_FOR_BATCHES else self._not_gone_in_batches(names, versions)
        reasons = side_by_side(lambda name: self._why_not_deleted(name, versions), singly, _DELETE_THREADS)
        return {**unsafe, **{name: reason for name, reason in zip(singly, reasons, strict=True) if reason}}

    # -- about the account --------------------------------------------------------------------------------

    def create_container(self) -> bool:
        """Create Container; False where there was one already. Raises ``StorageError``."""
        try:
            from blobsync.store.sdk import SdkContainer
        except ModuleNotFoundError:
            # As in blobsync.pyz.
            where = f"--account-name {self._container.account} --name {self._container.container}"
            hint = f"az storage container create --auth-mode login {where}"
            raise StorageError("this blobsync has no packages of Azure to create a container with", hint=hint) from None
        return SdkContainer(self._container, self._http).create()

    def user_delegation_key(self, starts: datetime, ends: datetime) -> DelegationKey:
        """Get User Delegation Key: what signs a SAS in the name of the identity; needs a bearer token."""
        from blobsync.store.sdk import SdkContainer

        return SdkContainer(self._container, self._http).user_delegation_key(starts, ends)

    def clock_skew(self) -> float | None:
        """By how many seconds this machine's clock is ahead of the service's, whatever else it answers."""
        query = {"restype": "container", "comp": "list", "maxresults": "1"}
        answer = self._http.send("GET", self._http.root, query, _NOTHING).answer()
        return skew_seconds(answer.headers, self._http.clock())

    def without_content(self, prefix: str, pages: int) -> Iterator[str]:
        """See :func:`blobsync.store.rest.uncommitted.blobs_without_content`."""
        return blobs_without_content(self._list_page, prefix, pages)

    def has_folders(self) -> bool:
        """Whether the account has a hierarchical namespace; False too where the service does not say.

        https://learn.microsoft.com/rest/api/storageservices/get-account-information
        """
        reply = self._http.send("GET", self._http.root, {"restype": "account", "comp": "properties"}, _NOTHING)
        found = reply.headers.get("x-ms-is-hns-enabled", "") if reply.status == 200 else ""
        reply.response.close()
        return found.lower() == "true"

    def recovery(self) -> Recovery:
        """Get Blob Service Properties, and a look at one blob: can what is deleted be had back?"""
        try:
            from blobsync.store.sdk import SdkContainer
        except ModuleNotFoundError:
            # As in blobsync.pyz.
            days = None
        else:
            days = SdkContainer(self._container, self._http).soft_delete_days()
        query = {"restype": "container", "comp": "list", "maxresults": "1", "include": "versions"}
        reply = self._http.send("GET", self._http.root, query, _NOTHING)
        return Recovery(days, b"<VersionId>" in reply.body if reply.status == 200 else None)

    # -- inside -------------------------------------------------------------------------------------------

    def _copy(self, name: str, query: Mapping[str, str], headers: Mapping[str, str]) -> Reply:
        return self._http.send("PUT", self._path(name), query, headers, b"", retry_bare_500=False)

    def _get(self, name: str, start: int, end: int | None, etag: str | None) -> Reply:
        headers = {}
        if start or end is not None:
            headers["x-ms-range"] = f"bytes={start}-{'' if end is None else end - 1}"
        if etag:
            headers["If-Match"] = f'"{etag}"'
        reply = self._http.send("GET", self._path(name), _NOTHING, headers, stream=True)
        if reply.status not in (200, 206):
            raise self._error(reply, "read", name)
        return reply

    def _list(self, prefix: str, delimiter: str) -> Iterator[BlobInfo | str]:
        query = {"restype": "container", "comp": "list", "include": "metadata"}
        if prefix:
            query["prefix"] = prefix
        if delimiter:
            query["delimiter"] = delimiter
        page = self._list_page(query, "")
        markers = Markers()
        while page:
            marker = self._understood("listing", markers.after, page)
            coming = Ahead(self._list_page, query, marker) if marker else None
            try:
                yield from list_page(page)
            except BadAnswerError as error:
                raise StorageError(f"cannot parse the listing of {self._container}: {error}") from error
            page = coming.result() if coming else b""

    def _understood(self, what: str, read: Callable[[_S], _T], said: _S) -> _T:
        """What ``read`` makes of an answer. Raises ``StorageError`` where that is not what the reference says."""
        try:
            return read(said)
        except BadAnswerError as error:
            raise StorageError(f"cannot parse the {what} of {self._container}: {error}") from error

    def _list_page(self, query: Mapping[str, str], marker: str) -> bytes:
        full = {**query, "marker": marker} if marker else query
        reply = self._http.send("GET", self._http.root, full, _NOTHING)
        if reply.status != 200:
            raise self._error(reply, "list")
        return reply.body

    def _not_gone_in_batches(self, names: Sequence[str], etags: Mapping[str, str]) -> Sequence[str]:
        """Delete in batches; returns those that are perhaps still there, for a closer look."""
        try:
            from blobsync.store.sdk import MAX_BATCH, SdkContainer
        except ModuleNotFoundError:
            return names
        sdk = SdkContainer(self._container, self._http)
        chunks = [names[first : first + MAX_BATCH] for first in range(0, len(names), MAX_BATCH)]

        def delete(chunk: Sequence[str]) -> bool:
            return sdk.delete_batch([(name, etags.get(name)) for name in chunk])

        gone = side_by_side(delete, chunks, _BATCH_THREADS)
        return [name for chunk, all_gone in zip(chunks, gone, strict=True) if not all_gone for name in chunk]

    def _why_not_deleted(self, name: str, etags: Mapping[str, str]) -> str:
        try:
            self.delete(name, etag=etags.get(name))
        except PreconditionFailedError as error:
            # A deleted blob has no matching version.
            return error.message if self.head(name) else ""
        except BlobsyncError as error:
            return error.message
        return ""


def _copy_source(url: str, sas: SasToken | None, etag: str) -> dict[str, str]:
    """https://learn.microsoft.com/rest/api/storageservices/put-blob-from-url#request-headers has the condition, as the
    pages of Put Block From URL and Copy Blob From URL do."""
    headers = {"x-ms-copy-source": with_sas(url, sas)}
    if etag:
        headers["x-ms-source-if-match"] = f'"{etag}"'
    return headers


def _lacks_request(reply: Reply) -> bool:
    # Azurite returns 501, or an empty 500, for unsupported requests.
    return reply.status == 501 or (reply.status == 500 and "x-ms-error-code" not in reply.headers)
