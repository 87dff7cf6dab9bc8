"""A service that lists any number of empty blobs or objects, generated on request, and supports nothing else.

List Blobs with ``prefix``, ``delimiter``, ``marker``, ``maxresults`` and ``startFrom``, 5,000 entries a page:
https://learn.microsoft.com/rest/api/storageservices/list-blobs. With ``arrow`` also in that form, then with
``endBefore``; ``test_blob_store`` has azure-storage-blob read it. ListObjectsV2 with ``continuation-token``, 1,000 a
page: https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html.
"""

from __future__ import annotations

import hashlib
import threading
from base64 import b64encode
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import Literal, NamedTuple, TypeVar
from urllib.parse import parse_qs, urlsplit

import nanoarrow as na
from nanoarrow.ipc import StreamWriter

PAGE, BUCKET_PAGE = 5_000, 1_000
PER_FOLDER = 1_000
FOLDER = "base/tree/"
ARROW = "application/vnd.apache.arrow.stream"
_Entry = TypeVar("_Entry")
_MD5 = b64encode(hashlib.md5(b"").digest()).decode()


def name_of(number: int, per_folder: int = PER_FOLDER) -> str:
    """The name of one blob below ``base/tree``; names sort like their numbers."""
    return f"f{number // per_folder:05}/entry-{number:09}.jpg"


class Names:
    """All names, none of them in memory."""

    def __init__(self, total: int, per_folder: int) -> None:
        self._total = total
        self._per_folder = per_folder

    def __len__(self) -> int:
        return self._total

    def __getitem__(self, number: int) -> str:
        return FOLDER + name_of(number, self._per_folder)

    def first(self, name: str) -> int:
        """The number of the first blob whose name is not less than ``name``."""
        return bisect_left(self, name)


class Which(NamedTuple):
    """The blobs with a prefix, from a name on, before another one."""

    prefix: str
    start: str = ""
    end: str = ""


def _blob(name: str, number: int) -> str:
    return (
        f"<Blob><Name>{name}</Name><Properties><Last-Modified>Fri, 20 Nov 2026 10:00:00 GMT"
        f"</Last-Modified><Etag>0x8DE{number:012X}</Etag><Content-Length>0</Content-Length><Content-Type>image/jpeg"
        f"</Content-Type><Content-MD5>{_MD5}</Content-MD5><BlobType>BlockBlob</BlobType><AccessTier>Hot</AccessTier>"
        "</Properties></Blob>"
    )


class Row(NamedTuple):
    """A blob in Arrow's form: the types of its columns are those of :data:`COLUMNS`."""

    name: str
    etag: str | None = None
    size: int | None = 0
    md5: str | None = _MD5
    # Microseconds since 1970.
    changed: int | None = 1_795_168_800_000_000
    content_type: str | None = "image/jpeg"
    blob_type: str | None = "BlockBlob"
    tier: str | None = "Hot"
    inferred: bool | None = None
    resource: str | None = None
    version: str | None = None


COLUMNS = {
    "Name": na.string(),
    "Etag": na.string(),
    "Content-Length": na.uint64(),
    "Content-MD5": na.string(),
    "Last-Modified": na.timestamp("us"),
    "Content-Type": na.string(),
    "BlobType": na.string(),
    "AccessTier": na.string(),
    "AccessTierInferred": na.bool_(),
    "ResourceType": na.string(),
    "VersionId": na.string(),
}


def arrow_page(
    rows: Sequence[Sequence[object]],
    marker: str = "",
    columns: Mapping[str, na.Schema] = COLUMNS,
    last: na.c_array | None = None,
) -> bytes:
    """One page of List Blobs in Arrow's form. A column that is an array already, as ``last``, is written as it is."""
    schema = na.c_schema(na.struct(dict(columns), nullable=False)).modify(metadata={"NextMarker": marker})
    values = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    children = [
        each[0] if each and hasattr(each[0], "children") else na.c_array(list(each), kind)
        for each, kind in zip(values, columns.values(), strict=False)
    ]
    children += [last] if last is not None else []
    array = na.c_array_from_buffers(schema, length=len(rows), buffers=[None], children=children)
    written = BytesIO()
    with StreamWriter.from_writable(written) as writer:
        writer.write_stream(array)
    return written.getvalue()


def _object(name: str, number: int) -> str:
    return (
        f"<Contents><Key>{name}</Key><LastModified>2026-11-20T10:00:00.000Z</LastModified>"
        f"<ETag>&quot;{number:032x}&quot;</ETag><Size>0</Size><StorageClass>STANDARD</StorageClass></Contents>"
    )


