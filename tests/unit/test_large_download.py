"""One large blob, downloaded piece by piece: which ranges are fetched, recorded and trusted."""

from __future__ import annotations

import hashlib
import os
import random
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from blobsync.base.errors import BlobsyncError, ChecksumError, LocalFileError, PreconditionFailedError, StorageError
from blobsync.base.file_states import FileState, LocalState, RemoteState
from blobsync.direct.large_download import LargeDownloadJob, OrderedHash, Piece
from blobsync.direct.range_reads import CHUNK, Content
from blobsync.direct.thread_pool import Stopped
from blobsync.local.files import LocalFolder, SourceFile
from blobsync.local.names import RelativeName
from blobsync.local.os_errors import ChangedWhileReadError
from blobsync.local.part_files import FolderDescriptor, PartFile
from blobsync.local.resume_records import Journal, RangeRecord, RangeRecords, RecordedRange, UnfinishedDownload
from blobsync.local.state_dir import StateDir
from blobsync.plan.transfer_plan import FileAction, KeptAttributes
from blobsync.store.protocol import BlobProperties, block_id_of
from blobsync.transfer.engines import Moved
from tests.fakes.store import MemoryStore
from tests.fakes.tasks import RecordedRun, RecordingListener, download, local_state, remote_state

PIECE = 1000
SIZE = 2 * PIECE + 500
BODY = random.Random(7).randbytes(2 * CHUNK)
NAME = "p/large"


class Place:
    """A container with one blob, a folder for it, and the state of the project."""

    def __init__(self, root: Path) -> None:
        self.root = root / "down"
        self.root.mkdir()
        self.file = self.root / "large"
        (root / "state").mkdir(mode=0o700)
        self.records = RangeRecords(StateDir(root / "state"), worth_seconds=0.0)
        self.state = root / "state"
        self.store = MemoryStore()
        self.store.add(NAME, BODY[:SIZE])
        self.folder = LocalFolder(self.root)

    def action(self) -> FileAction:
        return download(self.store, "p", self.root, ["large"]).actions[0]

    def fetch(
        self, action: FileAction | None = None, *, records: bool = True, folder: LocalFolder | None = None
    ) -> Fetch:
        return Fetch(self, action or self.action(), self.records if records else None, folder or self.folder)

    def killed_after(self, pieces: int) -> None:
        """A run that is interrupted when so many pieces have landed."""
        fetch = self.fetch()
        fetch.job.open()
        for _ in range(pieces):
            fetch.job.piece()
        fetch.run.stop.set()
        fetch.job.release()
        self.store.requests.clear()

    @property
    def asked(self) -> list[tuple[int, int]]:
        """The ranges that were fetched; of the whole blob no length is given."""
        return [(each.start, each.size) for each in self.store.asked("get")]

    def names(self) -> list[str]:
        return sorted(each.name for each in self.root.iterdir())

    def on_record(self) -> list[tuple[UnfinishedDownload, int]]:
        return list(self.records.all())

    def nothing_is_left(self) -> bool:
        return self.names() in ([], ["large"]) and not self.on_record()


class Fetch:
    """One attempt at the blob."""

    def __init__(self, place: Place, action: FileAction, records: RangeRecords | None, folder: LocalFolder) -> None:
        self.listener = RecordingListener()
        task = download(place.store, "p", place.root, ["large"])._replace(actions=[action])
        self.run = RecordedRun(task, self.listener)
        relative = action.target or action.path
        self.job = LargeDownloadJob(self.run, action, place.store, NAME, folder, relative, PIECE, records)

    def all(self) -> Moved:
        """Run all pieces, and release the job in any case."""
        try:
            for _ in range(self.job.open()):
                self.job.piece()
            return self.job.commit()
        finally:
            self.job.release()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("records", [True, False])
