"""External sorting: rows that do not fit in memory go to the disk as they come, and are read back in order.

A row is a tuple of plain values (strings, numbers, bytes, None, tuples of these), and its first value is its key, a
string. Strings compare by code points, which is also the order of their UTF-8 bytes, in which most services list.

The rows are in an unnamed temporary file, which is gone when the process ends, however that ends. Python's ``marshal``
writes them because it is five times as fast as JSON; no other process ever reads the file.

The states of files are converted to rows and back, for plans on the disk.
"""

import heapq
import marshal
import os
import sys
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, overload

from blobsync.base.errors import LocalFileError
from blobsync.base.file_states import FileState, LocalState, RemoteState
from blobsync.base.records import NamedTuple

Row: TypeAlias = tuple[Any, ...]

# How many entries of a plan stay in memory: 0.7 to 1 kB each, so half a GB at most.
MOST_IN_MEMORY = 500_000
# With all that is known of them while they are carried out, about 150 MB. A batch is sorted in memory to form a run,
# and one block of each run is in memory while runs are merged.
_BATCH = 100_000
_BLOCK = 500
# The version without references between values, which cost time and save nothing here.
_MARSHAL = 2
# Fast, and names with long common prefixes shrink to a quarter.
_ZLIB = 1


class Packing(NamedTuple):
    """Converts a value to plain values when it goes to the disk, and back. In memory it stays as it is."""

    pack: Callable[[Any], Any]
    unpack: Callable[[Any], Any]


class Spill(NamedTuple):
    """How many entries may stay in memory, and what creates the folder (None: the system's) for the rest."""

    folder: Callable[[], Path] | None = None
    most: int = MOST_IN_MEMORY

    @property
    def batch(self) -> int:
        """How many entries are sorted, or processed, at a time once they go to the disk."""
        return min(_BATCH, max(1, self.most))


# The usual limit, and the system's own folder.
IN_MEMORY = Spill()


class _Extent(NamedTuple):
    offset: int
    length: int


class _RowFile:
    """Blocks of rows in an unnamed file. Raises ``LocalFileError``."""

    def __init__(self, folder: Callable[[], Path] | None) -> None:
        self._make_folder = folder
        self._folder: Path | None = None
        self._fd: int | None = None
        self.size = 0

    def write(self, rows: Sequence[Row]) -> _Extent:
        """Append a block."""
        plain: Any = rows
        data = zlib.compress(marshal.dumps(plain, _MARSHAL), _ZLIB)
        where = _Extent(self.size, len(data))
        try:
            fd = self._open()
            view = memoryview(data)
            while view:
                written = os.pwrite(fd, view, self.size)
                self.size += written
                view = view[written:]
        except OSError as error:
            raise _no_room(self._folder, error) from error
        return where

    def read(self, where: _Extent) -> list[Row]:
        """Read a block."""
        try:
            data = os.pread(self._open(), where.length, where.offset)
        except OSError as error:
            raise _no_room(self._folder, error) from error
        rows: list[Row] = marshal.loads(zlib.decompress(data))  # noqa: S302 - written by this process
        return rows

    def _open(self) -> int:
        if self._fd is None:
            self._folder = self._make_folder() if self._make_folder else None
            import tempfile  # late: few plans need the disk

            self._fd, name = tempfile.mkstemp(prefix="blobsync-plan-", dir=self._folder)
            # Closed, and so deleted, with the last reference to this object.
            weakref.finalize(self, os.close, self._fd)
            os.unlink(name)
        return self._fd


def _no_room(folder: Path | None, error: OSError) -> LocalFileError:
    import tempfile

    where = folder or tempfile.gettempdir()
    return LocalFileError(
        f"cannot write the temporary files of a large plan to {where}: {error.strerror}",
        hint="free some space there (150 bytes for each file on each side), or plan the folders one by one",
        path=str(where),
    )


class _SpilledRows:
    """Rows of which the latest, at most ``most``, wait in memory; all others are in a file."""

    def __init__(self, spill: Spill, most: int, packing: Packing | None) -> None:
        self._most = most
        self._packing = packing
        self._file = _RowFile(spill.folder)
        self._waiting: list[Any] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return self._file.size

    @property
    def is_on_disk(self) -> bool:
        """Whether some rows are on the disk."""
        return self._file.size > 0

    def _write_waiting(self) -> list[_Extent]:
        """Write the waiting rows; returns where each block went."""
        rows, self._waiting = self._waiting, []
        starts = range(0, len(rows), _BLOCK)
        return [self._file.write(self._packed(rows[start : start + _BLOCK])) for start in starts]

    def _read(self, blocks: Iterable[_Extent]) -> Iterator[Any]:
        for where in blocks:
            yield from self._unpacked(self._file.read(where))

    def _packed(self, rows: list[Any]) -> Sequence[Row]:
        return rows if self._packing is None else [self._packing.pack(row) for row in rows]

    def _unpacked(self, rows: list[Row]) -> Iterable[Any]:
        return rows if self._packing is None else map(self._packing.unpack, rows)


