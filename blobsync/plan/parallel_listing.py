"""Lists a large container, several folders at a time.

One listing is a chain: each page names the next one, 5,000 blobs on. So a container with 10 million blobs takes 2,000
answers one after the other. A listing that is still not at its end after some pages is therefore begun anew by the
folders below it, which are listed side by side and sorted on the disk. A folder that holds files alone stays one chain.
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
# Listings at a time, and among how many they are shared out at least.
_THREADS = 4
_SHARES = 16
# Folders that are opened to find enough others, and names that one of them may have to be opened.
_MOST_OPENED = 64
_MOST_NAMES = 200_000
# Blobs handed on at a time, and seconds after which a thread looks whether somebody still wants them.
_HANDFUL = 1000
_PATIENCE = 0.2


def list_wide(
    store: BlobSource, wide: BlobStore | None, prefix: str, spill: Spill, long: int = LONG
) -> Iterator[BlobInfo]:
    """``store.list_blobs(prefix)``: every blob once, in the service's order while the listing is not long.

    ``wide`` is the container, None where ``store`` is only a memory of it. Raises what the store raises.
    """
    listing = store.list_blobs(prefix)
    told: set[str] = set()
    for blob in listing:
        yield blob
        if wide is None:
            continue
        told.add(blob.name)
        if len(told) >= long:
            break
    shares = _shares(wide, prefix) if wide is not None and len(told) >= long else None
    if wide is None or shares is None:
        yield from listing
        return
    runs = SortedRuns(spill)
    for each in shares.blobs:
        runs.add(*each)
    for handful in _side_by_side(wide, shares.prefixes):
        for each in handful:
            # In a folder that was opened: it is there already.
            if each.name[: each.name.rfind("/") + 1] not in shares.opened:
                runs.add(*each)
    yield from (BlobInfo(*row) for row in runs if row[0] not in told)


class _Shares:
    """``prefixes`` cover together all but ``blobs``, which are those of the folders in ``opened``."""

    def __init__(self) -> None:
        self.prefixes: list[str] = []
        self.blobs: list[BlobInfo] = []
        self.opened: set[str] = set()


def _shares(store: BlobStore, prefix: str) -> _Shares | None:
    """How to share the listing out; None where it has too few folders."""
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
    """Fewer beginnings that cover the same folders, and nothing twice: many small folders would be a request each."""
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
    """Threads that list, each one prefix after the other. ``done`` has what they found, None from one that is done."""

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
                    self._tell(handful)
        except Empty:
            self._tell(None)
        except BaseException as error:  # noqa: BLE001 - raised again where the blobs are wanted
            self._tell(error)

    def _tell(self, what: list[BlobInfo] | BaseException | None) -> None:
        while not self.gone.is_set():
            try:
                self.done.put(what, timeout=_PATIENCE)
                return
            except Full:
                continue
