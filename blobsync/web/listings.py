"""Listings of container folders, page by page.

A folder of 100,000 blobs is listed once, as far as somebody looks: the listing stays open while its pages are read.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from blobsync.project.api import Project
from blobsync.project.browse import ListingEntry
from blobsync.web.source import Source

PAGE = 200
# Each keeps the entries that were looked at, and a connection.
_KEPT = 6


@dataclass
class OpenListing:
    """One folder as it was when somebody began to look at it."""

    path: str
    cluster: str
    project: Project
    rest: Iterator[ListingEntry]
    id: str = field(default_factory=lambda: secrets.token_hex(6))
    entries: list[ListingEntry] = field(default_factory=list)
    complete: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def page(self, number: int) -> list[ListingEntry]:
        """The entries of a page, from 0 on. Raises ``BlobsyncError``."""
        with self.lock:
            wanted = (number + 1) * PAGE + 1
            if not self.complete and len(self.entries) < wanted:
                more = list(islice(self.rest, wanted - len(self.entries)))
                self.complete = len(self.entries) + len(more) < wanted
                self.entries += more
            return self.entries[number * PAGE : (number + 1) * PAGE]


class Listings:
    """The latest ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, OpenListing] = {}

    def find(self, source: Source, path: str, id: str) -> OpenListing:
        """The listing of that id, or a new one of ``path``. Raises ``BlobsyncError``."""
        with self._lock:
            known = self._open.get(id)
        if known is not None and (known.cluster, known.path) == (source.cluster_name, path):
            return known
        project = source.open()
        made = OpenListing(path, source.cluster_name, project, project.list(f"{project.root}/{path}/"))
        with self._lock:
            self._open[made.id] = made
            old = [self._open.pop(each) for each in list(self._open)[:-_KEPT]]
        for each in old:
            _close(each)
        return made

    def close(self) -> None:
        """All of them."""
        with self._lock:
            old, self._open = list(self._open.values()), {}
        for each in old:
            _close(each)


def _close(listing: OpenListing) -> None:
    with listing.lock:
        listing.complete = True
        listing.project.close()