def test_it_is_fetched_in_pieces_and_told_as_it_is(place: Place, *, records: bool) -> None:
    fetch = place.fetch(records=records)
    place.store.requests.clear()
    moved = fetch.all()
    body = BODY[:SIZE]
    assert place.file.read_bytes() == body and moved.compared_by == "" and not place.store.asked("head")
    assert place.asked == [(0, PIECE), (PIECE, PIECE), (2 * PIECE, 500)]
    md5 = hashlib.md5(body).digest()
    state = local_state(place.file)
    assert state is not None and moved.destination == replace(state, md5=md5)
    assert moved.source is not None and moved.source.md5 == md5
    assert (moved.source.size, moved.reused) == (SIZE, 0)
    assert (fetch.listener.bytes, fetch.listener.reused, sum(fetch.run.paced)) == (SIZE, 0, SIZE)
    # Where there is no version before there are no blocks to compare.
    assert not place.store.asked("block_list") and not fetch.run.report.kept
    assert place.nothing_is_left()


def test_what_a_file_will_be_is_noted_before_it_is(place: Place) -> None:
    fetch = place.fetch()
    noted: list[tuple[int, bytes | None, bool]] = []
    fetch.run.noting = lambda size, md5: noted.append((size, md5, place.file.exists()))
    fetch.all()
    assert noted == [(SIZE, hashlib.md5(BODY[:SIZE]).digest(), False)]


@pytest.mark.parametrize("kept", [True, False])
def test_what_the_entry_keeps_besides_is_asked_for_with_one_byte(place: Place, *, kept: bool) -> None:
    place.store.add(NAME, BODY[:SIZE], properties=BlobProperties(metadata={"mode": "100755"}))
    fetch = place.fetch()
    part = replace(fetch.run.task.part, kept=KeptAttributes(modes=kept))
    fetch.run.task = fetch.run.task._replace(part=part)
    fetch.all()
    assert place.asked[3:] == ([(0, 1)] if kept else [])
    assert bool(place.file.stat().st_mode & 0o100) is kept and place.file.read_bytes() == BODY[:SIZE]


def test_an_empty_blob_becomes_an_empty_file(place: Place) -> None:
    place.store.add(NAME, b"")
    place.fetch().all()
    assert place.file.read_bytes() == b"" and place.nothing_is_left()


def test_under_another_name_it_replaces_nothing(place: Place) -> None:
    place.file.write_bytes(b"mine")
    action = place.action()._replace(target="other")
    place.fetch(action).all()
    assert (place.root / "other").read_bytes() == BODY[:SIZE] and place.file.read_bytes() == b"mine"
    with pytest.raises(PreconditionFailedError):
        place.fetch(action).all()


def test_what_was_seen_there_is_replaced_and_nothing_else(place: Place) -> None:
    place.file.write_bytes(b"seen")
    seen = place.action()
    place.file.unlink()
    with pytest.raises(PreconditionFailedError):
        place.fetch(seen).all()
    assert place.names() == [] and place.nothing_is_left()
    place.file.write_bytes(b"seen")
    place.fetch().all()
    assert place.file.read_bytes() == BODY[:SIZE]


class Interleaved(PartFile):
    """Other threads write their ranges while one is read for the MD5."""

    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    def read_at(self, offset: int, length: int) -> bytes:
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return super().read_at(offset, length)


def test_pieces_that_land_in_any_order_are_hashed_in_the_files_order(tmp_path: Path) -> None:
    folder = FolderDescriptor(os.open(tmp_path, os.O_RDONLY), unnamed=False)
    part = Interleaved(folder, "large", tmp_path / "large", 50)
    part.write_at(0, BODY[:50])
    content = Content(MemoryStore(), RemoteState(50, "1"))
    ordered = OrderedHash(part, [Piece(at, 10) for at in range(0, 50, 10)], content)
    ordered.landed(3)
    ordered.landed(1)

    def meanwhile() -> None:
        ordered.landed(2)

    part.meanwhile = meanwhile
    ordered.landed(0)
    ordered.landed(4)
    assert content.demand("large") == hashlib.md5(BODY[:50]).digest()
    part.discard()


# -- after a kill -------------------------------------------------------------------------------------------------


