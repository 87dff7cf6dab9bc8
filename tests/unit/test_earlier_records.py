"""Records of workers whose coordinator was killed: files, blocks, and what is left for the next run."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from blobsync.base.errors import FailureCode, FileFailure
from blobsync.base.file_states import LocalState, RemoteState
from blobsync.local.index import Index, PairIndex
from blobsync.plan.transfer_plan import FileAction, IndexKey
from blobsync.spread.earlier_records import EarlierBlocks, leave_told, merge_records, recall, record_files
from blobsync.spread.record import Answer, FileRecord, NamedBlock, Ready, answer_line
from blobsync.spread.shard import Shard, cut, cut_file, shard_lines
from blobsync.spread.shared_store import CLAIM_SECONDS, FolderStore
from blobsync.store.open_locations import OpenBlob
from blobsync.store.protocol import block_id_of
from blobsync.transfer.engines import MoveTask
from tests.fakes.store import MemoryStore
from tests.fakes.tasks import copy, download, upload

_PARENT, _WORKER = (str(uuid.UUID(int=number)) for number in (1, 2))
_ONE, _TWO = (block_id_of(bytes([number]) * 32) for number in (1, 2))
_MIB = 1 << 20
_MD5 = hashlib.md5(b"planned").digest()


class Place(FolderStore):
    """Counts requests for claims. A folder in it stands for a file that was removed after the listing."""

    asked = 0

    def claim(self, name: str, holder: str) -> bool:
        self.asked += 1
        return super().claim(name, holder)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "place")


@pytest.fixture
def known(tmp_path: Path) -> Iterator[Index]:
    index = Index(tmp_path / "index.sqlite", lambda text: None)
    yield index
    index.close()


def _write(place: FolderStore, number: int, shard: Shard, *told: Answer) -> None:
    """A shard, and one worker's records of it."""
    place.write(f"shards/{number:07}", ("\n".join(shard_lines(shard)) + "\n").encode())
    if told:
        lines = "".join(f"{answer_line(each)}\n" for each in (Ready(), *told))
        place.write(f"records/{number:07}~node1.0-00000001~000000", lines.encode())


def _with_gone_files(place: FolderStore, tmp_path: Path) -> None:
    for name in ("shards/0000000", "records/0000000~node1.0-00000001~000001", "records/0000001~node1.0-0~000001"):
        (tmp_path / "place" / name).mkdir(parents=True)


# -- blocks of large files ----------------------------------------------------------------------------------------


def _large(tmp_path: Path) -> tuple[MoveTask, list[Shard]]:
    """A file's reader, and its ranges of two blocks each."""
    root = tmp_path / "data"
    root.mkdir(exist_ok=True)
    (root / "big").write_bytes(bytes(8 * _MIB))
    task = upload(root, MemoryStore("box"), "sets")
    return task, list(cut_file(task.part, task.actions[0], 4 * _MIB))


def test_blocks_are_known_for_the_version_that_was_told_of_last_and_given_once(tmp_path: Path) -> None:
    task, (_, first, second) = _large(tmp_path)
    (action,) = task.actions
    assert isinstance(action.source, LocalState)
    blocks = EarlierBlocks()
    blocks.add(first, {0: _ONE})
    blocks.add(second, {2: _TWO})
    assert blocks.take(task.part, action) == {0: _ONE, 2: _TWO}
    assert blocks.take(task.part, action) == {}
    changed = replace(action, source=replace(action.source, inode=1))
    blocks.add(first, {0: _ONE})
    blocks.add(replace(second, actions=(changed,)), {2: _TWO})
    assert blocks.take(task.part, changed) == {2: _TWO}
    blocks.add(first, {0: _ONE})
    assert blocks.take(task.part, changed) == {}


def test_blocks_are_those_of_the_blob_that_they_were_put_for(tmp_path: Path) -> None:
    task, (_, first, _) = _large(tmp_path)
    (action,) = task.actions
    blocks = EarlierBlocks()
    blocks.add(first, {0: _ONE})
    assert blocks.take(task.part, replace(action, target="aside")) == {}
    assert blocks.take(task.part, replace(action, target="big")) == {0: _ONE}
    there = task.part.destination
    assert isinstance(there, OpenBlob)
    blocks.add(first, {0: _ONE})
    assert blocks.take(replace(task.part, destination=OpenBlob(there.store, "other")), action) == {}


