"""The account of a file that is cut into ranges: the conditions of its commit, and failures."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from blobsync.base.errors import FailureCode, FileFailure
from blobsync.base.events import BytesReused, Event, Note
from blobsync.base.file_states import LocalState
from blobsync.local.files import hash_file
from blobsync.spread.earlier_records import EarlierBlocks
from blobsync.spread.file_json import FormatError
from blobsync.spread.large_files import LargeFiles
from blobsync.spread.record import FileRecord, NamedBlock
from blobsync.spread.shard import Shard, cut_file
from blobsync.spread.shard_account import OwnReading, ShardAccount
from blobsync.store.protocol import block_id_of
from blobsync.transfer.engines import CollectedReport, MoveTask
from tests.fakes.store import MemoryStore, Request
from tests.fakes.tasks import RecordingListener, copy, download, upload

_PATIENCE = 60.0
_MIB = 1 << 20
# Four blocks of 2 MiB, in two ranges.
_BIG = os.urandom(8 * _MIB)
_BLOCKS = [_BIG[at : at + 2 * _MIB] for at in range(0, len(_BIG), 2 * _MIB)]
_IDS = [block_id_of(hashlib.sha256(each).digest()) for each in _BLOCKS]
_MD5 = hashlib.md5(_BIG).digest()
_ABOUT = 4 * _MIB
_FAILED = FileRecord("big", failure=FileFailure("big", FailureCode.ACCESS_DENIED, "no access"))


class Listener(RecordingListener):
    """Records notes, and reused bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []
        self.found: list[int] = []

    def emit(self, event: Event) -> None:
        if isinstance(event, Note):
            self.notes.append(event.text)
        elif isinstance(event, BytesReused):
            self.found.append(event.size)


class Large:
    """An upload of one file, whose blocks are there; what this machine reads of it waits for :meth:`look`."""

    def __init__(
        self, tmp_path: Path, own: Callable[[LocalState | None], LocalState | None] = lambda state: state
    ) -> None:
        self.store, self.report, self.listener = MemoryStore("box"), CollectedReport(), Listener()
        root = tmp_path / "data"
        root.mkdir()
        (root / "big").write_bytes(_BIG)
        self.task = upload(root, self.store, "sets")
        (self.action,) = self.task.actions
        self._own, self._let = own, threading.Event()
        self.reading = OwnReading(1, self._read)
        self.account = _account_of(self.task, self.report, self.listener, self.reading)
        self.reader, self.first, self.second = self.account.cut(self.action)
        self.put()

    def put(self) -> None:
        for name, data in zip(_IDS, _BLOCKS, strict=True):
            self.store.put_block("sets/big", name, data)

    def look(self) -> None:
        """Finish this machine's reading of the file."""
        self._let.set()
        self.reading.settle(_PATIENCE)

    def tell(self, shard: Shard, md5: bytes | None = None, ids: Sequence[str] = _IDS) -> tuple[Shard, ...]:
        """End a worker's shard."""
        account = ShardAccount(shard)
        assert shard.order is not None and isinstance(self.action.source, LocalState)
        for index in range(*shard.order.blocks):
            account.name(NamedBlock(index, ids[index]))
        self.account.heard(account, FileRecord("big", replace(self.action.source, md5=md5)))
        return self.account.ended(account, "no word of it")

    def tell_all(self) -> None:
        for shard, md5 in ((self.reader, _MD5), (self.first, None), (self.second, None)):
            assert not self.tell(shard, md5)

    def failures(self) -> list[FailureCode]:
        return [failure.code for _, failure in self.report.failed]

    def _read(self, file: Path) -> LocalState | None:
        assert self._let.wait(_PATIENCE)
        return self._own(hash_file(file))


def _account_of(
    task: MoveTask,
    report: CollectedReport,
    listener: Listener,
    reading: OwnReading,
    earlier: EarlierBlocks | None = None,
) -> LargeFiles:
    return LargeFiles(task, report, listener, _ABOUT, earlier or EarlierBlocks(), reading)


# -- which files are cut ------------------------------------------------------------------------------------------


def test_files_that_go_into_a_container_and_are_large_enough_are_cut(tmp_path: Path) -> None:
    large = Large(tmp_path)
    action, takes = large.action, large.account.takes
    assert takes(action) and takes(replace(action, path="")) and takes(replace(action, target="aside"))
    assert isinstance(action.source, LocalState)
    not_cut = [
        replace(action, source=None),
        replace(action, source=replace(action.source, size=2 * _ABOUT - 1)),
        replace(action, path="", target="aside"),
        replace(action, path="a/../b"),
    ]
    assert not [each for each in not_cut if takes(each)]
    store = MemoryStore("box")
    store.add("sets/big", _BIG)
    down = download(store, "sets", tmp_path, ["big"])
    assert not _account_of(down, large.report, large.listener, large.reading).takes(down.actions[0])
    large.look()


def test_a_copy_is_not_read_here_and_one_whose_source_changed_is_not_committed() -> None:
    here = MemoryStore("here")
    there = MemoryStore("there", {"here": here})
    here.add("x/big", _BIG)
    task, report, reading = copy(here, "x", there, "y", ["big"]), CollectedReport(), OwnReading()
    account = _account_of(task, report, Listener(), reading)
    shards = account.cut(task.actions[0])
    assert not reading.open and len(shards) == 2
    here.add("x/big", _BIG[::-1])
    for shard in shards:
        told = ShardAccount(shard)
        assert shard.order is not None
        for index in range(*shard.order.blocks):
            told.name(NamedBlock(index, _IDS[index]))
        account.heard(told, FileRecord("big", task.actions[0].source))
        assert not account.ended(told, "no word")
    assert not report.moved and not there.blobs
    assert [failure.code for _, failure in report.failed] == [FailureCode.CHANGED_WHILE_READ]


