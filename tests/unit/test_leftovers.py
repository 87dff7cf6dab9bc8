"""Leftovers of a killed run beside the destinations are removed before their files move again, and nothing else."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from blobsync.base.file_states import RemoteState
from blobsync.base.locations import LocalLocation
from blobsync.local.resume_records import RangeRecords, UnfinishedDownload
from blobsync.local.state_dir import StateDir
from blobsync.plan.project_context import LivePart
from blobsync.transfer.batch import remove_unrecorded, tidy
from tests.fakes.project_context import World, account, cluster
from tests.fakes.store import MemoryStore
from tests.fakes.tasks import download, upload

PART, OTHER = ".blobsync-0badcafe.part", ".blobsync-1badcafe.part"


class Place:
    """A folder with the part files of a recorded and an unrecorded download; and a container."""

    def __init__(self, root: Path) -> None:
        self.root = root / "down"
        self.root.mkdir()
        (root / "state").mkdir(mode=0o700)
        self.records = RangeRecords(StateDir(root / "state"))
        self.store = MemoryStore()
        self.info = self.store.add("p/a", b"body")
        for name in (PART, OTHER):
            (self.root / name).write_bytes(b"body")
        blob = str(self.store.container.child("p/a"))
        inode = os.stat(self.root / PART).st_ino
        self.begin(UnfinishedDownload(str(self.root / "a"), blob, self.info.etag, 4, PART, inode))

    def begin(self, of: UnfinishedDownload) -> None:
        record = self.records.start(of)
        assert record is not None
        record.close()

    def part(self, name: str = "a") -> LivePart:
        task = download(self.store, "p", self.root, [name])
        return replace(task.part, actions=tuple(task.actions))

    def left(self) -> set[str]:
        return {each.name for each in self.root.rglob(".*")}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_what_is_on_record_stays_and_what_is_not_goes(place: Place) -> None:
    part = place.part()
    remove_unrecorded(place.records, part, part.actions)
    assert place.left() == {PART}


def test_without_records_nothing_goes_on_from_there(place: Place) -> None:
    part = place.part()
    remove_unrecorded(None, part, part.actions)
    assert place.left() == set()


def test_only_the_folders_of_the_files_that_move_are_looked_at(place: Place) -> None:
    below = place.root / "sub"
    below.mkdir()
    (below / OTHER.replace("1", "2")).write_bytes(b"")
    part = place.part("sub/b")
    remove_unrecorded(place.records, part, part.actions)
    assert place.left() == {PART, OTHER}


def test_uploads_leave_part_files_alone(place: Place) -> None:
    (place.root / "a").write_bytes(b"a")
    task = upload(place.root, place.store, "p", ["a"])
    assert isinstance(task.part.source, LocalLocation)
    remove_unrecorded(place.records, task.part, task.actions)
    assert place.left() == {PART, OTHER}


def test_a_download_that_goes_on_keeps_what_it_goes_on_from(place: Place) -> None:
    tidy(place.records, [place.part()], "direct")
    assert place.left() == {PART, OTHER}
    tidy(None, [place.part()], "azcopy")
    assert place.left() == {PART, OTHER}


@pytest.mark.parametrize("why", ["another engine", "another version"])
def test_what_no_download_goes_on_from_goes_with_its_record(place: Place, why: str) -> None:
    part = place.part()
    if why == "another version":
        (action,) = part.actions
        part = replace(part, actions=(action._replace(source=RemoteState(4, "other", None)),))
    tidy(place.records, [part], "azcopy" if why == "another engine" else "direct")
    assert place.left() == {OTHER} and not list(place.records.all())


def test_downloads_of_other_files_keep_it(place: Place) -> None:
    tidy(place.records, [place.part("b")], "azcopy")
    assert place.left() == {PART, OTHER}


def test_a_transfer_removes_what_it_will_not_go_on_from(tmp_path: Path) -> None:
    place = Place(tmp_path)
    world = World(tmp_path / "project", cluster("eu", data=account("eu")), unfinished=place.records)
    file = world.root / "data/a"
    file.parent.mkdir()
    file.write_bytes(b"body")
    assert world.run("u", "data").ok
    (part := file.parent / PART).write_bytes(b"bo")
    older = UnfinishedDownload(str(file), "blob", "an older version", 4, PART, os.stat(part).st_ino)
    place.begin(older)
    # The file is as in the container, so that nothing is downloaded.
    assert world.run("d", "data").transferred == 0
    assert not part.exists()
    assert [of.destination for of, _ in place.records.all()] == [str(place.root / "a")]


def test_of_a_single_file_the_folder_that_it_is_in_is_looked_at(place: Place) -> None:
    part = place.part()
    file = replace(part, destination=LocalLocation(place.root / "a"))
    remove_unrecorded(place.records, file, [part.actions[0]._replace(path="")])
    assert place.left() == {PART}
