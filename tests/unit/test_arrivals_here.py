"""What counts of files that workers and tasks report: only what a look at both ends shows, too."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from blobsync.base.file_states import FileState, LocalState, RemoteState
from blobsync.base.locations import LocalLocation
from blobsync.spread.verified_records import Compared, as_seen_here, compared, known_source
from blobsync.store.open_locations import OpenBlob
from blobsync.transfer.engines import Moved
from tests.fakes.store import MemoryStore
from tests.fakes.tasks import action, download, remote_state, upload

_MD5, _OTHER_MD5 = bytes(16), bytes(range(16))
_BLOB = RemoteState(4, "0x1", _MD5)
_THERE = OpenBlob(MemoryStore("box"), "sets")


@pytest.fixture
def here(tmp_path: Path) -> LocalLocation:
    (tmp_path / "a").write_bytes(b"file")
    (tmp_path / "beside").write_bytes(b"aside")
    return LocalLocation(tmp_path)


def _state(here: LocalLocation, name: str = "a") -> LocalState:
    return LocalState.of(here.at(name).stat())


def test_a_file_counts_as_arrived_here_only_where_it_is_the_one_that_the_worker_tells_of(here: LocalLocation) -> None:
    moved = Moved(action("a", _BLOB, None), _BLOB, _state(here))
    assert as_seen_here(here, moved) == moved
    for other in (replace(_state(here), inode=1), _state(here, "beside")):
        told = moved._replace(destination=other)
        assert as_seen_here(here, told) == moved._replace(destination=None)
    here.at("a").unlink()
    assert as_seen_here(here, moved).destination is None


def test_a_file_is_looked_at_under_the_name_that_it_was_written_to(here: LocalLocation) -> None:
    moved = Moved(action("a", _BLOB, None)._replace(target="beside"), _BLOB, _state(here, "beside"))
    assert as_seen_here(here, moved) == moved


def test_what_is_in_a_container_cannot_be_looked_at_here(here: LocalLocation) -> None:
    # This machine cannot check copies between containers.
    elsewhere = Moved(action("a", _BLOB, None), _BLOB, _state(here))
    assert as_seen_here(_THERE, elsewhere) == elsewhere


@pytest.mark.parametrize(
    ("planned", "told", "known"),
    [
        (_BLOB, replace(_BLOB, md5=_OTHER_MD5), _BLOB),
        (replace(_BLOB, md5=None), replace(_BLOB, md5=_OTHER_MD5), replace(_BLOB, md5=_OTHER_MD5)),
        (_BLOB, None, None),
        (None, _BLOB, _BLOB),
        (LocalState(4, 1, 1, 1, _MD5), _BLOB, _BLOB),
        (_BLOB, LocalState(4, 1, 1, 1), LocalState(4, 1, 1, 1)),
    ],
)
def test_a_blob_has_the_md5_that_the_plan_knows_or_else_the_one_of_whoever_read_it(
    planned: FileState | None, told: FileState | None, known: FileState | None
) -> None:
    assert known_source(Moved(action("a", planned, None), told)) == known


# -- what tasks report --------------------------------------------------------------------------------------------


class Looks:
    """An upload of ``a`` and ``beside`` that a task has reported as it was."""

    def __init__(self, here: LocalLocation) -> None:
        self.here, self.store = here, MemoryStore("box")
        self.task = upload(here.path, self.store, "sets")
        self.told = {}
        for each in self.task.actions:
            body = here.at(each.path).read_bytes()
            self.store.add(f"sets/{each.path}", body)
            assert isinstance(each.source, LocalState)
            source = replace(each.source, md5=hashlib.md5(body).digest())
            self.told[each.path] = Moved(each, source, self.there(each.path))

    def there(self, name: str) -> RemoteState:
        found = remote_state(self.store, f"sets/{name}")
        assert found is not None
        return found

    def compared(self) -> Compared:
        return compared(self.task.part, list(self.told.values()), lambda event: None)


def test_an_upload_is_verified_where_the_listing_and_the_source_are_as_its_task_says(here: LocalLocation) -> None:
    looks = Looks(here)
    found = looks.compared()
    assert {each.action.path: each.destination for each in found.verified} == {
        name: looks.there(name) for name in ("a", "beside")
    }
    assert not found.changed and not found.others
    # Nothing but names and states was looked at: neither end is read.
    assert not looks.store.asked("open")


@pytest.mark.parametrize("how", ["etag", "md5", "size", "gone", "unsaid"])
def test_a_blob_that_is_not_what_the_task_wrote_is_not_verified(here: LocalLocation, how: str) -> None:
    looks = Looks(here)
    told = looks.told["a"]
    there = looks.there("a")
    if how == "gone":
        looks.store.delete("sets/a")
    states = {
        "etag": replace(there, etag="0xother"),
        "md5": replace(there, md5=_OTHER_MD5),
        "size": replace(there, size=there.size + 1),
        "gone": there,
        "unsaid": None,
    }
    looks.told["a"] = told._replace(destination=states[how])
    found = looks.compared()
    assert [each.action.path for each in found.others] == ["a"]
    assert [each.action.path for each in found.verified] == ["beside"] and not found.changed


@pytest.mark.parametrize("how", ["content", "gone", "another file"])
def test_a_source_that_is_no_more_what_the_task_read_is_told_apart(here: LocalLocation, how: str) -> None:
    looks = Looks(here)
    file = here.at("a")
    if how == "content":
        file.write_bytes(b"more than before")
    else:
        file.unlink()
    if how == "another file":
        file.write_bytes(b"file")
    found = looks.compared()
    assert [each.action.path for each in found.changed] == ["a"]
    assert [each.action.path for each in found.verified] == ["beside"] and not found.others


def test_a_download_is_verified_where_the_file_is_the_one_that_its_task_wrote(here: LocalLocation) -> None:
    store = MemoryStore("box")
    for name in ("a", "b"):
        store.add(f"sets/{name}", b"file")
    task = download(store, "sets", here.path, ["a", "b"])
    here.at("b").write_bytes(b"file")
    told = []
    for each in task.actions:
        md5 = hashlib.md5(b"file").digest()
        told.append(Moved(each, each.source, replace(_state(here, each.path), md5=md5)))
    here.at("b").write_bytes(b"elif")
    os.utime(here.at("b"), ns=(0, 0))
    found = compared(task.part, told, lambda event: None)
    # Its MD5 is what the task has computed.
    assert [each.destination for each in found.verified] == [told[0].destination]
    assert [each.action.path for each in found.others] == ["b"]
