"""The one look before deciding: what each end is, which pairs there are, and what had to be read for them."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from blobsync.base.errors import LocalFileError, NothingMatchedError, ShapeConflictError, StorageError
from blobsync.base.file_states import FileState, LocalState, RemoteState
from blobsync.base.reasons import Reason
from blobsync.local.index import Index, PairIndex, Record
from blobsync.local.tree import LinkPolicy
from blobsync.plan.pairs import Pair
from blobsync.plan.survey import Request, Survey, survey
from blobsync.plan.transfer_plan import IndexKey, Route, Shape
from blobsync.store.ends import LiveEnd, LocalEnd, RemoteEnd
from tests.fakes.store import MemoryStore
from tests.fakes.store import Request as Asked
from tests.fakes.tasks import live_part

UP, DOWN, COPY = Route.UPLOAD, Route.DOWNLOAD, Route.SAME_ACCOUNT


def md5(body: bytes) -> bytes:
    return hashlib.md5(body).digest()


@dataclass
class Look:
    """A project folder ``x`` beside the blobs ``y/...``, and for copies the blobs ``z/...`` as the source."""

    root: Path
    store: MemoryStore = field(default_factory=MemoryStore)
    seen: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.index = Index(self.root / "index")
        self.records: PairIndex = self.index.pair("a", "b")

    def write(self, **files: bytes) -> None:
        for name, body in files.items():
            path = self.root / "x" / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)

    def state(self, name: str, body: bytes | None = None) -> LocalState:
        return LocalState.of(os.stat(self.root / "x" / name), md5(body) if body is not None else None)

    def blob(self, name: str) -> RemoteState:
        info = self.store.blobs[name].info
        return RemoteState(info.size, info.etag, info.md5)

    def request(self, route: Route, **more: Any) -> Request:
        local, remote = LocalEnd(self.root / "x"), RemoteEnd(self.store, "y")
        ends: dict[Route, tuple[LiveEnd, LiveEnd]] = {
            UP: (local, remote),
            DOWN: (remote, local),
            COPY: (RemoteEnd(self.store, "z"), remote),
        }
        source, destination = ends[route]
        part = live_part(route, more.pop("source", source), destination)
        made = Request(part, LinkPolicy("follow", os.path.realpath(self.root)), self.records)
        return made._replace(**more)

    def survey(self, route: Route, **more: object) -> Survey:
        return survey(self.request(route, **more), self.seen.append)

    def pairs(self, route: Route, **more: object) -> dict[str, Pair]:
        found = self.survey(route, **more)
        return {pair.path: pair for pair in found.pairs}


@pytest.fixture
def look(tmp_path: Path) -> Look:
    return Look(tmp_path)


def test_a_folder_is_paired_up_and_counted(look: Look) -> None:
    look.write(a=b"a", sub__b=b"bb")
    look.store.add("y/sub/b", b"BBB")
    look.store.add("y/c", b"c")
    look.store.add("yy/d", b"d")
    for route in (UP, DOWN):
        found = look.survey(route)
        pairs = {pair.path: pair for pair in found.pairs}
        near = {"a": look.state("a"), "sub/b": look.state("sub/b"), "c": None}
        far = {"a": None, "sub/b": look.blob("y/sub/b"), "c": look.blob("y/c")}
        assert {path: (pair.source, pair.destination) for path, pair in pairs.items()} == {
            path: (near[path], far[path]) if route is UP else (far[path], near[path]) for path in near
        }
        assert (found.shape, found.source_files, found.destination_files) == (Shape.FOLDER, 2, 2)
        assert not found.has_hidden


def test_a_copy_is_paired_up_from_two_listings(look: Look) -> None:
    look.store.add("z/a", b"a")
    look.store.add("z/b", b"b")
    look.store.add("y/b", b"bb")
    pairs = look.pairs(COPY)
    assert {path: (pair.source, pair.destination) for path, pair in pairs.items()} == {
        "a": (look.blob("z/a"), None),
        "b": (look.blob("z/b"), look.blob("y/b")),
    }


@pytest.mark.parametrize("there", [False, True])
def test_a_single_file_is_one_pair(look: Look, there: bool) -> None:
    (look.root / "x").write_bytes(b"a")
    if there:
        look.store.add("y", b"a")
    found = look.survey(UP)
    (pair,) = found.pairs
    local = LocalState.of(os.stat(look.root / "x"), md5(b"a") if there else None)
    assert (pair.path, pair.source, pair.destination) == ("", local, look.blob("y") if there else None)
    assert (found.shape, found.source_files, found.destination_files) == (Shape.FILE, 1, int(there))


def test_a_single_blob_is_one_pair(look: Look) -> None:
    look.store.add("y", b"a")
    found = look.survey(DOWN)
    assert [(pair.path, pair.source, pair.destination) for pair in found.pairs] == [("", look.blob("y"), None)]
    assert found.shape is Shape.FILE


def test_a_source_that_is_not_there_is_said(look: Look) -> None:
    look.store.add("yy/a", b"a")
    for route, folder_only, what in (
        (UP, False, "file or folder"),
        (UP, True, "folder"),
        (DOWN, False, "file or folder"),
    ):
        with pytest.raises(NothingMatchedError, match=rf"data/x: there is no such {what} at the source, ") as missing:
            look.survey(route, folder_only=folder_only)
        assert missing.value.path == "data/x"
    assert "'blobsync ls' shows what is there" in (missing.value.hint or "")


def test_a_file_is_no_folder_where_a_slash_asks_for_one(look: Look) -> None:
    (look.root / "x").write_bytes(b"a")
    look.store.add("y", b"a")
    for route in (UP, DOWN):
        with pytest.raises(NothingMatchedError):
            look.survey(route, folder_only=True)
    # Nor is it asked for.
    assert look.store.asked("head") == []


@pytest.mark.parametrize(
    ("blobs", "route", "what"),
    [
        (("y", "y/a"), DOWN, "both a blob and a folder at the source"),
        (("y",), UP, "a folder at the source, but a file at the destination"),
    ],
)
def test_a_folder_against_a_file_is_a_conflict(look: Look, blobs: tuple[str, ...], route: Route, what: str) -> None:
    look.write(a=b"a")
    for name in blobs:
        look.store.add(name, b"b")
    with pytest.raises(ShapeConflictError, match=what):
        look.survey(route)


def test_a_file_against_a_folder_is_a_conflict(look: Look) -> None:
    (look.root / "x").write_bytes(b"a")
    look.store.add("y/a", b"b")
    with pytest.raises(ShapeConflictError, match="a file at the source, but a folder at the destination"):
        look.survey(UP)


def test_a_container_that_is_mapped_whole_has_no_name_to_ask_for(look: Look) -> None:
    look.store.add("a", b"a")
    pairs = look.pairs(DOWN, source=RemoteEnd(look.store, ""))
    assert set(pairs) == {"a"}
    assert look.store.asked("head") == []
    assert [each.name for each in look.store.asked("list")] == [""]


def test_what_stands_where_the_folder_should_be_is_said(look: Look) -> None:
    os.mkfifo(look.root / "x")
    with pytest.raises(LocalFileError, match="neither a file nor a folder"):
        look.survey(UP)


def test_a_path_that_cannot_be_looked_at_is_said(look: Look) -> None:
    (look.root / "loop").symlink_to("loop")
    with pytest.raises(LocalFileError, match="cannot look at") as refused:
        look.survey(UP, source=LocalEnd(look.root / "loop" / "x"))
    assert refused.value.path == "data/x"
    (look.root / "file").write_bytes(b"")
    with pytest.raises(NothingMatchedError):
        look.survey(UP, source=LocalEnd(look.root / "file" / "x"))


def add_stub(look: Look, name: str) -> None:
    look.store.blobs[name].info = look.store.add(name, b"")._replace(is_folder_stub=True)


def test_marks_of_folders_and_unfinished_files_are_no_data(look: Look) -> None:
    temporary = "y/sub/.azDownload-12345678-1234-1234-1234-123456789012-a"
    look.store.add("y/a", b"a")
    add_stub(look, "y/sub")
    assert set(look.pairs(DOWN)) == {"a"}
    assert not (found := look.survey(DOWN)).has_hidden and list(found.pairs) and not found.has_hidden
    for name in ("y/empty/", temporary):
        look.store.add(name, b"")
        found = look.survey(DOWN)
        assert [pair.path for pair in found.pairs] == ["a"]
        assert found.has_hidden
        del look.store.blobs[name]
    look.store.add("y/.hidden", b"h")
    look.store.add("y/full/", b"f")
    assert set(look.pairs(DOWN)) == {"a", ".hidden", "full/"}


def test_a_stub_whose_name_is_none_for_a_disk_is_hidden(look: Look) -> None:
    look.store.add("y/a", b"a")
    add_stub(look, "y/../out")
    found = look.survey(DOWN)
    assert ([pair.path for pair in found.pairs], found.has_hidden) == (["a"], True)


def test_a_stub_of_the_folder_itself_is_no_file(look: Look) -> None:
    add_stub(look, "y")
    look.store.add("y/a", b"a")
    assert set(look.pairs(DOWN)) == {"a"}


def test_records_are_those_of_both_sides_at_the_right_path(look: Look) -> None:
    look.write(a=b"a", b=b"b", c=b"c")
    look.store.add("y/a", b"a")
    look.store.add("y/b", b"b")
    record = Record(look.state("a", b"a"), look.blob("y/a"))
    look.records.put({"x/a": record, "x/c": record, "b": record})
    pairs = look.pairs(UP)
    assert {path: pair.record for path, pair in pairs.items()} == {"a": record, "b": None, "c": None}
    # On record as it is: not read.
    assert pairs["a"].source == look.state("a")
    assert pairs["b"].source == look.state("b", b"b")


@pytest.mark.parametrize(
    ("record_path", "path", "expected"), [("x", "a", "x/a"), ("x", "", "x"), ("", "a", "a"), ("", "", "")]
)
def test_where_a_file_lies_below_the_index(record_path: str, path: str, expected: str) -> None:
    assert IndexKey("", "", record_path).at(path) == expected


@pytest.mark.parametrize("route", [UP, DOWN])
def test_files_are_read_only_where_sizes_agree(look: Look, route: Route) -> None:
    look.write(same=b"1", other=b"22", only=b"3")
    look.store.add("y/same", b"9")
    look.store.add("y/other", b"1")
    pairs = look.pairs(route)
    local = {path: pair.source if route is UP else pair.destination for path, pair in pairs.items()}
    assert {path: state.md5 if state else None for path, state in local.items()} == {
        "same": md5(b"1"),
        "other": None,
        "only": None,
    }


def contents(look: Look, route: Route) -> tuple[FileState | None, FileState | None]:
    pair = look.pairs(route, compare_content=True)["a"]
    return pair.source, pair.destination


def test_blobs_without_an_md5_are_read_where_that_was_asked_for(look: Look) -> None:
    look.write(a=b"local")
    look.store.add("y/a", b"there", with_md5=False)
    bare = look.blob("y/a")
    assert look.pairs(UP)["a"].destination == bare
    read, hashed = replace(bare, md5=md5(b"there")), look.state("a", b"local")
    assert contents(look, UP) == (hashed, read)
    assert contents(look, DOWN) == (read, hashed)


def test_blobs_are_not_read_where_nothing_is_in_doubt(look: Look) -> None:
    look.write(a=b"local")
    look.store.add("y/a", b"longer", with_md5=False)
    look.store.add("y/alone", b"there", with_md5=False)
    look.pairs(UP, compare_content=True)
    look.store.add("y/a", b"there", with_md5=False)
    look.records.put({"x/a": Record(look.state("a", b"local"), look.blob("y/a"))})
    look.pairs(UP, compare_content=True)
    look.pairs(DOWN, compare_content=True)
    assert look.store.asked("get") == []
    # The record of another version tells nothing.
    look.store.add("y/a", b"other", with_md5=False)
    look.pairs(UP, compare_content=True)
    assert [each.name for each in look.store.asked("get")] == ["y/a"]


def test_a_blob_that_cannot_be_read_stays_unknown(look: Look) -> None:
    look.write(a=b"local")
    look.store.add("y/a", b"there", with_md5=False)

    def refuse(asked: Asked) -> None:
        if asked.operation == "get":
            raise StorageError("no")

    look.store.before = refuse
    assert contents(look, UP)[1] == look.blob("y/a")


def test_both_blobs_of_a_copy_are_read(look: Look) -> None:
    look.store.add("z/a", b"there", with_md5=False)
    look.store.add("y/a", b"other", with_md5=False)
    assert [state.md5 if state else None for state in contents(look, COPY)] == [md5(b"there"), md5(b"other")]


def test_progress_is_told_by_the_thousand(look: Look) -> None:
    for number in range(2001):
        look.store.add(f"y/{number}", b"")
    assert len(look.pairs(DOWN)) == 2001
    assert look.seen == [1000, 1000, 1]


def test_links_that_lead_nowhere_are_failures_at_the_source_and_warnings_at_the_destination(look: Look) -> None:
    look.write(a=b"a")
    (look.root / "x" / "broken").symlink_to("nowhere")
    look.store.add("y/a", b"a")
    up = look.survey(UP)
    assert {pair.path for pair in up.pairs} == {"a"}
    assert ([failure.path for failure in up.unreadable], up.warnings) == (["data/x/broken"], [])
    down = look.survey(DOWN)
    assert {pair.path for pair in down.pairs} == {"a"}
    assert down.unreadable == []
    assert [warning.split(" at the destination: ")[0] for warning in down.warnings] == ["data/x/broken"]


def test_what_is_not_wanted_takes_no_part(look: Look) -> None:
    look.write(a=b"a", b=b"b")
    look.store.add("y/c", b"c")
    look.store.add("y/d", b"d")
    for route in (UP, DOWN):
        found = look.survey(route, wanted=lambda path: path in "ac")
        assert {pair.path for pair in found.pairs} == {"a", "c"}
        assert (found.source_files, found.destination_files) == (1, 1)


def test_links_that_are_left_out_are_pairs_of_their_own(look: Look) -> None:
    look.write(a=b"a")
    (look.root / "x" / "link").symlink_to("a")
    pairs = look.pairs(UP, links=LinkPolicy("skip", os.path.realpath(look.root)))
    assert (pairs["link"].left_out, pairs["link"].source) == (Reason.SYMLINK_SKIPPED, None)
    assert set(pairs) == {"a", "link"}
