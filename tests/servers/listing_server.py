"""A service that lists any number of empty blobs, generated on request, and supports nothing else.

List Blobs with ``prefix``, ``delimiter`` and ``marker``, 5,000 entries a page:
https://learn.microsoft.com/rest/api/storageservices/list-blobs.
"""

from __future__ import annotations

import hashlib
import threading
from base64 import b64encode
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

PAGE = 5_000
PER_FOLDER = 1_000
FOLDER = "base/tree/"
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


def _blob(name: str, number: int) -> str:
    return (
        f"<Blob><Name>{name}</Name><Properties><Last-Modified>Fri, 20 Nov 2026 10:00:00 GMT"
        f"</Last-Modified><Etag>0x8DE{number:012X}</Etag><Content-Length>0</Content-Length><Content-Type>image/jpeg"
        f"</Content-Type><Content-MD5>{_MD5}</Content-MD5><BlobType>BlockBlob</BlobType><AccessTier>Hot</AccessTier>"
        "</Properties></Blob>"
    )


@lru_cache(maxsize=256)
def page(total: int, prefix: str, delimiter: str, marker: str, per_folder: int = PER_FOLDER) -> bytes:
    """One page; ``marker`` is the number of its first blob."""
    names = Names(total, per_folder)
    number, end = names.first(prefix), names.first(prefix + "\U0010ffff")
    number = max(number, int(marker or 0))
    found: list[str] = []
    while number < end and len(found) < PAGE:
        name = names[number]
        cut = name.find(delimiter, len(prefix)) if delimiter else -1
        if cut < 0:
            found.append(_blob(name, number))
            number += 1
        else:
            found.append(f"<BlobPrefix><Name>{name[: cut + 1]}</Name></BlobPrefix>")
            number = names.first(name[: cut + 1] + "\U0010ffff")
    rest = f"<NextMarker>{number}</NextMarker>" if number < end else "<NextMarker />"
    results = f"<EnumerationResults><Blobs>{''.join(found)}</Blobs>{rest}</EnumerationResults>"
    return f'<?xml version="1.0" encoding="utf-8"?>{results}'.encode()


@contextmanager
def listing_server(total: int, per_folder: int = PER_FOLDER) -> Iterator[str]:
    """Run a service with ``total`` blobs; yields its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
            prefix, delimiter, marker = (query.get(name, "") for name in ("prefix", "delimiter", "marker"))
            body = page(total, prefix, delimiter, marker, per_folder)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.send_response(404)
            self.send_header("x-ms-error-code", "BlobNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
