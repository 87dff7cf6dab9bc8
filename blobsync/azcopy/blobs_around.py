"""What stands in the folder that a whole folder is copied to, beside the blobs of the plan.

azcopy lists the source by itself and copies whatever it is shown, and no kernel confines it to names in a container. So
it gets such a copy only if it cannot replace any other blob, and afterwards the destination is compared
with the plan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from blobsync.base.file_states import RemoteState
from blobsync.store.ends import RemoteEnd


def blobs_below(end: RemoteEnd) -> Iterator[tuple[str, RemoteState]]:
    """Every blob of the folder by its name relative to it, those included that a survey takes for no data.

    Left out are stubs of folders (``hdi_isfolder``), which a service with folders makes by itself.
    """
    prefix = f"{end.name}/" if end.name else ""
    for blob in end.store.list_blobs(prefix):
        if not blob.is_folder_stub:
            yield blob.name[len(prefix) :], RemoteState(blob.size, blob.etag, blob.md5)


def first_other(end: RemoteEnd, planned: Collection[str]) -> str | None:
    """A blob of the folder that the plan does not have; None where there is none."""
    return next((name for name, _ in blobs_below(end) if name not in planned), None)
