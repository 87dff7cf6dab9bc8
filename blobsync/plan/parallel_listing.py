"""Lists a large container, several folders at a time.

The pages of a listing have to be requested one after the other, 5,000 blobs at a time: 2,000 pages for 10 million
blobs. So a listing that has not ended after some pages is begun anew by the folders below it, which are listed in
parallel and sorted on the disk. A folder that contains only files stays one listing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import islice
from queue import Empty, Full, Queue, SimpleQueue

from blobsync.local.sorted_runs import SortedRuns, Spill
from blobsync.store.protocol import BlobInfo, BlobSource, BlobStore

# Blobs after which a listing counts as long: 20 pages.
LONG = 100_000
# Listings at a time, and the minimum number of prefixes to share among them.
_THREADS = 4
_SHARES = 16
# Maximum number of folders to open for their subfolders, and of names in such a folder.
_MOST_OPENED = 64
_MOST_NAMES = 200_000
# Blobs in each batch, and seconds between two checks whether the listing was abandoned.
_HANDFUL = 1000
_PATIENCE = 0.2


def list_wide(
    store: BlobSource, wide: BlobStore | None, prefix: str, spill: Spill, long: int = LONG
) -> Iterator[BlobInfo]:
    """As ``store.list_blobs(prefix)``: every blob once, in the service's order unless the listing is long.

    ``wide`` is the container, None if ``store`` is only a remembered listing. Raises the store's errors.
    """
    listing = store.list_blobs(prefix)
    listed_names: set[str] = set()
    for blob in listing:
        yield blob
        if wide is None:
            continue
        listed_names.add(blob.name)
        if len(listed_names) >= long:
            break
    shares = _shares(wide, prefix) if wide is not None and len(listed_names) >= long else None
    if wide is None or shares is None:
        yield from listing
        return
    runs = SortedRuns(spill)
    for each in shares.blobs:
        runs.add(*each)
    for handful in _side_by_side(wide, shares.prefixes):
        for each in handful:
            # In an opened folder: already listed.
            if each.name[: each.name.rfind("/") + 1] not in shares.opened:
                runs.add(*each)
    yield from (BlobInfo(*row) for row in runs if row[0] not in listed_names)


class _Shares:
    """``prefixes`` cover all blobs except ``blobs``, which are directly in the folders ``opened``."""

    def __init__(self) -> None:
        self.prefixes: list[str] = []
        self.blobs: list[BlobInfo] = []
        self.opened: set[str] = set()


def _shares(store: BlobStore, prefix: str) -> _Shares | None:
    """How to divide the listing; None if it has too few folders."""
    found = _Shares()
    waiting, whole = [prefix], list[str]()
    while waiting and len(waiting) + len(whole) < _SHARES and len(found.opened) < _MOST_OPENED:
        folder = waiting.pop(0)
        level = list(islice(store.list_folder(folder), _MOST_NAMES + 1))
        if len(level) > _MOST_NAMES:
            whole.append(folder)
            continue
        found.opened.add(folder)
        found.blobs += (each for each in level if isinstance(each, BlobInfo))
        waiting += (each for each in level if isinstance(each, str))
    found.prefixes = [*whole, *_common(waiting)]
    return found if len(found.prefixes) > 1 else None


def _common(folders: Sequence[str]) -> Sequence[str]:
    """Fewer prefixes that cover the same folders, each once: many small folders would need a request each."""
    if len(folders) <= _MOST_OPENED:
        return folders
    length = 1
    while len(beginnings := {folder[:length] for folder in folders}) < _SHARES:
        length += 1
    return sorted(beginnings)


def _side_by_side(store: BlobStore, prefixes: Sequence[str]) -> Iterator[list[BlobInfo]]:
    threads = _ListingThreads(store, prefixes)
    working = min(_THREADS, len(prefixes))
    for _ in range(working):
        threading.Thread(target=threads.work, daemon=True).start()
    try:
        while working:
            found = threads.done.get()
            if isinstance(found, BaseException):
                raise found
            if found is None:
                working -= 1
            else:
                yield found
    finally:
        threads.gone.set()


class _ListingThreads:
    """Threads that list one prefix after the other. ``done`` gets their results, and None from each at its end."""

    def __init__(self, store: BlobStore, prefixes: Sequence[str]) -> None:
        self._store = store
        self._todo: SimpleQueue[str] = SimpleQueue()
        for prefix in prefixes:
            self._todo.put(prefix)
        self.done: Queue[list[BlobInfo] | BaseException | None] = Queue(maxsize=2 * _THREADS)
        self.gone = threading.Event()

    def work(self) -> None:
        try:
            while not self.gone.is_set():
                listing = self._store.list_blobs(self._todo.get_nowait())
                while (handful := list(islice(listing, _HANDFUL))) and not self.gone.is_set():
                    self._put(handful)
        except Empty:
            self._put(None)
        except BaseException as error:  # noqa: BLE001 - raised again where the blobs are wanted
            self._put(error)

    def _put(self, what: list[BlobInfo] | BaseException | None) -> None:
        while not self.gone.is_set():
            try:
                self.done.put(what, timeout=_PATIENCE)
                return
            except Full:
                continue