def test_what_landed_is_kept_told_once_and_goes_on(place: Place) -> None:
    first = place.fetch()
    first.job.open()
    first.job.piece()
    first.job.piece()
    first.run.stop.set()
    with pytest.raises(Stopped):
        first.job.piece()
    # A thread that hangs is not waited for: what it has open is left first, and released when it comes back.
    first.job.abandon()
    first.job.release()
    first.job.release()
    first.job._recording.add(2 * PIECE, 500, bytes(4))
    assert [size for _, size in first.run.report.kept] == [2 * PIECE]
    assert first.listener.bytes == 2 * PIECE
    ((of, size),) = place.on_record()
    assert size == 2 * PIECE and place.names() == [of.part]
    inode = (place.root / of.part).stat().st_ino
    place.store.requests.clear()
    second = place.fetch()
    moved = second.all()
    assert place.file.read_bytes() == BODY[:SIZE] and place.file.stat().st_ino == inode
    assert place.asked == [(2 * PIECE, 500)]
    assert (moved.reused, second.listener.reused, second.listener.bytes) == (2 * PIECE, 2 * PIECE, 500)
    assert not second.run.report.kept and place.nothing_is_left()


class Seldom(RangeRecords):
    """On a disk so slow that what is put after the first range waits to be saved."""

    def _opened(self) -> Journal:
        return Journal(self._state.unfinished_file, "downloads", seconds=1e9)


def test_what_is_said_to_be_kept_is_on_record_before_a_thread_that_hangs_is_back(place: Place) -> None:
    place.records = Seldom(StateDir(place.state), worth_seconds=0.0)
    fetch = place.fetch()
    fetch.job.open()
    fetch.job.piece()
    fetch.job.piece()
    fetch.run.stop.set()
    fetch.job.abandon()
    assert [size for _, size in RangeRecords(StateDir(place.state)).all()] == [2 * PIECE]
    assert [size for _, size in fetch.run.report.kept] == [2 * PIECE]
    fetch.job.release()


def test_what_landed_is_not_checked_after_an_interrupt(place: Place) -> None:
    place.killed_after(2)
    fetch = place.fetch()
    fetch.job.open()
    fetch.run.stop.set()
    with pytest.raises(Stopped):
        fetch.job.piece()
    assert fetch.listener.reused == 0
    fetch.job.release()
    assert [size for _, size in place.on_record()] == [2 * PIECE]


def test_without_records_nothing_is_kept(place: Place) -> None:
    fetch = place.fetch(records=False)
    fetch.job.open()
    fetch.job.piece()
    fetch.run.stop.set()
    fetch.job.abandon()
    fetch.job.release()
    assert place.nothing_is_left() and not fetch.run.report.kept


