"""Requests about one blob as steps, which :class:`RestBlobStore` takes one at a time, and :class:`RestOrders` many.

Each is named after its page under https://learn.microsoft.com/rest/api/storageservices/.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import final

from blobsync.base.azure_urls import ContainerUrl
from blobsync.base.errors import BlobNotFoundError, BlobsyncError, PreconditionFailedError
from blobsync.store.protocol import BlobInfo, BlobProperties, GetOrder, Order, Precondition, PutOrder
from blobsync.store.rest.errors import translate
from blobsync.store.rest.headers import add_condition, add_properties, info, read_asked, whole_info
from blobsync.store.rest.http import BlobHttp, Reply
from blobsync.store.rest.side_by_side import SideBySide
from blobsync.store.rest.steps import Steps
from blobsync.store.rest.xml import decode_md5

# Bytes that the answer to a small request may have: room for any error.
_SMALL_ANSWER = 1 << 20
_NOTHING: dict[str, str] = {}


@final
class BlobSteps:
    """The requests of one container."""

    def __init__(self, container: ContainerUrl, http: BlobHttp) -> None:
        self._container = container
        self._http = http

    def path(self, name: str) -> str:
        """Percent-encoded, as it is sent."""
        return self._http.path_of(name)

    def error(self, reply: Reply, what: str, name: str = "", *, copying: bool = False) -> BlobsyncError:
        """What an answer that is not the one hoped for means."""
        return translate(
            reply.answer(),
            what,
            self._container,
            name,
            now=self._http.clock(),
            copying=copying,
            sas_ended=self._http.signer.ended(),
        )

    def of(self, order: Order) -> Steps[BlobInfo | bytes]:
        """Those of a small request."""
        return self.put(order) if isinstance(order, PutOrder) else self._get(order)

    def head(self, name: str) -> Steps[BlobInfo | None]:
        """Get Blob Properties; None where there is no such blob."""
        reply = yield from self._http.tries("HEAD", self.path(name), _NOTHING, _NOTHING)
        if reply.status == 200:
            return whole_info(name, reply.headers)
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
        if reply.status == 409 and condition.absent and (yield from self.head(name)) is None:
            # Azurite treats uncommitted blocks of a killed upload as an existing blob; only Put Block
            # List knows better. The length of an id must be that of the others of the blob, azcopy's among them.
            block_id = b64encode(md5.hex().ljust(36, ".").encode()).decode()
            yield from self.put_block(name, block_id, body, md5)
            return (yield from self.put_block_list(name, [block_id], len(body), md5, properties, condition))
        # The service answers with the MD5 that it computed itself.
        seen = decode_md5(reply.headers.get("Content-MD5"))
        return (yield from self._written(reply, name, len(body), md5, seen))

    def put_block(self, name: str, block_id: str, body: bytes, md5: bytes) -> Steps[None]:
        """Put Block."""
        headers = {"Content-MD5": b64encode(md5).decode()}
        query = {"comp": "block", "blockid": block_id}
        reply = yield from self._http.tries("PUT", self.path(name), query, headers, body)
        if reply.status != 201:
            raise self.error(reply, "write", name)

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
        read_asked(order.name, reply, 0, order.etag)
        return reply.body

    def _written(
        self, reply: Reply, name: str, size: int, sent_md5: bytes | None, seen_md5: bytes | None
    ) -> Steps[BlobInfo]:
        if reply.status == 201:
            return info(name, reply.headers, size, seen_md5)
        error = self.error(reply, "write", name)
        if reply.attempts > 1 and isinstance(error, PreconditionFailedError):
            # The first try may have succeeded and only its response was lost: then the blob is ours.
            there = yield from self.head(name)
            if there is not None and there.size == size and there.md5 == sent_md5:
                return there
        raise error


@final
class RestOrders:
    """See :class:`blobsync.store.protocol.Orders`."""

    def __init__(self, driver: SideBySide, http: BlobHttp, steps: BlobSteps) -> None:
        self._driver = driver
        self._http = http
        self._steps = steps

    @property
    def under_way(self) -> int:
        """See the protocol."""
        return self._driver.under_way

    @property
    def throttled(self) -> int:
        """See the protocol."""
        return self._http.throttled

    def begin(self, key: object, order: Order) -> None:
        """See the protocol."""
        self._driver.begin(key, self._steps.of(order))

    def ended(self, seconds: float) -> list[tuple[object, BlobInfo | bytes | BlobsyncError]]:
        """See the protocol."""
        return self._driver.ended(seconds)

    def close(self) -> None:
        """See the protocol."""
        self._driver.close()