def test_what_a_reader_has_read_is_not_at_the_destination(place: Place, known: Index, tmp_path: Path) -> None:
    task, (reader, first, _) = _large(tmp_path)
    _write(place, 1, reader, NamedBlock(0, _ONE), NamedBlock(1, _TWO))
    _write(place, 2, first, NamedBlock(1, _TWO))
    merged = merge_records(place, [task.part], lambda key: known.pair(*key.roots))
    assert (merged.files, merged.next_number, merged.anything) == (0, 3, True)
    assert merged.blocks.take(task.part, task.actions[0]) == {1: _TWO}


def test_who_stops_leaves_blocks_that_were_put_and_where_asked_to_files_that_moved(
    place: Place, tmp_path: Path
) -> None:
    task, (reader, first, second) = _large(tmp_path)
    (small,) = cut(task.part, task.actions, 1)

    def fill() -> None:
        _write(place, 1, reader, NamedBlock(0, _ONE))
        _write(place, 2, first, NamedBlock(0, _ONE))
        _write(place, 3, second, FileRecord("big", failure=FileFailure("big", FailureCode.ERROR, "m")))
        _write(place, 4, small, FileRecord("big", task.actions[0].source))
        _write(place, 5, small)
        _with_gone_files(place, tmp_path)
        (tmp_path / "place" / "records" / "0000002~node1.0-00000001~000001").mkdir()
        place.write("shards/junk", b"no shard")
        place.write("done/0000004", b"")

    fill()
    told = place.read("records/0000004~node1.0-00000001~000000")
    assert leave_told(place, files=True)
    assert place.names("shards") == ["0000002", "0000004"] and not place.names("done")
    assert place.read("records/0000004~node1.0-00000001~000000") == told
    assert place.read("records/0000002~node1.0-00000001~000001") == b"", "of what has gone nothing is said"
    place.remove_all()
    fill()
    assert leave_told(place, files=False)
    assert place.names("shards") == ["0000002"]
    place.remove_all()
    _write(place, 4, small, FileRecord("big", task.actions[0].source))
    assert not leave_told(place, files=False) and not place.names("shards")


# -- taking shards back -------------------------------------------------------------------------------------------


def test_only_shards_that_somebody_has_are_waited_for_and_no_longer_than_claims_last(
    place: Place, tmp_path: Path
) -> None:
    for number in range(3):
        place.write(f"shards/{number:07}", b"")
    assert place.claim("claims/0000001", _WORKER) and place.claim("claims/0000002", _WORKER)
    place.release("claims/0000002", _WORKER)
    place.asked = 0
    seconds: list[float] = []

    def sleep(pause: float) -> None:
        assert 0 < pause < 1
        seconds.append(CLAIM_SECONDS / 2)

    recall(place, _PARENT, now=lambda: sum(seconds), sleep=sleep)
    assert place.names("done") == [f"{number:07}" for number in range(3)]
    # Two had a claim: one was free, the other was requested until the time was over.
    assert place.asked == 2 + 1 and sum(seconds) == CLAIM_SECONDS
    assert place.claim("claims/0000000", _WORKER), "nobody had it, and nobody has it now"


def test_where_all_have_given_up_nobody_waits(place: Place) -> None:
    place.write("shards/0000000", b"")
    place.claim("claims/0000000", _WORKER)
    place.release("claims/0000000", _WORKER)

    def sleep(pause: float) -> None:
        raise AssertionError("nothing to wait for")

    recall(place, _PARENT, sleep=sleep)
    assert place.names("done") == ["0000000"]


# -- files --------------------------------------------------------------------------------------------------------


def _pair(known: Index, key: IndexKey) -> PairIndex:
    return known.pair(*key.roots)


def _recorded(place: FolderStore, known: Index, task: MoveTask) -> list[str]:
    count = record_files(place, [task.part], lambda key: _pair(known, key))
    found = known.pair("data", "blobs").get([f"x/{action.path}" for action in task.actions])
    assert count == len(found)
    return sorted(found)


