"""A stand-in for an account with versioning, or with soft delete: a reverse proxy before Azurite, which has neither.

What clients see is what Microsoft has published ("Blob versioning", "Soft delete for blobs", "List Blobs", "Undelete
Blob"), in the form that the tests of the Azure SDKs have recorded:

- with versioning, each write makes a version, whose id the answer names, and a deletion leaves the last one as an
  earlier version; a version is read and copied by ``versionid``; Undelete answers 200 and brings no blob back;
- with soft delete alone, a deleted blob is listed with ``include=deleted``, and Undelete brings it back as it was; what
  is overwritten stays as a deleted snapshot, listed with ``include=snapshots,deleted``. Undelete makes all of the
  blob's deleted snapshots active, which changes no blob; only then can they be copied. A blob is not deleted without
  its active snapshots.

It keeps the contents in memory, and answers listings with ``versions`` or ``deleted`` in one page. Not covered:
deletion of versions, snapshots that clients make, the end of the days. A blob that Undelete brings back has another
ETag here.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError
from azure.storage.blob import BlobClient, BlobProperties, BlobServiceClient

from tests.servers import child
from tests.servers.copy_source_proxy import error_response
from tests.servers.proxy import Link, Proxy, operation
from tests.servers.wire import Headers, Request, encode_response, read_body

DAYS = 7
_WRITES = ("put blob", "put block list", "put blob from url", "copy blob")
_DATE = "%a, %d %b %Y %H:%M:%S GMT"


@dataclass
class Kept:
    """A version, a deleted blob or a snapshot; ``state`` is ``current``, ``earlier``, ``deleted``, ``deleted snapshot``
    or ``snapshot``."""

    id: str
    data: bytes
    properties: BlobProperties
    state: str = "current"


class PastBlobs(Proxy):
    """``keeps`` is ``versions`` or ``deleted``; ``keys`` are those of Azurite's accounts."""

    def __init__(self, upstream: str, keys: Mapping[str, str], keeps: str) -> None:
        super().__init__(upstream)
        self._services = {
            account: BlobServiceClient(f"{upstream}/{account}", credential=key) for account, key in keys.items()
        }
        self._keeps = keeps
        # Each blob's by /account/container/name, the oldest first.
        self._kept: dict[str, list[Kept]] = {}
        self._count = 0

    async def handle(self, link: Link, request: Request) -> bool:
        parts = urlsplit(request.target)
        path, query = unquote(parts.path), {key: values[0] for key, values in parse_qs(parts.query).items()}
        name = operation(request)
        if query.get("restype") == "service" and query.get("comp") == "properties":
            return await self.reply(link, request, service_settings(soft_delete=self._keeps == "deleted"))
        if name == "list" and {"versions", "deleted"} & {*query.get("include", "").split(",")}:
            return await self.reply(link, request, self._listing(path, query))
        if query.get("comp") == "undelete":
            return await self.reply(link, request, await asyncio.to_thread(self._undelete, path))
        if "versionid" in query and request.method in ("GET", "HEAD"):
            return await self.reply(link, request, self._version(path, query["versionid"], request))
        source = request.get("x-ms-copy-source") or ""
        if re.search("versionid=|snapshot=", source) and name in ("put blob from url", "copy blob"):
            return await self.reply(link, request, await asyncio.to_thread(self._copied, path, source, request))
        if name == "delete blob" and (answer := self._of_snapshots(path, query, request)):
            return await self.reply(link, request, answer)
        if name in _WRITES or name == "delete blob":
            return await self._changed(link, request, path, deletes=name == "delete blob")
        if query.get("comp") == "batch":
            return await self.reply(link, request, error_response(501, "APINotImplemented", "Not implemented."))
        return await self.forward(link, request)

    async def _changed(self, link: Link, request: Request, path: str, *, deletes: bool) -> bool:
        """Pass a write or a deletion on, and keep what was there."""
        sent, reader, response = await self.send(link, request)
        body = await read_body(reader, response.framing(request.method))
        headers = response.without(lambda name: name in ("content-length", "transfer-encoding"))
        if deletes and response.status == 202:
            self._end(path, "earlier" if self._keeps == "versions" else "deleted")
        elif response.status in (201, 202):
            headers += await asyncio.to_thread(self._begin, path)
        head = encode_response(response.status, response.first[2], [*headers, ("Content-Length", str(len(body)))])
        link.writer.write(head + body)
        await link.writer.drain()
        self.count(request, response.status, sent, len(body))
        return not (request.last_on_connection() or response.last_on_connection())

    def _begin(self, path: str) -> Headers:
        """A blob was written: it is the current one from now on."""
        self._end(path, "earlier" if self._keeps == "versions" else "deleted snapshot")
        fetched = self._blob(path).download_blob()
        self._count += 1
        id = f"2026-11-27T20:{self._count // 60_000:02}:{self._count // 1000 % 60:02}.{self._count % 1000:03}0000Z"
        self._kept.setdefault(path, []).append(Kept(id, fetched.readall(), fetched.properties))
        return [("x-ms-version-id", id)] if self._keeps == "versions" else []

    def _end(self, path: str, state: str) -> None:
        for each in self._kept.get(path, ()):
            if each.state == "current":
                each.state = state
            elif (each.state, state) in (("deleted", "deleted snapshot"), ("snapshot", "deleted")):
                each.state = "deleted snapshot"

    def _of_snapshots(self, path: str, query: Mapping[str, str], request: Request) -> bytes:
        """The answer to the deletion of a snapshot, or of a blob that has some; else empty."""
        active = {each.id: each for each in self._kept.get(path, ()) if each.state == "snapshot"}
        if "snapshot" not in query:
            refused = active and request.get("x-ms-delete-snapshots") != "include"
            return error_response(409, "SnapshotsPresent", "The blob has snapshots.") if refused else b""
        if query["snapshot"] not in active:
            return error_response(404, "BlobNotFound", "The specified blob does not exist.")
        active[query["snapshot"]].state = "deleted snapshot"
        return encode_response(202, "Accepted", [("Content-Length", "0")])

    def _undelete(self, path: str) -> bytes:
        kept = self._kept.get(path)
        if not kept:
            return error_response(404, "BlobNotFound", "The specified blob does not exist.")
        for each in kept if self._keeps == "deleted" else ():
            if each.state == "deleted":
                store(self._blob(path), each)
                each.properties, each.state = self._blob(path).get_blob_properties(), "current"
            elif each.state == "deleted snapshot":
                each.state = "snapshot"
        return encode_response(200, "OK", [("Content-Length", "0")])

    def _found(self, path: str, id: str) -> Kept | None:
        return next((each for each in self._kept.get(path, ()) if each.id == id), None)

    def _version(self, path: str, id: str, request: Request) -> bytes:
        found = self._found(path, id)
        if found is None:
            return error_response(404, "BlobNotFound", "The specified blob does not exist.")
        properties = found.properties
        headers = [
            ("ETag", properties.etag),
            ("Last-Modified", properties.last_modified.strftime(_DATE)),
            ("Content-Type", properties.content_settings.content_type or "application/octet-stream"),
            ("Content-MD5", _md5(found)),
            *[("x-ms-blob-type", "BlockBlob"), ("x-ms-version-id", id), ("Content-Length", str(len(found.data)))],
        ]
        if request.get("x-ms-range"):
            # Readers ask for the first part of what is small, too.
            headers.append(("Content-Range", f"bytes 0-{len(found.data) - 1}/{len(found.data)}"))
            return encode_response(206, "Partial Content", headers) + found.data
        return encode_response(200, "OK", headers) + found.data

    def _copied(self, path: str, source: str, request: Request) -> bytes:
        parts = urlsplit(source)
        query = parse_qs(parts.query)
        found = self._found(unquote(parts.path), query.get("versionid", query.get("snapshot", [""]))[0])
        if found is None or "deleted" in found.state:
            return error_response(404, "CannotVerifyCopySource", "The specified blob does not exist.")
        if request.get("x-ms-source-if-match") not in (None, found.properties.etag):
            return error_response(412, "SourceConditionNotMet", "The source condition specified was not met.")
        try:
            made = store(self._blob(path), found, request.get("if-match"), absent=bool(request.get("if-none-match")))
        except HttpResponseError as error:
            code, status = str(error.error_code), error.status_code or 500  # type: ignore[attr-defined]
            return error_response(status, code, "The condition specified using HTTP conditional header(s) is not met.")
        headers = [("ETag", made["etag"]), ("Last-Modified", made["last_modified"].strftime(_DATE))]
        more = [*self._begin(path), ("Content-MD5", _md5(found)), ("Content-Length", "0")]
        return encode_response(201, "Created", [*headers, *more])

    def _blob(self, path: str) -> BlobClient:
        _, account, container, name = path.split("/", 3)
        return self._services[account].get_blob_client(container, name)

    def _listing(self, path: str, query: Mapping[str, str]) -> bytes:
        lead, included = f"{path.rstrip('/')}/", query["include"].split(",")
        shown = {"current", *(["earlier"] if "versions" in included else [])}
        if self._keeps == "deleted":
            shown |= {"deleted"} if "deleted" in included else set()
            shown |= {"snapshot"} if "snapshots" in included else set()
            shown |= {"deleted snapshot"} if {"snapshots", "deleted"} <= {*included} else set()
        tag = "VersionId" if self._keeps == "versions" and "versions" in included else ""
        return listing(
            entry(name.removeprefix(lead), each, "Snapshot" if "snapshot" in each.state else tag)
            for name, kept in sorted(self._kept.items())
            if name.startswith(lead + query.get("prefix", ""))
            for each in kept
            if each.state in shown
        )