class Spool(_SpilledRows):
    """Rows that are read back in the order in which they came; for one writer, then any number of readers.

    With ``packing`` they may be any values that it can pack. ``on_disk``: none of them waits for others in memory.
    """

    def __init__(self, spill: Spill, packing: Packing | None = None, *, on_disk: bool = False) -> None:
        super().__init__(spill, 1 if on_disk else spill.most, packing)
        self._blocks: list[_Extent] = []

    def append(self, row: Any) -> None:
        """Add a row."""
        self._waiting.append(row)
        self._count += 1
        # Once some are on the disk, write a block at a time.
        if len(self._waiting) >= (_BLOCK if self._blocks else self._most):
            self._blocks += self._write_waiting()

    def extend(self, rows: Sequence[Any]) -> None:
        """Add rows."""
        if self._blocks or len(self._waiting) + len(rows) >= self._most:
            for row in rows:
                self.append(row)
        else:
            self._waiting += rows
            self._count += len(rows)

    def __iter__(self) -> Iterator[Any]:
        if not self._blocks:
            return iter(self._waiting)
        return chain(self._read(self._blocks), self._waiting)


T = TypeVar("T")


class ReadInOrder(Sequence[T]):
    """Values that are read from the first on, any number of times, since many of them may be on the disk."""

    @overload
    def __getitem__(self, at: int) -> T: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[T, ...]: ...

    def __getitem__(self, at: int | slice) -> T | tuple[T, ...]:
        if isinstance(at, slice):
            return tuple(self)[at]
        number = at + len(self) if at < 0 else at
        if not 0 <= number < len(self):
            raise IndexError(at)
        return next(islice(self, number, None))


_KEY = itemgetter(0)


class _Run(NamedTuple):
    """``first`` and ``last`` are keys."""

    first: str
    number: int
    last: str
    blocks: list[_Extent]


class SortedRuns(_SpilledRows):
    """Rows that are read back in the order of their keys; rows with equal keys in the order in which they came.

    Rows that already come in order, as from most listings, are only written and read. For one writer, which must
    finish before the first reader begins. With ``packing`` a row has one value after its key, which that packs.
    ``most`` rows stay in memory (by default a batch of ``spill``); if there are more, all go to the disk.
    """

    def __init__(self, spill: Spill, packing: Packing | None = None, *, most: int | None = None) -> None:
        super().__init__(spill, spill.batch if most is None else most, packing)
        self._batch = spill.batch
        self._runs: list[_Run] = []

    def add(self, key: str, *values: Any) -> None:
        """Add a row."""
        self._waiting.append((key, *values))
        self._count += 1
        if len(self._waiting) >= self._most:
            self._waiting.sort(key=_KEY)
            first, last = self._waiting[0][0], self._waiting[-1][0]
            self._runs.append(_Run(first, len(self._runs), last, self._write_waiting()))
            self._most = self._batch

    def __iter__(self) -> Iterator[Row]:
        # Sorting keeps rows with equal keys in the order in which they came.
        self._waiting.sort(key=_KEY)
        if not self._runs:
            return iter(self._waiting)
        chains = [self._read(where for run in runs for where in run.blocks) for runs in _chains(self._runs)]
        merged = heapq.merge(*chains, self._numbered(self._waiting))
        return ((key, *values) for key, _, values in merged)

    def _numbered(self, rows: Iterable[Row]) -> Iterator[Row]:
        """With the number of their run: of equal keys, the earlier run's come first. Values are not compared then."""
        number = len(self._runs)
        return ((row[0], number, row[1:]) for row in rows)

    def _packed(self, rows: list[Any]) -> Sequence[Row]:
        if self._packing is None:
            return list(self._numbered(rows))
        pack, number = self._packing.pack, len(self._runs)
        return [(key, number, pack(value)) for key, value in rows]

    def _unpacked(self, rows: list[Row]) -> Iterable[Any]:
        if self._packing is None:
            return rows
        unpack = self._packing.unpack
        return ((key, number, (unpack(value),)) for key, number, value in rows)


def _chains(runs: Sequence[_Run]) -> list[list[_Run]]:
    """Groups runs that follow each other: they are read one after the other, not merged."""
    chains: list[list[_Run]] = []
    for run in sorted(runs):
        for each in chains:
            # Equal keys go to different chains, unless the earlier run comes first anyway.
            if (each[-1].last, each[-1].number) < (run.first, run.number):
                each.append(run)
                break
        else:
            chains.append([run])
    return chains


# A blob has one value less.
_LOCAL_VALUES = 6


def pack_state(state: FileState | None) -> Row | None:
    """The state as plain values."""
    if state is None:
        return None
    if isinstance(state, LocalState):
        return (state.size, state.mtime_ns, state.ctime_ns, state.inode, state.md5, state.crc64)
    return (state.size, state.etag, state.md5, state.tier, state.crc64)


def unpack_state(row: Row | None) -> FileState | None:
    """What :func:`pack_state` was given."""
    if row is None:
        return None
    if len(row) == _LOCAL_VALUES:
        return LocalState(*row)
    size, etag, md5, tier, crc64 = row
    # One text for all blobs of a tier.
    return RemoteState(size, etag, md5, None if tier is None else sys.intern(tier), crc64)


STATE = Packing(pack_state, unpack_state)
STATE_OF_PATH = Packing(lambda row: (row[0], pack_state(row[1])), lambda row: (row[0], unpack_state(row[1])))