def _shard(task: MoveTask, *actions: FileAction) -> Shard:
    return Shard(0, task.part.route, "d", str(task.part.source), str(task.part.destination), actions)


def test_a_place_without_shards_has_nothing_to_tell(place: Place, known: Index, tmp_path: Path) -> None:
    task = download(MemoryStore("box"), "sets", tmp_path, [])
    merged = merge_records(place, [task.part], lambda key: _pair(known, key))
    assert (merged.files, merged.next_number, merged.anything) == (0, 0, False)


def test_what_others_put_among_the_shards_stops_nobody(place: Place, known: Index, tmp_path: Path) -> None:
    task = download(MemoryStore("box"), "sets", tmp_path, [])
    place.write("shards/junk", b"no shard")
    place.write("records/junk~node1.0-00000001~000000", b"no record")
    merged = merge_records(place, [task.part], lambda key: _pair(known, key))
    assert (merged.files, merged.next_number, merged.anything) == (0, 0, True)
    assert not place.names("shards")


class Gone(FolderStore):
    """A store whose shards and records are removed after they were listed."""

    def read(self, name: str) -> bytes | None:
        return None


def test_what_somebody_removes_meanwhile_counts_as_absent(known: Index, tmp_path: Path) -> None:
    task, (_, first, _) = _large(tmp_path)
    place = Gone(tmp_path / "place")
    _write(place, 1, first, NamedBlock(0, _ONE))
    assert _recorded(place, known, task) == []
    merged = merge_records(place, [task.part], lambda key: _pair(known, key))
    assert (merged.files, merged.next_number) == (0, 2)
    _write(place, 1, first, NamedBlock(0, _ONE))
    assert not leave_told(place, files=True) and not place.names("shards")


class Copying:
    """A blob to be copied, and a worker's record of it."""

    def __init__(self, place: FolderStore, *, target: str | None = None, with_md5: bool = True) -> None:
        self.here = MemoryStore("here")
        self.there = MemoryStore("there", {"here": self.here})
        self.here.add("x/a", b"planned", with_md5=with_md5)
        self.task = copy(self.here, "x", self.there, "y", ["a"])
        (self.action,) = self.task.actions
        self.action = replace(self.action, target=target)
        self.place = place
        self._looks = len(self.there.asked("head"))

    @property
    def looks(self) -> int:
        """A version that appeared at the destination since the plan was made."""
        return len(self.there.asked("head")) - self._looks

    def tell(self, *told: Answer) -> None:
        _write(self.place, 0, _shard(self.task, self.action), *(told or [Ready()]))

    def arrive(self, name: str = "y/a", *, with_md5: bool = True) -> RemoteState:
        info = self.there.add(name, b"planned", with_md5=with_md5)
        return RemoteState(info.size, info.etag, info.md5)


def test_a_copy_of_which_the_version_was_told_is_recorded_once(place: Place, known: Index) -> None:
    copying = Copying(place)
    copying.tell(FileRecord("a", copying.action.source, copying.arrive()))
    assert _recorded(place, known, copying.task) == ["x/a"]
    assert copying.looks == 1


def test_a_version_that_is_not_there_any_more_is_not_recorded_and_that_of_another_is_only_by_content(
    place: Place, known: Index
) -> None:
    copying = Copying(place)
    there = copying.arrive()
    copying.tell(FileRecord("a", copying.action.source, there))
    del copying.there.blobs["y/a"]
    assert _recorded(place, known, copying.task) == []
    copying.there.add("y/a", b"foreign")
    assert _recorded(place, known, copying.task) == []


def test_where_no_version_was_told_the_destination_is_asked_once(place: Place, known: Index) -> None:
    copying = Copying(place)
    copying.arrive()
    copying.tell(FileRecord("a", copying.action.source))
    assert _recorded(place, known, copying.task) == ["x/a"]
    assert copying.looks == 1


@pytest.mark.parametrize("with_md5", [True, False])
def test_a_copy_is_found_under_the_name_that_it_was_made_with(place: Place, known: Index, with_md5: bool) -> None:
    copying = Copying(place, target="aside", with_md5=with_md5)
    copying.tell()
    copying.arrive("y/aside", with_md5=with_md5)
    assert _recorded(place, known, copying.task) == ["x/a"]


