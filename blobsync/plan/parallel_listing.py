"""Lists a container with several requests at a time, if it turns out to have many blobs.

The pages of a listing have to be requested one after the other, 5,000 blobs at a time: 2,000 pages for 10 million
blobs. So what is left after some pages is divided, listed in parallel, and sorted on the disk: by ranges of names where
the service lists from a name on, else by the folders below.

The names seen so far say where to cut, and a request for one blob says what is behind a cut. A range that turns out to
be long is cut again. Cuts are made of digits and small letters: a service that compares without case then lists too
much, but never too little. What a service lists out of order, or before the name that it was asked for, counts for
nothing: the first listing goes on in its place.

A range is left where the next one begins; a service may stop there by itself (``endBefore``), if that leaves no name
out however it compares letters.
"""

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice
from operator import lt
from queue import Full, Queue, SimpleQueue

from blobsync.base.background_calls import side_by_side
from blobsync.base.errors import StorageError
from blobsync.base.lazy_regexes import pattern
from blobsync.base.records import NamedTuple
from blobsync.local.sorted_runs import SortedRuns, Spill
from blobsync.store.protocol import BlobInfo, BlobStore

# Blobs after which a listing counts as long: 5 pages. An account took 23.9 s for 20 pages of XML, says rclone 1.75.
LONG = 25_000
_SHARES = 16
_MOST_OPENED = 64
_MOST_NAMES = 200_000
# Listings at a time.
_THREADS = 8
# What cuts are made of, and how far into the names.
# Not from ``string``, which compiles a template.
_DIGITS, _SMALL = "0123456789", "abcdefghijklmnopqrstuvwxyz"
_LETTERS = _DIGITS + _SMALL
_DEPTH = 64
# Some of these are the same letter as a plain one to a service that compares without case.
_CAPITAL = pattern(r"[^\x00-\x40\x5b-\x7f]")
# Blobs in each batch, and seconds between two checks whether the listing was abandoned.
_HANDFUL = 1000
_PATIENCE = 0.2


class Division(NamedTuple):
    """When and how a listing is divided: after ``long`` blobs, into ``shares`` prefixes or more.

    At most ``opened`` folders, of at most ``names`` names each, are opened for their subfolders. ``opened`` is not
    below ``shares``.
    """

    long: int = LONG
    shares: int = _SHARES
    opened: int = _MOST_OPENED
    names: int = _MOST_NAMES


USUAL = Division()


class _Stretch(NamedTuple):
    """The blobs with ``prefix``, from the name ``start`` on, before the name ``end`` (empty: to the last one)."""

    prefix: str
    start: str = ""
    end: str = ""


class _OutOfOrderError(Exception):
    """The service does not list in order, or from the wanted name on."""


def list_wide(store: BlobStore, prefix: str, spill: Spill, division: Division = USUAL) -> Iterator[BlobInfo]:
    """As ``store.list_blobs(prefix)``: every blob once, in the service's order unless the listing is long.

    Raises the store's errors.
    """
    listing = store.list_blobs(prefix)
    names: list[str] = []
    for blob in islice(listing, division.long):
        names.append(blob.name)
        yield blob
    runs = SortedRuns(spill)
    if len(names) < division.long or not _gather(runs, store, prefix, names, division):
        yield from listing
        return
    listed_names = set(names)
    yield from (BlobInfo(*row) for row in runs if row[0] not in listed_names)


def _gather(runs: SortedRuns, store: BlobStore, prefix: str, names: Sequence[str], division: Division) -> bool:
    """Add what follows ``names`` to ``runs``; False if it has to be listed in one."""
    rest = _Stretch(prefix, names[-1])
    is_flat = names[0].rpartition("/")[0] == names[-1].rpartition("/")[0]
    cuts = _cuts(store, rest, division) if is_flat else ()
    shares = None if cuts else _shares(store, prefix, division)
    if shares is None and not is_flat:
        cuts = _cuts(store, rest, division)
    if shares is None and not cuts:
        return False
    begin = rest.start[: _levels(rest).stop - 1]
    stretches = _between(rest, [begin, *cuts]) if shares is None else [_Stretch(each) for each in shares.prefixes]
    for each in shares.blobs if shares is not None else ():
        runs.add(*each)
    try:
        for each in chain.from_iterable(_side_by_side(store, stretches, division)):
            # In an opened folder: already listed.
            if shares is None or each.name[: each.name.rfind("/") + 1] not in shares.opened:
                runs.add(*each)
    except _OutOfOrderError:
        return False
    return True


def _between(stretch: _Stretch, cuts: Sequence[str]) -> list[_Stretch]:
    """The parts of a stretch from its first cut on."""
    return [stretch._replace(start=start, end=end) for start, end in zip(cuts, [*cuts[1:], stretch.end], strict=True)]


def _is_end_for_all(start: str, end: str) -> bool:
    """Whether a service that compares without case finds the same names between the two as one that compares bytes:
    from ``ab3`` to ``ab7``, but not from ``ab3`` to ``abc``, between which ``abX`` is."""
    at = len(end) - 1
    first, last = start[at : at + 1], end[at:]
    are_alike = all(each in _DIGITS for each in (first, last)) or all(each in _SMALL for each in (first, last))
    return bool(first and last) and are_alike and start[:at] == end[:at]


def _levels(stretch: _Stretch) -> range:
    """The characters of its first name at which a stretch may be cut: up to the first one that is not plain."""
    prefix, last, _ = stretch
    capital = _CAPITAL.search(last, len(prefix))
    return range(len(prefix), min(capital.end() if capital else len(last), len(prefix) + _DEPTH))