def test_blocks_from_before_are_there_for_whoever_puts_them_and_not_for_whoever_reads(tmp_path: Path) -> None:
    large, earlier = Large(tmp_path), EarlierBlocks()
    earlier.add(cut_file(large.task.part, large.action, _ABOUT)[1], {0: _IDS[0]})
    account = _account_of(large.task, large.report, large.listener, large.reading, earlier)
    reader, first, second = account.cut(large.action)
    assert [dict(account.there(each)) for each in (reader, first, second)] == [{}, {0: _IDS[0]}, {}]
    assert large.listener.found == [2 * _MIB], "and nobody hears of nothing"
    large.look()


# -- what it takes ------------------------------------------------------------------------------------------------


def test_a_file_is_committed_once_this_machine_has_read_it_too(tmp_path: Path) -> None:
    large = Large(tmp_path)
    large.tell_all()
    assert not large.report.moved and not large.store.blobs
    large.look()
    assert large.store.body("sets/big") == _BIG and large.account.again() == ()
    (moved,) = large.report.moved
    assert moved.source is not None and moved.source.md5 == _MD5 and not large.report.failed


def test_a_file_that_was_read_here_first_is_committed_with_its_last_range(tmp_path: Path) -> None:
    large = Large(tmp_path)
    large.look()
    assert not large.report.moved
    large.tell_all()
    assert large.store.body("sets/big") == _BIG and len(large.report.moved) == 1


def test_what_this_machine_reads_differently_is_not_committed(tmp_path: Path) -> None:
    large = Large(tmp_path, lambda state: replace(state, md5=bytes(16)) if state else None)
    large.tell_all()
    large.look()
    assert large.failures() == [FailureCode.CHECKSUM_MISMATCH] and not large.store.blobs and not large.report.moved


@pytest.mark.parametrize("gone", [True, False])
def test_a_version_that_is_not_here_any_more_is_that_of_the_workers(tmp_path: Path, gone: bool) -> None:
    large = Large(tmp_path, lambda state: replace(state, inode=1, md5=bytes(16)) if state and not gone else None)
    large.tell_all()
    large.look()
    assert len(large.report.moved) == 1 and large.store.body("sets/big") == _BIG


def test_what_two_workers_read_differently_is_not_committed(tmp_path: Path) -> None:
    large = Large(tmp_path)
    large.look()
    large.tell(large.reader, _MD5, [*_IDS[:3], block_id_of(bytes(32))])
    large.tell(large.first)
    large.tell(large.second)
    assert large.failures() == [FailureCode.CHECKSUM_MISMATCH] and not large.store.blobs


def test_blocks_that_were_dropped_are_put_once_more_and_the_user_hears_why(tmp_path: Path) -> None:
    large = Large(tmp_path)

    def drop(request: Request) -> None:
        if request.operation == "put_block_list":
            large.store.blocks.pop("sets/big", None)

    large.store.before = drop
    large.tell_all()
    large.look()
    shards = large.account.again()
    assert len(shards) == 3 and large.account.again() == () and not large.report.failed
    assert large.listener.notes == [
        "data/x/big: another writer of the same blob has dropped blocks of it; they are put once more"
    ]
    large.reader, large.first, large.second = shards
    large.put()
    large.tell_all()
    assert len(large.report.failed) == 1 and large.account.again() == () and len(large.listener.notes) == 1
    assert len(large.store.asked("put_block_list")) == 2


# -- what ends it -------------------------------------------------------------------------------------------------


def test_a_range_that_failed_fails_the_file_at_once_when_the_others_are_over(tmp_path: Path) -> None:
    large = Large(tmp_path)
    account = ShardAccount(large.first)
    assert not large.account.has_failed(account)
    large.account.heard(account, _FAILED)
    assert large.account.has_failed(account) and not account.left
    with pytest.raises(FormatError):
        large.account.heard(account, _FAILED)
    assert not large.account.ended(account, "no word of it")
    large.tell(large.reader, _MD5)
    assert not large.report.failed
    large.tell(large.second)
    # This machine still reads the file.
    assert large.failures() == [FailureCode.ACCESS_DENIED] and not large.store.blobs
    large.look()
    assert large.failures() == [FailureCode.ACCESS_DENIED]


def test_a_range_without_a_word_fails_the_file_with_what_is_known_of_it(tmp_path: Path) -> None:
    large = Large(tmp_path)
    large.look()
    large.tell(large.reader, _MD5)
    large.tell(large.first)
    assert not large.account.ended(ShardAccount(large.second), "its worker was lost")
    ((action, failure),) = large.report.failed
    assert action == large.action and not large.store.blobs
    assert (failure.path, failure.code, failure.message) == (
        "data/x/big",
        FailureCode.NOT_REPORTED,
        "its worker was lost",
    )
    assert failure.hint == "run the same command again: verified files are skipped"


def test_the_first_failure_of_a_file_is_the_one_that_is_reported(tmp_path: Path) -> None:
    large = Large(tmp_path)
    large.look()
    account = ShardAccount(large.first)
    large.account.heard(account, _FAILED)
    large.account.ended(account, "no word of it")
    for shard in (large.reader, large.second):
        large.account.ended(ShardAccount(shard), "another reason")
    assert large.failures() == [FailureCode.ACCESS_DENIED]
