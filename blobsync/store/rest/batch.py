"""Many deletes in one request: the multipart bodies of Blob Batch.

https://learn.microsoft.com/rest/api/storageservices/blob-batch
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from blobsync.store.rest.auth import Signer
from blobsync.store.rest.xml import BadAnswerError

# The most that one request may hold.
MAX_BATCH = 256

_BOUNDARY = "batch_blobsync"


class BatchPart(NamedTuple):
    """One answer inside a batch: which sub-request (Content-ID), its HTTP status and error code."""

    content_id: int
    status: int
    code: str = ""


def batch_of_deletes(blobs: Sequence[tuple[str, str | None]], signer: Signer) -> tuple[bytes, str]:
    """The body that deletes these blobs with their snapshots, and its Content-Type.

    ``blobs`` are percent-encoded paths, each with the ETag that it must still have, or None; each part is signed by
    itself and numbered by its place.
    """
    parts = []
    for number, (path, etag) in enumerate(blobs):
        # No x-ms-version: parts take it from the whole request and must not repeat it.
        headers = {"x-ms-delete-snapshots": "include", "Content-Length": "0"}
        if etag:
            headers["If-Match"] = f'"{etag}"'
        query = signer.sign("DELETE", path, {}, headers)
        lines = [
            f"--{_BOUNDARY}",
            "Content-Type: application/http",
            "Content-Transfer-Encoding: binary",
            f"Content-ID: {number}",
            "",
            f"DELETE {path}?{query} HTTP/1.1" if query else f"DELETE {path} HTTP/1.1",
            *(f"{key}: {value}" for key, value in headers.items()),
            "",
            "",
        ]
        parts.append("\r\n".join(lines))
    return ("".join(parts) + f"--{_BOUNDARY}--\r\n").encode(), f"multipart/mixed; boundary={_BOUNDARY}"


def batch_parts(body: bytes, content_type: str) -> list[BatchPart]:
    """The answers inside a ``multipart/mixed`` body, in the order in which they come."""
    match = re.search(r'boundary="?([^";]+)"?', content_type)
    if match is None:
        raise BadAnswerError("a batch answer without a boundary")
    parts = []
    for chunk in body.split(b"--" + match.group(1).encode())[1:]:
        status = re.search(rb"HTTP/1\.[01] (\d{3})", chunk)
        if status is None:
            continue
        content_id = re.search(rb"(?im)^content-id:\s*(\d+)", chunk)
        code = re.search(rb"(?im)^x-ms-error-code:\s*(\S+)", chunk)
        parts.append(
            BatchPart(
                int(content_id.group(1)) if content_id else -1,
                int(status.group(1)),
                code.group(1).decode() if code else "",
            )
        )
    return parts