def _entries(
    total: int,
    which: Which,
    delimiter: str,
    marker: str,
    per_folder: int,
    most: int,
    entry: Callable[[str, int], _Entry],
) -> tuple[list[_Entry], list[str], str]:
    """The entries of one page, its folders, and the marker of the next one; ``marker`` is the number of its first."""
    names = Names(total, per_folder)
    prefix, start, stop = which
    number, end = names.first(max(prefix, start)), names.first(prefix + "\U0010ffff")
    end = min(end, names.first(stop)) if stop else end
    number = max(number, int(marker or 0))
    entries: list[_Entry] = []
    folders: list[str] = []
    while number < end and len(entries) + len(folders) < most:
        name = names[number]
        cut = name.find(delimiter, len(prefix)) if delimiter else -1
        if cut < 0:
            entries.append(entry(name, number))
            number += 1
        else:
            folders.append(name[: cut + 1])
            number = names.first(name[: cut + 1] + "\U0010ffff")
    return entries, folders, str(number) if number < end else ""


@lru_cache(maxsize=256)
def page(total: int, which: Which, delimiter: str, marker: str, per_folder: int, most: int) -> bytes:
    """One page of List Blobs."""
    entries, folders, rest = _entries(total, which, delimiter, marker, per_folder, min(most, PAGE), _blob)
    found = "".join(entries) + "".join(f"<BlobPrefix><Name>{each}</Name></BlobPrefix>" for each in folders)
    after = f"<NextMarker>{rest}</NextMarker>" if rest else "<NextMarker />"
    results = f"<EnumerationResults><Blobs>{found}</Blobs>{after}</EnumerationResults>"
    return f'<?xml version="1.0" encoding="utf-8"?>{results}'.encode()


@lru_cache(maxsize=256)
def bucket_page(total: int, prefix: str, delimiter: str, token: str, per_folder: int) -> bytes:
    """One page of ListObjectsV2."""
    which = Which(prefix)
    entries, folders, rest = _entries(total, which, delimiter, token, per_folder, BUCKET_PAGE, _object)
    found = "".join(entries) + "".join(f"<CommonPrefixes><Prefix>{each}</Prefix></CommonPrefixes>" for each in folders)
    after = f"<IsTruncated>{'true' if rest else 'false'}</IsTruncated>"
    after += f"<NextContinuationToken>{rest}</NextContinuationToken>" if rest else ""
    return f'<?xml version="1.0" encoding="UTF-8"?><ListBucketResult>{after}{found}</ListBucketResult>'.encode()


def _arrow_listing(total: int, which: Which, marker: str, per_folder: int, most: int) -> bytes:
    def row(name: str, number: int) -> Row:
        return Row(name, f"0x8DE{number:012X}", inferred=True)

    rows, _, rest = _entries(total, which, "", marker, per_folder, min(most, PAGE), row)
    return arrow_page(rows, rest)


@contextmanager
def listing_server(
    total: int, per_folder: int = PER_FOLDER, *, arrow: Literal["no", "refused", "yes"] = "no"
) -> Iterator[str]:
    """Run a service with ``total`` blobs, and as many objects in each bucket; yields its URL.

    ``arrow``: asked for it, the service answers in XML, refuses with 400, or has it.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
            prefix, delimiter = (query.get(name, "") for name in ("prefix", "delimiter"))
            if "list-type" in query:
                body = bucket_page(total, prefix, delimiter, query.get("continuation-token", ""), per_folder)
            else:
                which, most = Which(prefix, query.get("startFrom", "")), int(query.get("maxresults", PAGE))
                marker = query.get("marker", "")
                asked = ARROW in self.headers.get("Accept", "") and self.headers["x-ms-version"] >= "2026-10-06"
                if asked and arrow == "refused":
                    self.refuse()
                    return
                if asked and arrow == "yes":
                    ended = which._replace(end=query.get("endBefore", ""))
                    body = _arrow_listing(total, ended, marker, per_folder, most)
                else:
                    body = page(total, which, delimiter, marker, per_folder, most)
            self.send_response(200)
            self.send_header("Content-Type", ARROW if body.startswith(b"\xff") else "application/xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def refuse(self) -> None:
            self.send_response(400)
            self.send_header("x-ms-error-code", "OperationNotSupportedWithFeatureMissing")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_HEAD(self) -> None:
            self.send_response(404)
            self.send_header("x-ms-error-code", "BlobNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
