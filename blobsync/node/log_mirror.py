"""Copies a node's logs to the container while they grow, so that they outlive the machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from blobsync.base.errors import BlobsyncError
from blobsync.node.job import NodeJob
from blobsync.node.places import JobPlaces
from blobsync.store.rest.append import MAX_APPEND_BYTES, RestAppendBlobs


class NodeLogs:
    """The logs of one node's processes, and its own, as append blobs."""

    def __init__(self, job: NodeJob, places: JobPlaces) -> None:
        self._job = job
        self._places = places

    def bring_up(self) -> bool:
        """Append what is new; False when that failed for one of them."""
        target, fine = self._job.spec.logs, True
        if target is None:
            return True
        for path in self._own_logs():
            relative = path.relative_to(self._job.run_dir).as_posix()
            name = "/".join(part for part in (target.path, self._job.task, relative) if part)
            try:
                _bring_up(self._places.appendable(target.container), name, path)
            except (BlobsyncError, OSError) as error:
                # Not into the log that cannot be uploaded: it would never stop growing.
                self._job.complain(f"blobsync: log {path.name} is not mirrored: {error}")
                fine = False
        return fine

    def _own_logs(self) -> Iterator[Path]:
        first = self._job.node_rank * self._job.spec.procs_per_node
        for rank in range(first, first + self._job.spec.procs_per_node):
            if (log := self._job.rank_log(rank)).is_file():
                yield log
        if self._job.node_log.is_file():
            yield self._job.node_log


def _bring_up(blobs: RestAppendBlobs, name: str, path: Path) -> None:
    """A blob that is longer than the file is another file's: it is begun again."""
    there = blobs.size(name)
    if there is None or there > path.stat().st_size:
        blobs.create(name, "text/plain")
        there = 0
    with path.open("rb") as body:
        body.seek(there)
        while block := body.read(MAX_APPEND_BYTES):
            blobs.append(name, block, at=there)
            there += len(block)