def _md5(kept: Kept) -> str:
    return base64.b64encode(bytes(kept.properties.content_settings.content_md5 or b"")).decode()


def store(blob: BlobClient, kept: Kept, etag: str | None = None, *, absent: bool = False) -> dict[str, Any]:
    """Write a blob as it was; with ``etag`` or ``absent`` under that condition."""
    conditions: dict[str, Any] = {"etag": etag, "match_condition": MatchConditions.IfNotModified} if etag else {}
    made: dict[str, Any] = blob.upload_blob(
        kept.data,
        overwrite=not absent,
        content_settings=kept.properties.content_settings,
        metadata=kept.properties.metadata,
        **conditions,
    )
    return made


def entry(name: str, kept: Kept, tag: str) -> str:
    """One blob of a listing, in which ``tag`` has its id (empty: none)."""
    which = f"<{tag}>{kept.id}</{tag}>" if tag else ""
    if tag == "VersionId" and kept.state == "current":
        which += "<IsCurrentVersion>true</IsCurrentVersion>"
    gone = "<Deleted>true</Deleted>" if "deleted" in kept.state else ""
    date = kept.properties.last_modified.strftime(_DATE)
    days = (
        f"<DeletedTime>{date}</DeletedTime><RemainingRetentionDays>{DAYS - 1}</RemainingRetentionDays>" if gone else ""
    )
    etag = str(kept.properties.etag).strip('"')
    return (
        f"<Blob><Name>{escape(name)}</Name>{which}{gone}<Properties><Creation-Time>{date}</Creation-Time>"
        f"<Last-Modified>{date}</Last-Modified><Etag>{etag}</Etag><Content-Length>{len(kept.data)}</Content-Length>"
        f"<Content-Type>application/octet-stream</Content-Type><Content-Encoding /><Content-Language />"
        f"<Content-MD5>{_md5(kept)}</Content-MD5><Cache-Control /><Content-Disposition /><BlobType>BlockBlob</BlobType>"
        "<AccessTier>Hot</AccessTier><AccessTierInferred>true</AccessTierInferred><ServerEncrypted>true</ServerEncrypted>"
        f"{days}</Properties><OrMetadata /></Blob>"
    )


