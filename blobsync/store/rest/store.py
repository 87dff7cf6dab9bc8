"""A thin client of the Blob service's REST interface: :class:`RestBlobStore` and its operations."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from functools import partial
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar, final

from blobsync.base.background_calls import Ahead, side_by_side
from blobsync.base.errors import (
    BlobNotFoundError,
    BlobsyncError,
    PreconditionFailedError,
    StorageError,
)
from blobsync.base.locations import BlobContainer, quote_blob_name, reaches_another
from blobsync.base.redaction import SasToken, SignedUrl
from blobsync.store.protocol import (
    ANYTHING,
    BlobInfo,
    BlobProperties,
    BlockKind,
    BlockList,
    CopiedBlob,
    FileBody,
    GetOrder,
    Order,
    Precondition,
    PutOrder,
    Sent,
)
from blobsync.store.rest.error_codes import DIRECTORY_THERE, skew_seconds, translate
from blobsync.store.rest.headers import (
    add_condition,
    add_properties,
    byte_range,
    copied,
    demand_version,
    properties_of,
    read_asked,
    whole_info,
    with_sas,
    written,
)
from blobsync.store.rest.http import BlobHttp, SideBySide, Steps, answer_of
from blobsync.store.rest.transport import Response
from blobsync.store.rest.xml import (
    ARROW_START,
    BadAnswerError,
    Markers,
    block_lists,
    checked_etag,
    decode_md5,
    deleted_in,
    list_page,
    names_without_content,
)
from blobsync.store.sas_token import DelegationKey

if TYPE_CHECKING:
    from blobsync.store.account_features import AccountFeatures
    from blobsync.store.checksums import BlockChecks, FindCrc64
    from blobsync.store.resumed_reader import ResumedReader


# Limit in bytes of the response to a small request; enough for any error.
_SMALL_ANSWER = 1 << 20
# https://learn.microsoft.com/rest/api/storageservices/append-block: 4 MiB on every service version.
MAX_APPEND_BYTES = 4 << 20


@final
class BlobSteps:
    """The operations of one container."""

    def __init__(self, container: BlobContainer, http: BlobHttp, crc64: FindCrc64 | None = None) -> None:
        self._container = container
        self._http = http
        self._crc64 = crc64
        self.path = http.path_of
        self._checks: BlockChecks | None = None

    def error(self, reply: Response, what: str, name: str = "", *, copying: bool = False) -> BlobsyncError:
        """The error for an unexpected response."""
        return translate(
            answer_of(reply),
            what,
            self._container,
            name,
            now=self._http.clock(),
            copying=copying,
            sas_ended=self._http.signer.ended(),
        )

    def of(self, order: Order) -> Steps[BlobInfo | bytes]:
        """The steps of a small request."""
        return self.put(order) if isinstance(order, PutOrder) else self._get(order)

    def head(self, name: str) -> Steps[BlobInfo | None]:
        """Get Blob Properties; None if there is no such blob."""
        reply = yield from self._http.tries("HEAD", self.path(name), _NOTHING, _NOTHING)
        if reply.status == 200:
            return whole_info(name, reply.headers)
        if reply.status == 404 and name and reply.headers.get("x-ms-error-code") == "BlobNotFound":
            # So it is for each new file: no error has to be made.
            return None
        error = self.error(reply, "read", name)
        if isinstance(error, BlobNotFoundError):
            return None
        raise error

    def put(self, order: PutOrder) -> Steps[BlobInfo]:
        """Put Blob."""
        name, body, md5, properties, condition = order
        headers = {"x-ms-blob-type": "BlockBlob", "Content-MD5": b64encode(md5).decode()}
        add_properties(headers, properties)
        add_condition(headers, condition)
        reply = yield from self._http.tries("PUT", self.path(name), _NOTHING, headers, body)
        refused = reply.status == 409 and condition.absent
        there = (yield from self.head(name)) if refused else None
        if there is not None and there.is_folder_stub:
            raise translate(DIRECTORY_THERE, "write", self._container, name, now=self._http.clock())
        if refused and isinstance(body, bytes) and there is None:
            # Azurite treats uncommitted blocks of a killed upload as an existing blob; only Put Block
            # List knows better. The length of an id must be that of the others of the blob, azcopy's among them.
            block_id = b64encode(md5.hex().ljust(36, ".").encode()).decode()
            yield from self._put_block_with_md5(name, block_id, body, b64encode(md5).decode())
            return (yield from self.put_block_list(name, [block_id], len(body), md5, properties, condition))
        # The response has the MD5 that the service computed itself.
        seen = decode_md5(reply.headers.get("Content-MD5"))
        return (yield from self._written(reply, name, len(body), md5, seen))

    def put_block(self, name: str, block_id: str, body: bytes) -> Steps[None]:
        """Put Block, checked by the service: by the CRC64 where it can, else by the MD5."""
        # Late: most commands send no block.
        from blobsync.store.checksums import CRC64_HEADER, BlockChecks, content_md5, installed_crc64

        checks = self._checks = self._checks or BlockChecks((self._crc64 or installed_crc64)())
        crc64 = checks.crc64(body, self._http.server or "")
        if crc64 is not None:
            reply = yield from self._block(name, block_id, body, {CRC64_HEADER: crc64})
            verified = checks.verified(crc64, reply.status, reply.headers.get(CRC64_HEADER))
            if verified:
                return
            if verified is None:
                raise self.error(reply, "write", name)
        yield from self._put_block_with_md5(name, block_id, body, content_md5(body))

    def _put_block_with_md5(self, name: str, block_id: str, body: bytes, md5: str) -> Steps[None]:
        reply = yield from self._block(name, block_id, body, {"Content-MD5": md5})
        if reply.status != 201:
            raise self.error(reply, "write", name)

    def _block(self, name: str, block_id: str, body: bytes, check: Mapping[str, str]) -> Steps[Response]:
        query = {"comp": "block", "blockid": block_id}
        return (yield from self._http.tries("PUT", self.path(name), query, check, body))

    def put_block_list(
        self,
        name: str,
        block_ids: Sequence[str],
        size: int,
        md5: bytes,
        properties: BlobProperties,
        condition: Precondition,
        *,
        committed: AbstractSet[str] = frozenset(),
    ) -> Steps[BlobInfo]:
        """Put Block List."""
        lists = ("Committed" if block_id in committed else "Latest" for block_id in block_ids)
        blocks = "".join(f"<{kind}>{each}</{kind}>" for kind, each in zip(lists, block_ids, strict=True))
        body = f'<?xml version="1.0" encoding="utf-8"?><BlockList>{blocks}</BlockList>'.encode()
        headers = {"Content-Type": "application/xml"}
        if md5:
            headers["x-ms-blob-content-md5"] = b64encode(md5).decode()
        add_properties(headers, properties)
        add_condition(headers, condition)
        reply = yield from self._http.tries("PUT", self.path(name), {"comp": "blocklist"}, headers, body)
        return (yield from self._written(reply, name, size, md5 or None, md5 or None))

    def _get(self, order: GetOrder) -> Steps[bytes]:
        most = max(_SMALL_ANSWER, order.size)
        headers = {"If-Match": f'"{order.etag}"'}
        reply = yield from self._http.tries("GET", self.path(order.name), _NOTHING, headers, most=most)
        if reply.status != 200:
            raise self.error(reply, "read", order.name)
        demand_version(order.name, reply, order.etag)
        return reply.body

    def _written(
        self, reply: Response, name: str, size: int, sent_md5: bytes | None, seen_md5: bytes | None
    ) -> Steps[BlobInfo]:
        if reply.status == 201:
            return written(name, reply.headers, size, seen_md5)
        error = self.error(reply, "write", name)
        if reply.attempts > 1 and isinstance(error, PreconditionFailedError):
            # The first attempt may have succeeded although its response was lost; then the blob is ours.
            there = yield from self.head(name)
            if there is not None and there.size == size and there.md5 == sent_md5:
                return there
        raise error


_S = TypeVar("_S")
_T = TypeVar("_T")

_DELETE_THREADS = 32
# Batches take the service long, so several run at a time.
_BATCH_THREADS = 4
# Fewer are as fast one by one, also 40 ms away: importing the SDK takes 0.3 to 0.5 s (docs/performance.md, "Profile").
_FEWEST_FOR_BATCHES = 1000
_NO_PROPERTIES = BlobProperties()
_NOTHING: dict[str, str] = {}
# What a page has at most, also where nothing is said.
_WHOLE_PAGE = "5000"
# The oldest version whose List Blobs has startFrom.
_FROM_A_NAME = {"x-ms-version": "2026-02-06"}


@final
class RestBlobStore:
    """``storage.BlobStore`` for one container; safe to use from several threads.

    Creating one uses no network. ``close`` (or use as a context manager) drops idle connections and ends
    waiting retries. ``crc64`` finds the function that blocks are checked with; by default the installed one.
    """

    def __init__(self, container: BlobContainer, http: BlobHttp, crc64: FindCrc64 | None = None) -> None:
        self._container = container
        self._http = http
        self._put_from_url_works = True
        self._asks_for_arrow = True
        self._steps = BlobSteps(container, http, crc64)
        self._path, self._error = self._steps.path, self._steps.error

    @property
    def container(self) -> BlobContainer:
        return self._container

    def __enter__(self) -> RestBlobStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def requests(self) -> Mapping[str, int]:
        """The number of requests so far: write, list, read, delete."""
        return self._http.requests

    def close(self) -> None:
        """Drop idle connections; requests that wait for a retry fail at once."""
        self._http.close()

    def fail_soon(self) -> None:
        self._http.fail_soon()

    # -- reading ------------------------------------------------------------------------------------------

    def list_blobs(self, prefix: str = "") -> Iterator[BlobInfo]:
        """List Blobs, flat. The next page is fetched while the caller works on this one."""
        return self._only_blobs(prefix=prefix)

    def list_from(self, prefix: str, start: str, most: int = 0, end: str = "") -> Iterator[BlobInfo]:
        """List Blobs with ``startFrom`` and ``endBefore``, flat, in Arrow's form where the service has it."""
        return self._only_blobs(prefix=prefix, startFrom=start, maxresults=str(most or ""), endBefore=end)

    def first_blobs(self, prefix: str, most: int) -> Sequence[BlobInfo]:
        """List Blobs; a page may have fewer than it was asked for."""
        return list(islice(self._only_blobs(prefix=prefix, maxresults=str(most)), most))

    def list_folder(self, prefix: str = "") -> Iterator[BlobInfo | str]:
        """List Blobs with the delimiter ``/``."""
        return self._list(prefix=prefix, delimiter="/")

    def head(self, name: str) -> BlobInfo | None:
        """Get Blob Properties; None if there is no such blob."""
        return self._http.run(self._steps.head(name))

    def orders(self) -> SideBySide | None:
        """See the protocol; None with a library that blocks the thread that sends."""
        return self._http.side_by_side(self._steps.of)

    def properties(self, name: str) -> BlobProperties:
        """Get Blob Properties, the part that a copy carries over; raises ``BlobNotFoundError``."""
        reply = self._http.send("HEAD", self._path(name), _NOTHING, _NOTHING)
        if reply.status != 200:
            raise self._error(reply, "read", name)
        return properties_of(reply.headers)

    def open(self, name: str, *, start: int = 0, length: int | None = None, etag: str | None = None) -> ResumedReader:
        """Get Blob, ``length`` bytes from ``start`` (None: to the end); only version ``etag`` if given.

        A connection that breaks is resumed where it broke, from the same version of the blob.
        """
        from blobsync.store.resumed_reader import ResumedReader  # late: most commands read no blob

        return ResumedReader(self._get, self._http.resumes, StorageError, name, start, length, etag)

    def list_versions(self, prefix: str = "") -> Iterator[BlobInfo]:
        """List Blobs with ``include=versions``; a current blob has no ``version`` where the account keeps none."""
        return self._only_blobs(prefix=prefix, include="metadata,versions")

    def list_deleted(self, prefix: str = "", *, hns: bool = False) -> Iterator[BlobInfo]:
        """List Blobs with ``include=snapshots,deleted``, or with ``showonly=deleted``."""
        which = {"showonly": "deleted"} if hns else {"include": "metadata,snapshots,deleted"}
        pages = self._pages(prefix=prefix, **which)
        return (blob for page in pages for blob in self._understood("listing", deleted_in, page))

    def undelete(self, name: str, deletion: str = "") -> None:
        """Undelete Blob."""
        source = {"x-ms-undelete-source": f"{quote_blob_name(name)}?deletionid={deletion}"} if deletion else _NOTHING
        reply = self._http.send("PUT", self._path(name), {"comp": "undelete"}, source, b"")
        if reply.status != 200:
            raise self._error(reply, "restore", name)

    def delete_snapshot(self, name: str, time: str) -> None:
        """Delete Blob with ``snapshot``."""
        reply = self._http.send("DELETE", self._path(name), {"snapshot": time}, _NOTHING)
        if reply.status not in (202, 404):
            raise self._error(reply, "delete", name)

    def open_version(self, name: str, version: str, *, start: int = 0, length: int | None = None) -> ResumedReader:
        """Get Blob with ``versionid``; a broken connection is resumed."""
        from blobsync.store.resumed_reader import ResumedReader

        get = partial(self._get, version=version)
        return ResumedReader(get, self._http.resumes, StorageError, name, start, length)

    # -- writing ------------------------------------------------------------------------------------------

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
        """Put Blob: the whole blob in one request; the service checks ``md5`` and stores it as Content-MD5."""
        return self._http.run(self._steps.put(PutOrder(name, body, md5, properties, condition)), sent)

    def put_block(self, name: str, block_id: str, body: bytes, *, sent: Sent | None = None) -> None:
        """Put Block: one uncommitted block, checked by the service."""
        self._http.run(self._steps.put_block(name, block_id, body), sent)

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

        ``Latest`` lets a retry after a lost response find the blocks that the first attempt committed. Blocks in
        ``committed`` must not be replaced by a block that another writer put under the same id.
        """
        return self._http.run(
            self._steps.put_block_list(name, block_ids, size, md5, properties, condition, committed=committed)
        )

    def block_list(self, name: str, kind: BlockKind = "all") -> BlockList | None:
        """Get Block List, also of blocks that were never committed; None if there is neither."""
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
        source_url: str | SignedUrl,
        source_sas: SasToken | None,
        *,
        start: int,
        length: int,
        source_etag: str = "",
        source_md5: bytes | None = None,
    ) -> int | None:
        """Put Block From URL: ``length`` bytes from ``start`` of the source as one uncommitted block.

        https://learn.microsoft.com/rest/api/storageservices/put-block-from-url has the headers of both ways.
        """
        headers = _copy_source(source_url, source_sas, source_etag)
        headers["x-ms-source-range"] = byte_range(start, length)
        if source_md5 is not None:
            headers["x-ms-source-content-md5"] = b64encode(source_md5).decode()
        reply = self._copy(name, {"comp": "block", "blockid": block_id}, headers)
        if reply.status != 201:
            raise self._error(reply, "write", name, copying=True)
        from blobsync.store.checksums import crc64_of_header  # late: few commands copy from elsewhere

        return crc64_of_header(reply.headers.get("x-ms-content-crc64"))

    def delete(self, name: str, *, etag: str | None = None) -> bool:
        """Delete Blob with its snapshots; False if there was none."""
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
        """Delete few blobs one by one, many in batches, if the server has batches."""
        versions = etags or {}
        unsafe = {name: why for name in names if (why := reaches_another(name))}
        if unsafe:
            names = [name for name in names if name not in unsafe]
        singly = names if len(names) < _FEWEST_FOR_BATCHES else self._not_gone_in_batches(names, versions)
        reasons = side_by_side(lambda name: self._why_not_deleted(name, versions), singly, _DELETE_THREADS)
        return {**unsafe, **{name: reason for name, reason in zip(singly, reasons, strict=True) if reason}}

    # -- append blobs, which only grow at their end, such as the log of a job -------------------------------

    def create_appendable(self, name: str, content_type: str) -> None:
        """Put Blob: an empty append blob, which replaces any existing blob."""
        headers = {"x-ms-blob-type": "AppendBlob", "x-ms-blob-content-type": content_type}
        reply = self._http.send("PUT", self._path(name), _NOTHING, headers, b"")
        if reply.status != 201:
            raise self._error(reply, "write", name)

    def append(self, name: str, body: bytes, *, at: int) -> None:
        """Append Block: at most ``MAX_APPEND_BYTES``, where the blob is ``at`` bytes long.

        Raises ``PreconditionFailedError`` if it has another length. A block whose response was lost is not written
        twice.
        """
        from blobsync.store.checksums import content_md5

        headers = {"Content-MD5": content_md5(body), "x-ms-blob-condition-appendpos": str(at)}
        reply = self._http.send("PUT", self._path(name), {"comp": "appendblock"}, headers, body)
        if reply.status == 201:
            return
        error = self._error(reply, "write", name)
        if isinstance(error, PreconditionFailedError) and reply.attempts > 1:
            there = self.head(name)
            if there is not None and there.size == at + len(body):
                return
        raise error

    def appendable_size(self, name: str) -> int | None:
        """The size of the append blob in bytes; None if there is none, or if the blob has another type."""
        found = self.head(name)
        return found.size if found is not None and found.blob_type == "AppendBlob" else None

    # -- about the account --------------------------------------------------------------------------------

    def create_container(self) -> bool:
        """Create Container; False if it exists already. Raises ``StorageError``."""
        try:
            from blobsync.store.sdk import SdkContainer
        except ModuleNotFoundError:
            # As in blobsync.pyz.
            where = f"--account-name {self._container.account} --name {self._container.name}"
            hint = f"az storage container create --auth-mode login {where}"
            raise StorageError("this blobsync has no packages of Azure to create a container with", hint=hint) from None
        return SdkContainer(self._container, self._http).create()

    def user_delegation_key(self, starts: datetime, ends: datetime) -> DelegationKey:
        """Get User Delegation Key, which signs a SAS in the name of the identity; needs a bearer token."""
        from blobsync.store.sdk import SdkContainer

        return SdkContainer(self._container, self._http).user_delegation_key(starts, ends)

    def clock_skew(self) -> float | None:
        """How many seconds this machine's clock is ahead of the service's, whatever the response."""
        query = {"restype": "container", "comp": "list", "maxresults": "1"}
        answer = answer_of(self._http.send("GET", self._http.root, query, _NOTHING))
        return skew_seconds(answer.headers, self._http.clock())

    def without_content(self, prefix: str, pages: int) -> Iterator[str]:
        """Names of empty blobs below ``prefix`` and of blobs with uncommitted blocks only, from the first ``pages`` of
        the listing.

        https://learn.microsoft.com/rest/api/storageservices/list-blobs: of the latter it returns little more than the
        name.
        """
        found = islice(self._pages(prefix=prefix, include="uncommittedblobs", maxresults=_WHOLE_PAGE), pages)
        return (name for page in found for name in self._understood("listing", names_without_content, page))

    def features(self) -> AccountFeatures:
        from blobsync.store.rest.account_settings import ask  # late: most commands do not ask

        return ask(self._http)

    # -- inside -------------------------------------------------------------------------------------------

    def _copy(self, name: str, query: Mapping[str, str], headers: Mapping[str, str]) -> Response:
        return self._http.run(self._http.tries("PUT", self._path(name), query, headers, b"", retry_bare_500=False))

    def _get(
        self, name: str, start: int, length: int | None, etag: str | None, version: str = ""
    ) -> tuple[BlobInfo, Callable[[], BlobProperties], Response]:
        headers = {}
        if start or length is not None:
            headers["x-ms-range"] = byte_range(start, length)
        if etag:
            headers["If-Match"] = f'"{etag}"'
        query = {"versionid": version} if version else _NOTHING
        reply = self._http.run(self._http.tries("GET", self._path(name), query, headers, most=0))
        if reply.status == 416 and not start and length is not None:
            # An empty blob has no valid range, not even one that starts at 0.
            reply.close()
            return self._get(name, 0, None, etag, version)
        if reply.status not in (200, 206):
            raise self._error(reply, "read", name)
        try:
            return read_asked(name, reply, start, etag), partial(properties_of, reply.headers), reply
        except BaseException:
            reply.close()
            raise

    def _only_blobs(self, **which: str) -> Iterator[BlobInfo]:
        return (entry for entry in self._list(**which) if isinstance(entry, BlobInfo))

    def _list(self, **which: str) -> Iterator[BlobInfo | str]:
        for page in self._pages(**which):
            try:
                yield from _blobs_of(page)
            except BadAnswerError as error:
                raise StorageError(f"cannot parse the listing of {self._container}: {error}") from error

    def _pages(self, include: str = "metadata", **which: str) -> Iterator[bytes]:
        """The pages of List Blobs. Each is fetched while the caller works on the one before, but for short ones."""
        query = {"restype": "container", "comp": "list", "include": include}
        query |= {name: value for name, value in which.items() if value}
        page = self._list_page(query, "")
        markers = Markers()
        while page:
            marker = self._understood("listing", partial(_marker_after, markers), page)
            ask = partial(self._list_page, query, marker)
            coming = (ask if "maxresults" in query else Ahead(ask).result) if marker else bytes
            yield page
            page = coming()

    def _understood(self, what: str, read: Callable[[_S], _T], said: _S) -> _T:
        """Parse a response with ``read``. Raises ``StorageError`` if it is malformed."""
        try:
            return read(said)
        except BadAnswerError as error:
            raise StorageError(f"cannot parse the {what} of {self._container}: {error}") from error

    def _list_page(self, query: Mapping[str, str], marker: str) -> bytes:
        full = {**query, "marker": marker} if marker else dict(query)
        is_from_a_name = "startFrom" in query
        if is_from_a_name and self._asks_for_arrow:
            from blobsync.store.rest import arrow  # late: only large listings ask for it

            reply = self._http.send("GET", self._http.root, full, arrow.HEADERS)
            # An account without such listings answers in XML, or refuses.
            self._asks_for_arrow = reply.status == 200 and arrow.is_readable(reply.body)
            if reply.status == 200 and (self._asks_for_arrow or not reply.body.startswith(ARROW_START)):
                return reply.body
        full.pop("endBefore", None)
        reply = self._http.send("GET", self._http.root, full, _FROM_A_NAME if is_from_a_name else _NOTHING)
        if reply.status != 200:
            raise self._error(reply, "list")
        return reply.body

    def _not_gone_in_batches(self, names: Sequence[str], etags: Mapping[str, str]) -> Sequence[str]:
        """Delete in batches; returns the names that may still exist."""
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
            # A blob that is gone does not match the version.
            return error.message if self.head(name) else ""
        except BlobsyncError as error:
            is_full = isinstance(error, StorageError) and error.service_code == "DirectoryIsNotEmpty"
            return "" if is_full else error.message
        return ""


def _blobs_of(page: bytes) -> Iterable[BlobInfo | str]:
    """What a page of a listing has; raises ``BadAnswerError``."""
    if not page.startswith(ARROW_START):
        return list_page(page)
    from blobsync.store.rest.arrow import blobs_of

    return blobs_of(page)


def _marker_after(markers: Markers, page: bytes) -> str:
    if not page.startswith(ARROW_START):
        return markers.after(page)
    from blobsync.store.rest.arrow import marker_after

    return marker_after(markers, page)


def _copy_source(url: str | SignedUrl, sas: SasToken | None, etag: str) -> dict[str, str]:
    """https://learn.microsoft.com/rest/api/storageservices/put-blob-from-url#request-headers has the condition, as the
    pages of Put Block From URL and Copy Blob From URL do."""
    headers = {"x-ms-copy-source": url.reveal() if isinstance(url, SignedUrl) else with_sas(url, sas)}
    if etag:
        headers["x-ms-source-if-match"] = f'"{etag}"'
    return headers


def _lacks_request(reply: Response) -> bool:
    # Azurite returns 501, or an empty 500, for unsupported requests.
    return reply.status == 501 or (reply.status == 500 and "x-ms-error-code" not in reply.headers)