class Named(LocalFolder):
    """On a disk where a file has a name from the first byte on."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, unnamed=False)


@pytest.mark.parametrize("records", [True, False])
def test_who_is_interrupted_leaves_no_part_file_that_is_not_on_record(place: Place, *, records: bool) -> None:
    fetch = place.fetch(records=records, folder=Named(place.root))
    fetch.job.open()
    assert len(place.names()) == 1
    fetch.job.abandon()
    assert place.names() == []
    fetch.job.release()
    assert place.nothing_is_left()


@pytest.mark.parametrize("with_md5", [True, False])
def test_a_range_that_changed_is_fetched_again(place: Place, *, with_md5: bool) -> None:
    place.store.add(NAME, BODY[:SIZE], with_md5=with_md5)
    place.killed_after(2)
    ((of, _),) = place.on_record()
    record = place.records.take(of.destination)
    assert record is not None
    # Where nothing is compared in the end, a CRC32 would not be enough.
    assert {len(each.checksum) for each in record.ranges} == {4 if with_md5 else 32}
    record.close()
    with (place.root / of.part).open("r+b") as part:
        part.seek(PIECE + 5)
        part.write(b"another")
    fetch = place.fetch()
    moved = fetch.all()
    assert place.file.read_bytes() == BODY[:SIZE]
    assert place.asked == [(PIECE, PIECE), (2 * PIECE, 500)] and moved.reused == PIECE


def test_a_range_that_is_lost_and_not_fetched_again_is_not_kept(place: Place) -> None:
    place.killed_after(2)
    ((of, _),) = place.on_record()
    with (place.root / of.part).open("r+b") as part:
        part.seek(PIECE + 5)
        part.write(b"another")
    fetch = place.fetch()
    fetch.job.open()

    def refuse(request: object) -> None:
        raise StorageError("out of order", status=500)

    place.store.before = refuse
    fetch.job.piece()
    with pytest.raises(StorageError):
        fetch.job.piece()
    fetch.job.release()
    assert [size for _, size in fetch.run.report.kept] == [PIECE]


def test_a_part_file_that_begins_otherwise_is_not_written_to(place: Place) -> None:
    place.killed_after(2)
    ((of, _),) = place.on_record()
    part = place.root / of.part
    part.write_bytes(bytes(SIZE))
    held = part.open("rb")
    moved = place.fetch().all()
    assert place.file.read_bytes() == BODY[:SIZE] and moved.reused == 0
    assert held.read() == bytes(SIZE)
    held.close()
    assert place.nothing_is_left()


def test_a_part_file_that_is_gone_is_begun_anew(place: Place) -> None:
    place.killed_after(2)
    ((of, _),) = place.on_record()
    (place.root / of.part).unlink()
    assert place.fetch().all().reused == 0
    assert place.file.read_bytes() == BODY[:SIZE] and place.nothing_is_left()


def test_nothing_is_written_of_what_is_over_soon(place: Place) -> None:
    place.records.worth_seconds = 3600.0
    place.fetch().all()
    assert place.file.read_bytes() == BODY[:SIZE] and not list(place.state.iterdir())


def test_once_it_is_worth_it_each_piece_puts_some_of_the_earlier_ones_on_record(place: Place) -> None:
    place.store.add(NAME, BODY[: 12 * PIECE])
    place.records.worth_seconds = 0.3
    fetch = place.fetch()
    until = time.monotonic() + 0.5
    fetch.job.open()
    for _ in range(8):
        fetch.job.piece()
    while time.monotonic() < until:
        time.sleep(0.01)
    for _ in range(4):
        fetch.job.piece()
    fetch.run.stop.set()
    fetch.job.release()
    assert [size for _, size in place.on_record()] == [12 * PIECE]


def test_an_interrupt_before_the_beginning_and_after_the_end_is_nothing(place: Place) -> None:
    fetch = place.fetch()
    fetch.job.abandon()
    fetch.job.release()
    fetch.all()
    fetch.job.abandon()
    assert place.file.read_bytes() == BODY[:SIZE] and place.nothing_is_left()


@pytest.mark.parametrize("version", ["another", "the same"])
def test_of_what_is_on_record_only_the_same_version_goes_on(place: Place, version: str) -> None:
    place.killed_after(1)
    # One that is over soon makes no record in the place of the other.
    place.records.worth_seconds = 3600.0
    place.store.add(NAME, BODY[:SIZE])
    if version == "the same":
        ((of, _),) = place.on_record()
        blob = place.store.blobs[NAME]
        blob.info = blob.info._replace(etag=of.etag)
    moved = place.fetch().all()
    assert moved.reused == (PIECE if version == "the same" else 0)
    assert place.file.read_bytes() == BODY[:SIZE] and place.nothing_is_left()


def test_a_record_of_nothing_yet_starts_anew_and_its_part_file_goes(place: Place) -> None:
    place.killed_after(1)
    ((of, _),) = place.on_record()
    record = place.records.start(of)
    assert record is not None
    record.close()
    assert place.fetch().all().reused == 0
    assert place.file.read_bytes() == BODY[:SIZE] and place.nothing_is_left()


class Taking(RangeRecords):
    """Remembers the record that was taken last."""

    taken: RangeRecord | None = None

    def take(self, destination: str) -> RangeRecord | None:
        self.taken = super().take(destination)
        return self.taken


def test_what_cannot_be_looked_at_is_left_to_another_run(place: Place) -> None:
    place.killed_after(1)
    ((of, _),) = place.on_record()

    class Refusing(LocalFolder):
        def reopen(self, *given: object) -> PartFile | None:
            raise LocalFileError("input/output error")

    place.records = records = Taking(StateDir(place.state), worth_seconds=0.0)
    fetch = place.fetch(folder=Refusing(place.root))
    with pytest.raises(LocalFileError):
        fetch.job.open()
    fetch.job.release()
    assert place.names() == [of.part]
    # It is closed: nothing comes to it any more.
    assert records.taken is not None
    records.taken.add(RecordedRange(PIECE, PIECE, bytes(4)))
    assert [size for _, size in place.on_record()] == [PIECE]
    assert place.fetch().all().reused == PIECE


# -- failures -----------------------------------------------------------------------------------------------------


def another_version(place: Place) -> None:
    place.store.add(NAME, BODY[1 : SIZE + 1])


def cut_short(place: Place) -> None:
    place.store.blobs[NAME].body = BODY[: PIECE + 5]


def full_disk(place: Place) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (PIECE + 5, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def broken_line(place: Place) -> None:
    place.store.truncate[NAME] = 5


@pytest.mark.parametrize(
    ("change", "error", "kept"),
    [
        (another_version, ChangedWhileReadError, 0),
        (cut_short, ChecksumError, 0),
        (full_disk, LocalFileError, 0),
        # The part of the piece that came is right, and counts.
        (broken_line, StorageError, PIECE + 5),
    ],
)
def test_what_landed_is_worth_something_after_a_broken_line_alone(
    place: Place, change: Callable[[Place], None], error: type[BlobsyncError], kept: int
) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    fetch = place.fetch()
    fetch.job.open()
    fetch.job.piece()
    try:
        change(place)
        with pytest.raises(error):
            fetch.job.piece()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    fetch.job.release()
    assert [size for _, size in fetch.run.report.kept] == ([kept] if kept else [])
    assert [size for _, size in place.on_record()] == ([kept] if kept else [])
    assert place.nothing_is_left() is not bool(kept)
    assert not place.file.exists()


def test_a_record_of_nothing_is_not_kept(place: Place) -> None:
    place.store.truncate[NAME] = 0
    fetch = place.fetch()
    fetch.job.open()
    with pytest.raises(StorageError):
        fetch.job.piece()
    assert len(place.on_record()) == 1
    fetch.job.release()
    assert not fetch.run.report.kept and place.nothing_is_left()


def test_a_wrong_md5_spoils_all_of_it_and_the_next_attempt_begins_anew(place: Place) -> None:
    blob = place.store.blobs[NAME]
    blob.info = blob.info._replace(md5=b"another content.")
    fetch = place.fetch()
    with pytest.raises(ChecksumError):
        fetch.all()
    assert place.nothing_is_left() and not fetch.run.report.kept
    fetch.job.start_over()
    assert fetch.job.open() == 3
    fetch.job.piece()
    fetch.run.stop.set()
    fetch.job.release()
    # It was an attempt of its own.
    assert [size for _, size in fetch.run.report.kept] == [PIECE]


# -- blocks of the previous version -------------------------------------------------------------------------------

# The last block is shorter than the others, the first longer than what is read at once.
LENGTHS = [CHUNK + 5, 900, 700]
WHOLE = BODY[: sum(LENGTHS)]


def put_in_blocks(store: MemoryStore, body: bytes, lengths: Sequence[int] = LENGTHS) -> None:
    at, ids = 0, []
    for length in lengths:
        piece = body[at : at + length]
        ids.append(block_id_of(hashlib.sha256(piece).digest()))
        store.put_block(NAME, ids[-1], piece)
        at += length
    store.put_block_list(NAME, ids, size=len(body), md5=hashlib.md5(body).digest())


def with_change_at(place: Place, at: int) -> bytes:
    """The folder has ``WHOLE``, and the container the same with one other byte."""
    place.file.write_bytes(WHOLE)
    new = WHOLE[:at] + bytes([WHOLE[at] ^ 1]) + WHOLE[at + 1 :]
    put_in_blocks(place.store, new)
    return new


FIRST, SECOND, THIRD = (0, LENGTHS[0]), (LENGTHS[0], LENGTHS[1]), (LENGTHS[0] + LENGTHS[1], LENGTHS[2])


@pytest.mark.parametrize(
    ("at", "block"), [(0, FIRST), (CHUNK, FIRST), (CHUNK + 5, SECOND), (CHUNK + 905, THIRD), (CHUNK + 1604, THIRD)]
)
def test_the_block_that_changed_is_fetched_and_the_others_are_copied(
    place: Place, at: int, block: tuple[int, int]
) -> None:
    new = with_change_at(place, at)
    fetch = place.fetch()
    moved = fetch.all()
    assert place.file.read_bytes() == new and place.asked == [block]
    assert moved.reused == fetch.listener.reused == len(new) - block[1]
    assert (fetch.listener.bytes, place.nothing_is_left()) == (block[1], True)


def test_an_attempt_after_wrong_bytes_believes_no_block(place: Place) -> None:
    new = with_change_at(place, 0)
    fetch = place.fetch()
    fetch.job.start_over()
    asked = len(place.store.asked("block_list"))
    fetch.all()
    assert place.file.read_bytes() == new and fetch.listener.reused == 0
    assert len(place.store.asked("block_list")) == asked


@pytest.mark.parametrize("way", ["cut", "written"])
def test_a_version_before_that_changes_meanwhile_is_not_copied(place: Place, way: str) -> None:
    with_change_at(place, CHUNK + 905)
    fetch = place.fetch()
    fetch.job.open()
    if way == "cut":
        os.truncate(place.file, CHUNK)
    else:
        with place.file.open("r+b") as file:
            file.seek(3)
            file.write(b"mine")
    fetch.job.piece()
    assert place.asked == [FIRST] and fetch.listener.reused == 0
    fetch.job.release()


class Uncopying(LocalFolder):
    """What is to be copied is gone when it comes to that."""

    def create(self, relative: RelativeName, size: int = 0) -> PartFile:
        root = Path(self.path_of(relative)).parent
        return _Uncopied(FolderDescriptor(os.open(root, os.O_RDONLY), unnamed=False), relative, root / relative, size)


class _Uncopied(PartFile):
    def copy_from(self, fd: int, offset: int, length: int) -> bool:
        return False


def test_a_block_that_cannot_be_copied_is_fetched(place: Place) -> None:
    new = with_change_at(place, CHUNK + 905)
    fetch = place.fetch(folder=Uncopying(place.root))
    fetch.all()
    assert place.file.read_bytes() == new and fetch.listener.reused == 0
    assert place.asked == [FIRST, SECOND, THIRD]


class Watched(LocalFolder):
    """Records the previous version, which is open while it is read."""

    def version_before(self, relative: RelativeName, expected: FileState | None) -> SourceFile | None:
        self.opened = super().version_before(relative, expected)
        return self.opened


def test_the_version_before_does_not_stay_open(place: Place) -> None:
    with_change_at(place, 0)
    folder = Watched(place.root)
    place.fetch(folder=folder).all()
    assert folder.opened is not None and folder.opened.fd < 0


def test_no_block_is_copied_after_an_interrupt(place: Place) -> None:
    with_change_at(place, CHUNK + 905)
    fetch = place.fetch()
    fetch.job.open()
    fetch.run.stop.set()
    with pytest.raises(Stopped):
        fetch.job.piece()
    assert fetch.listener.reused == 0
    fetch.job.release()


def test_what_was_copied_is_on_record_as_well(place: Place) -> None:
    new = with_change_at(place, CHUNK + 905)
    fetch = place.fetch()
    fetch.job.open()
    fetch.job.piece()
    fetch.job.piece()
    fetch.run.stop.set()
    fetch.job.release()
    assert [size for _, size in fetch.run.report.kept] == [sum(LENGTHS[:2])]
    os.unlink(place.file)
    place.store.requests.clear()
    assert place.fetch().all().reused == sum(LENGTHS[:2])
    assert place.file.read_bytes() == new and place.asked == [THIRD]


def test_a_plan_that_saw_no_blob_has_it_looked_at(place: Place) -> None:
    unseen = place.action()._replace(source=None)
    place.fetch(unseen).all()
    assert place.file.read_bytes() == BODY[:SIZE]
    assert isinstance(local_state(place.file), LocalState) and remote_state(place.store, NAME) is not None