def test_what_has_no_md5_where_the_source_has_one_is_somebody_elses_and_not_read(place: Place, known: Index) -> None:
    copying = Copying(place)
    copying.tell()
    copying.arrive(with_md5=False)
    assert _recorded(place, known, copying.task) == []
    assert not copying.there.asked("get") and not copying.here.asked("get")


def test_what_failed_is_not_told_as_moved(place: Place, known: Index, tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    (root / "a").write_bytes(b"planned")
    store = MemoryStore("box")
    task = upload(root, store, "sets")
    _write(place, 0, _shard(task, *task.actions), FileRecord("a", failure=FileFailure("a", FailureCode.ERROR, "m")))
    store.add("sets/a", b"planned")
    assert _recorded(place, known, task) == []


def test_an_upload_that_nobody_told_of_is_not_recorded_though_its_md5_is_known(
    place: Place, known: Index, tmp_path: Path
) -> None:
    root = tmp_path / "data"
    root.mkdir()
    (root / "a").write_bytes(b"planned")
    store = MemoryStore("box")
    task = upload(root, store, "sets")
    (action,) = task.actions
    assert isinstance(action.source, LocalState)
    _write(place, 0, _shard(task, replace(action, source=replace(action.source, md5=_MD5))), Ready())
    store.add("sets/a", b"planned")
    assert _recorded(place, known, task) == []


class Downloading:
    """A blob to be downloaded to ``down/a``, or ``down/TARGET``."""

    def __init__(self, place: FolderStore, root: Path, *, with_md5: bool, target: str | None = None) -> None:
        self.store, self.root, self.place = MemoryStore("box"), root, place
        self.file = root / (target or "a")
        root.mkdir()
        self.store.add("sets/a", b"planned", with_md5=with_md5)
        self.task = download(self.store, "sets", root, ["a"])
        self.action = replace(self.task.actions[0], target=target)

    def arrive(self) -> LocalState:
        self.file.write_bytes(b"planned")
        return LocalState.of(self.file.stat())

    def tell(self, *told: Answer) -> None:
        _write(self.place, 0, _shard(self.task, self.action), *(told or [Ready()]))

    def record(self) -> FileRecord:
        source = self.action.source
        assert isinstance(source, RemoteState)
        return FileRecord("a", replace(source, md5=_MD5), replace(self.arrive(), md5=_MD5))


def test_a_download_counts_as_told_though_its_blob_has_no_md5_and_is_another_by_now(
    place: Place, known: Index, tmp_path: Path
) -> None:
    downloading = Downloading(place, tmp_path / "down", with_md5=False)
    downloading.tell(downloading.record())
    downloading.store.add("sets/a", b"another version")
    assert _recorded(place, known, downloading.task) == ["x/a"]


def test_a_download_that_is_not_here_any_more_is_not_recorded(place: Place, known: Index, tmp_path: Path) -> None:
    downloading = Downloading(place, tmp_path / "down", with_md5=True)
    downloading.tell(downloading.record())
    downloading.file.unlink()
    assert _recorded(place, known, downloading.task) == []


@pytest.mark.parametrize("with_md5", [True, False])
def test_a_download_without_a_word_is_found_under_the_name_that_it_was_written_to(
    place: Place, known: Index, tmp_path: Path, with_md5: bool
) -> None:
    downloading = Downloading(place, tmp_path / "down", with_md5=with_md5, target="aside")
    downloading.tell()
    assert _recorded(place, known, downloading.task) == []
    downloading.arrive()
    assert _recorded(place, known, downloading.task) == ["x/a"]


@pytest.mark.parametrize("replaced", [True, False])
def test_of_files_that_the_plan_saw_here_only_those_that_were_replaced_are_recorded(
    place: Place, known: Index, tmp_path: Path, replaced: bool
) -> None:
    downloading = Downloading(place, tmp_path / "down", with_md5=True)
    seen = downloading.arrive()
    downloading.action = replace(downloading.action, destination=replace(seen, inode=1) if replaced else seen)
    downloading.tell()
    assert _recorded(place, known, downloading.task) == (["x/a"] if replaced else [])
