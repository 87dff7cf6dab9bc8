"""One folder, name by name: sizes on both sides and the state of each file, from the index and with a listing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from blobsync.project.folders import FolderStatus
from tests.unit.test_status import Place, place, synced

__all__ = ["place", "synced"]


def _whole(place: Place, path: str = "data", *, fresh: bool = False) -> FolderStatus:
    *_, last = place.project.folder(path, fresh=fresh)
    assert last.whole
    return last


def _said(status: FolderStatus) -> dict[str, tuple[int, int, Mapping[str, int]]]:
    return {key: (each.here.bytes, each.there.bytes, each.states) for key, each in status.names.items()}


def test_each_name_has_its_size_on_both_sides_and_its_state(synced: Place) -> None:
    _whole(synced, fresh=True)
    synced.write("data/a", b"edited")
    synced.write("data/five/1/x", b"12345")
    synced.write("data/five/y", b"67")
    (synced.root / "data/b").unlink()
    status = _whole(synced)
    assert _said(status) == {
        "a": (6, 10, {"changed_here": 1}),
        "b": (0, 10, {"remote_only": 1}),
        "c": (10, 10, {"equal": 1}),
        "five/": (7, 0, {"local_only": 2}),
    }
    assert not status.fresh and status.as_of is not None
    assert status.names["five/"].here.files == 2 and status.names["five/"].is_folder
    assert _said(_whole(synced, "data/five")) == {
        "1/": (5, 0, {"local_only": 1}),
        "y": (2, 0, {"local_only": 1}),
    }


def test_a_folder_that_was_never_listed_is_listed_and_a_listing_is_renewed_when_asked_for(place: Place) -> None:
    place.store.add("store/data/sub/x", b"123")
    first = _whole(place)
    assert first.fresh and _said(first) == {"sub/": (0, 3, {"remote_only": 1})}
    place.store.add("store/data/new", b"4")
    known = _whole(place)
    assert not known.fresh and list(known.names) == ["sub/"]
    assert sorted(_whole(place, fresh=True).names) == ["new", "sub/"]


def test_an_entry_inside_is_a_folder_of_the_one_around_it(place: Place) -> None:
    place.write("data/coco/x", b"123")
    place.write("data/y", b"1")
    assert _said(_whole(place)) == {"coco/": (3, 0, {"local_only": 1}), "y": (1, 0, {"local_only": 1})}


def test_nothing_and_a_file_are_distinguished(synced: Place) -> None:
    nothing = _whole(synced, "data/none")
    assert (nothing.names, nothing.is_file) == ({}, False)
    assert _whole(synced, "data/a").is_file


def test_a_name_that_is_no_utf8_and_what_is_left_out_can_be_shown(place: Place, tmp_path: Path) -> None:
    place.write("data/x", b"1")
    with open(os.fsencode(place.root / "data") + b"/\xff", "wb") as target:
        target.write(b"2")
    (tmp_path / "away").mkdir()
    (place.root / "data/link").symlink_to(tmp_path / "away")
    for each in _whole(place).names.values():
        each.name.encode()


def test_a_name_that_no_blob_can_have_is_nothing_to_upload(place: Place) -> None:
    place.write("data/x", b"1")
    place.write("data/a\\b", b"22")
    place.write("data/sub/c\\d", b"333")
    assert _said(_whole(place)) == {
        "a\\b": (2, 0, {"unnamable": 1}),
        "sub/": (3, 0, {"unnamable": 1}),
        "x": (1, 0, {"local_only": 1}),
    }


def test_a_file_that_cannot_be_read_is_a_name_of_its_folder(place: Place) -> None:
    place.write("data/x", b"1")
    place.write("data/sub/y", b"22")
    (place.root / "data/broken").symlink_to("nowhere")
    (place.root / "data/sub/loop").symlink_to("loop")
    status = _whole(place)
    assert (_said(status), status.unreadable) == (
        {
            "broken": (0, 0, {"unreadable": 1}),
            "sub/": (2, 0, {"local_only": 1, "unreadable": 1}),
            "x": (1, 0, {"local_only": 1}),
        },
        2,
    )
    assert _said(_whole(place, "data/sub"))["loop"] == (0, 0, {"unreadable": 1})
