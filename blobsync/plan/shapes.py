"""Refuses a blob ``t`` beside blobs ``t/...``, since no file system can have both.

blobsync creates no such pair, and shows how to resolve one.
"""

from __future__ import annotations

import shlex
from contextlib import suppress

from blobsync.base.background_calls import side_by_side
from blobsync.base.errors import AccessDeniedError, ShapeConflictError
from blobsync.base.locations import LocalLocation
from blobsync.plan.transfer_plan import Shape
from blobsync.store.open_locations import OpenBlob, OpenLocation
from blobsync.store.protocol import BlobInfo

_THREADS = 8


def both_hint(shown: str) -> str:
    """The hint if ``shown`` is a blob and a folder."""
    name = shlex.quote(shown)
    return f"'{shown}/' (with the slash) means the folder; 'blobsync rm --blob {name}' removes the blob alone"


def blob_hint(shown: str, end: OpenLocation, what: str) -> str:
    """The end of a hint about ``what``, which is in the way at ``end``: how to remove it, if it is a blob."""
    if isinstance(end, LocalLocation) or not what.endswith("file"):
        return ""
    return f", or remove the blob with 'blobsync rm --blob {shlex.quote(shown)}'"


def refuse_blob_above(end: OpenBlob, shape: Shape, shown: str, relative: str) -> None:
    """Raise ``ShapeConflictError`` if a file at or below ``end`` would be below the name of a blob.

    ``shown`` is ``end`` as a user would type it, and ``relative`` its part below the folder entry.
    One concurrent HEAD for each parent name, because a listing of the folder does not include them.
    """
    parts = end.name.split("/") if end.name else []
    depth = len(parts) + 1 if shape is Shape.FOLDER else len(parts)
    above = ["/".join(parts[:count]) for count in range(1, depth)]

    def head(name: str) -> BlobInfo | None:
        # A SAS of a single folder cannot read above it.
        with suppress(AccessDeniedError):
            return end.store.head(name)
        return None

    for blob in side_by_side(head, above, _THREADS):
        if blob is not None and not blob.is_folder_stub:
            there = end.store.container.child(blob.name)
            raise ShapeConflictError(
                f"{shown}: nothing was moved, because there is a blob {there}, which would be a folder as well",
                hint=_way_out(shown, relative, end.name[len(blob.name) :].count("/")),
                path=shown,
            )


def _way_out(shown: str, relative: str, levels: int) -> str:
    """The hint; the blob is ``levels`` names above ``shown``."""
    if levels > (relative.count("/") + 1 if relative else 0):
        return "use another path in the cluster file: no folder entry has that blob"
    blob = "/".join(shown.split("/")[: -levels or None])
    return f"'blobsync rm --blob {shlex.quote(blob)}' removes that blob alone; or use another name here"