def _cuts(store: BlobStore, stretch: _Stretch, division: Division) -> Sequence[str]:
    """Where to cut a stretch that begins with a listed name, in order, each before a blob. Empty if the service does
    not list from a name on, or if nothing is found."""
    cuts: list[str] = []
    try:
        # Also proves that the name itself is listed.
        if not stretch.start or _first(store, stretch.prefix, stretch.start) != stretch.start:
            return ()
        for found in side_by_side(partial(_cuts_at, store, stretch), _levels(stretch), _THREADS):
            # The later the character, the smaller the part.
            cuts[:0] = found if len(cuts) < division.shares else ()
    except (StorageError, _OutOfOrderError):
        # Another listing meets an error as well, unless it is of such requests alone.
        return ()
    return cuts


def _cuts_at(store: BlobStore, stretch: _Stretch, at: int) -> list[str]:
    """The cuts that differ from the first name of the stretch in this character."""
    prefix, last, end = stretch
    cuts: list[str] = []
    name = last
    for letter in _LETTERS[bisect_right(_LETTERS, last[at]) :]:
        cut = last[:at] + letter
        if end and cut >= end:
            break
        # The first name after another cut says as well what is behind this one, unless it is before it.
        if name < cut and (name := _first(store, prefix, cut)) < cut:
            if name:
                raise _OutOfOrderError
            break
        if not name.startswith(last[:at]):
            break
        if name.startswith(cut):
            cuts.append(cut)
    return cuts


def _first(store: BlobStore, prefix: str, start: str) -> str:
    """The first name from ``start`` on; empty if there is none, or if it cannot be asked for."""
    listing = store.list_from(prefix, start, 1)
    return next((blob.name for blob in listing), "") if listing is not None else ""


class _Shares:
    """``prefixes`` cover all blobs except ``blobs``, which are directly in the folders ``opened``."""

    def __init__(self) -> None:
        self.prefixes: Sequence[str] = []
        self.blobs: list[BlobInfo] = []
        self.opened: set[str] = set()


def _shares(store: BlobStore, prefix: str, division: Division) -> _Shares | None:
    """How to divide the listing; None if it has too few folders."""
    found = _Shares()
    waiting, whole = [prefix], list[str]()
    while waiting and len(waiting) + len(whole) < division.shares and len(found.opened) < division.opened:
        folder = waiting.pop(0)
        level = list(islice(store.list_folder(folder), division.names + 1))
        if len(level) > division.names:
            whole.append(folder)
            continue
        found.opened.add(folder)
        found.blobs += (each for each in level if isinstance(each, BlobInfo))
        waiting += (each for each in level if isinstance(each, str))
    found.prefixes = _common([*whole, *waiting], division)
    return found if len(found.prefixes) > 1 else None


def _common(folders: Sequence[str], division: Division) -> Sequence[str]:
    """Fewer prefixes that cover the same folders, each once: many small folders would need a request each."""
    if len(folders) <= division.opened:
        return folders
    length = 1
    while len(beginnings := {folder[:length] for folder in folders}) < division.shares:
        length += 1
    return sorted(beginnings)


def _side_by_side(store: BlobStore, stretches: Sequence[_Stretch], division: Division) -> Iterator[list[BlobInfo]]:
    threads = _ListingThreads(store, stretches, division)
    for _ in range(_THREADS):
        threading.Thread(target=threads.work, daemon=True).start()
    try:
        while (found := threads.done.get()) is not None:
            if isinstance(found, BaseException):
                raise found
            yield found
    finally:
        threads.end()


class _ListingThreads:
    """Threads that list one stretch after the other. ``done`` gets their results, and None after the last one."""

    def __init__(self, store: BlobStore, stretches: Sequence[_Stretch], division: Division) -> None:
        self._store = store
        self._division = division
        self._todo: SimpleQueue[_Stretch | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._open = 0
        self.done: Queue[list[BlobInfo] | BaseException | None] = Queue(maxsize=2 * _THREADS)
        self._gone = threading.Event()
        self._add(stretches)

    def work(self) -> None:
        try:
            while (stretch := self._todo.get()) is not None and not self._gone.is_set():
                self._list(stretch)
                with self._lock:
                    self._open -= 1
                    was_last = not self._open
                if was_last:
                    self._put(None)
        except BaseException as error:  # noqa: BLE001 - raised again where the blobs are wanted
            self._put(error)

    def end(self) -> None:
        """Let all threads end."""
        self._gone.set()
        for _ in range(_THREADS):
            self._todo.put(None)

    def _add(self, stretches: Sequence[_Stretch]) -> None:
        with self._lock:
            self._open += len(stretches)
        for stretch in stretches:
            self._todo.put(stretch)

    def _list(self, stretch: _Stretch) -> None:
        prefix, start, end = stretch
        stop = end if _is_end_for_all(start, end) else ""
        listing = self._store.list_from(prefix, start, end=stop) if start else self._store.list_blobs(prefix)
        assert listing is not None
        before, is_ordered, count = "", True, 0
        most = min(_HANDFUL, self._division.long)
        while (handful := list(islice(listing, most))) and not self._gone.is_set():
            names = [blob.name for blob in handful]
            is_ordered = is_ordered and before < names[0] >= start and all(map(lt, names, names[1:]))
            if not is_ordered and (start or end):
                raise _OutOfOrderError
            if end and names[-1] >= end:
                self._put(handful[: bisect_left(names, end)])
                return
            self._put(handful)
            before, count = names[-1], count + len(names)
            if count >= self._division.long and is_ordered:
                count = 0
                rest = _Stretch(prefix, before, end)
                if cuts := _cuts(self._store, rest, self._division):
                    self._add(_between(rest, cuts))
                    end = cuts[0]

    def _put(self, what: list[BlobInfo] | BaseException | None) -> None:
        while not self._gone.is_set():
            try:
                self.done.put(what, timeout=_PATIENCE)
                return
            except Full:
                continue
