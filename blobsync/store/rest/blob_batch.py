"""Blob Batch: one request that deletes many blobs.

https://learn.microsoft.com/rest/api/storageservices/blob-batch. Each part is a request of its own, with its own
credential.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence

from blobsync.store.rest.http import BlobHttp

# Parts of one request.
MAX_BATCH = 256

_STATUS = re.compile(rb"(?m)^HTTP/1\.[01] ([0-9]{3}) ")
_QUERY = {"restype": "container", "comp": "batch"}


def delete_batch(http: BlobHttp, blobs: Sequence[tuple[str, str | None]]) -> bool:
    """Delete up to ``MAX_BATCH`` blobs with their snapshots, each only if it is still the version of its ETag.

    True: all of them are deleted. False: perhaps not all, or the server does not support batches. Which ones is not
    told: all parts of the answer count together.
    """
    boundary = f"batch_{secrets.token_hex(16)}"
    parts = [_part(http, number, name, etag) for number, (name, etag) in enumerate(blobs)]
    body = "".join(f"--{boundary}\r\n{part}\r\n" for part in parts) + f"--{boundary}--\r\n"
    headers = {"Content-Type": f"multipart/mixed; boundary={boundary}"}
    reply = http.send("POST", http.root, _QUERY, headers, body.encode())
    found = _STATUS.findall(reply.body) if reply.status == 202 else []
    return len(found) == len(blobs) and {*found} <= {b"202", b"404"}


def _part(http: BlobHttp, number: int, name: str, etag: str | None) -> str:
    path, headers = http.path_of(name), {"x-ms-delete-snapshots": "include", "Content-Length": "0"}
    if etag:
        headers["If-Match"] = f'"{etag}"'
    query = http.signer.sign("DELETE", path, {}, headers)
    lines = [
        *("Content-Type: application/http", "Content-Transfer-Encoding: binary", f"Content-ID: {number}", ""),
        f"DELETE {path}{'?' if query else ''}{query} HTTP/1.1",
        *(f"{field}: {value}" for field, value in headers.items()),
    ]
    return "".join(f"{line}\r\n" for line in lines)