def listing(entries: Iterable[str]) -> bytes:
    """The answer to List Blobs, in one page."""
    return _xml(f"<EnumerationResults><Blobs>{''.join(entries)}</Blobs><NextMarker /></EnumerationResults>")


def service_settings(*, soft_delete: bool) -> bytes:
    """The answer to Get Blob Service Properties."""
    soft = f"<Enabled>true</Enabled><Days>{DAYS}</Days>" if soft_delete else "<Enabled>false</Enabled>"
    policy = f"<DeleteRetentionPolicy>{soft}</DeleteRetentionPolicy>"
    return _xml(f"<StorageServiceProperties>{policy}</StorageServiceProperties>")


def _xml(text: str) -> bytes:
    body = f'<?xml version="1.0" encoding="utf-8"?>{text}'.encode()
    return encode_response(200, "OK", [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))]) + body


@contextmanager
def past_blobs(upstream: str, keys: Mapping[str, str], keeps: str) -> Iterator[child.ServerProcess]:
    """Run the stand-in for ``upstream`` in a child process."""
    words = ["--upstream", upstream, "--keys", json.dumps(dict(keys)), "--keeps", keeps]
    with child.ServerProcess("past_blobs", words) as handle:
        yield handle


def main() -> None:
    options = child.parser("An account with versioning or soft delete, before Azurite.")
    options.add_argument("--keys", required=True, help="JSON: the keys of the accounts")
    options.add_argument("--keeps", required=True, choices=("versions", "deleted"))
    chosen: Any = options.parse_args()
    child.run(PastBlobs(chosen.upstream, json.loads(chosen.keys), chosen.keeps), chosen)


if __name__ == "__main__":
    main()
