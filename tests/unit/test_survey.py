"""The survey before planning: file or folder at each end, the pairs of files, and which files were read."""

from __future__ import annotations

import hashlib
import itertools
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from blobsync.base.errors import LocalFileError, NothingMatchedError, ShapeConflictError
from blobsync.base.events import Event, Hashing, Looked
from blobsync.base.file_states import LocalState, RemoteState
from blobsync.base.locations import LocalLocation
from blobsync.base.plan_reasons import Reason
from blobsync.base.stopping import StopRequest
from blobsync.local.index import Index, Record
from blobsync.local.link_policy import LinkPolicy
from blobsync.local.resume_records import BlockJournal
from blobsync.local.sorted_runs import Spill
from blobsync.plan.left_out_files import Exclusion
from blobsync.plan.pairing import Pair
from blobsync.plan.parallel_listing import LONG
from blobsync.plan.survey import Request, Survey, complete, remember, remember_nothing, survey
from blobsync.plan.transfer_plan import Route, Shape
from blobsync.project.browse import Listing
from blobsync.store.open_locations import OpenBlob, OpenLocation
from blobsync.store.protocol import BlobInfo
from tests.fakes.store import MemoryStore, StoredBlob
from tests.fakes.tasks import index_key, live_part, remote_state

UNFINISHED = ".blobsync-0badcafe.part"


def md5(body: bytes) -> bytes:
    return hashlib.md5(body).digest()


@dataclass
class Place:
    """``data/v`` of a project beside ``v`` of a container; ``other`` is a second container."""

    project: Path
    store: MemoryStore = field(default_factory=MemoryStore)
    other: MemoryStore = field(default_factory=MemoryStore)
    steps: list[int] = field(default_factory=list)

    def emit(self, event: Event) -> None:
        if isinstance(event, Looked):
            self.steps.append(event.files)

    def __post_init__(self) -> None:
        self.folder = self.project / "data" / "v"
        self.folder.mkdir(parents=True)
        self.records = Index(self.project / "index.sqlite").pair("data", "blobs")
        self.local: OpenLocation = LocalLocation(self.folder)
        self.remote: OpenLocation = OpenBlob(self.store, "v")

    def write(self, name: str, body: bytes = b"here") -> LocalState:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(body)
        return LocalState.of(file.stat())

    def request(self, route: Route, **changes: Any) -> Request:
        source, destination = {
            Route.UPLOAD: (self.local, self.remote),
            Route.DOWNLOAD: (self.remote, self.local),
            Route.CROSS_ACCOUNT: (self.remote, OpenBlob(self.other, "w")),
        }[route]
        links = LinkPolicy("follow", os.path.realpath(self.project), "data/v")
        source, destination = changes.pop("source", source), changes.pop("destination", destination)
        key = index_key("data", "blobs", changes.pop("record_path", "v"))
        part = replace(live_part(route, source, destination), path="data/v", key=key)
        return Request(part, links, self.records)._replace(**changes)

    def look(self, route: Route, **changes: Any) -> tuple[Survey, dict[str, Pair]]:
        """Run the survey; returns it with complete counts, and its pairs."""
        found = survey(self.request(route, **changes), self.emit)
        pairs = list(found.pairs)
        assert len({pair.path for pair in pairs}) == len(pairs)
        return found, {pair.path: pair for pair in pairs}

    def read(self) -> list[str]:
        """The blobs that were read."""
        return [request.name for store in (self.store, self.other) for request in store.asked("get")]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "project")


def ends(pairs: dict[str, Pair]) -> dict[str, tuple[bool, bool]]:
    return {path: (pair.source is not None, pair.destination is not None) for path, pair in pairs.items()}


def later_by(seconds: float) -> Callable[[], float]:
    """A clock that advances by so much at each call."""
    times = itertools.count(7)
    return lambda: next(times) * seconds


@pytest.mark.parametrize(("scheme", "trips"), [("http", 2), ("https", 3)])
def test_the_survey_measures_the_round_trip_to_a_container(place: Place, scheme: str, trips: int) -> None:
    for store in (place.store, place.other):
        store.container_url = replace(store.container_url, endpoint=f"{scheme}://127.0.0.1:1/fake")
    place.write("a")
    found, _ = place.look(Route.UPLOAD, clock=later_by(0.3))
    assert found.round_trips == [pytest.approx(0.3 / trips)]
    place.store.add("v/a", b"1")
    assert len(place.look(Route.CROSS_ACCOUNT, clock=later_by(0.3))[0].round_trips) == 2


def test_what_the_destination_keeps_is_told_by_its_reason(place: Place) -> None:
    """Not of the files of another part, unless that is moved elsewhere."""
    for name in ("a", "b", "c", "d"):
        place.store.add(f"v/{name}", b"1")
    parts = {
        "apart": lambda path: path in "bc",
        "wanted": lambda path: path != "a",
        "ignored": lambda path: path == "d",
    }
    found, pairs = place.look(Route.UPLOAD, **parts, covered=lambda path: path == "b")
    assert not pairs and found.ignored == 0
    kept = {Exclusion.COVERED: ["b"], Exclusion.NOT_CHOSEN: ["a"], Exclusion.IGNORED: ["d"]}
    assert found.excluded.names == kept
    found, _ = place.look(Route.UPLOAD, **parts)
    assert found.excluded.names == {why: names for why, names in kept.items() if why is not Exclusion.COVERED}


def test_a_remembered_listing_takes_the_place_of_the_containers(place: Place) -> None:
    place.write("a")
    remembered = MemoryStore("remembered")
    remembered.add("v/b", b"1")
    found, pairs = place.look(Route.UPLOAD, remembered=remembered)
    assert ends(pairs) == {"a": (True, False), "b": (False, True)}
    assert found.round_trips == [] and not place.store.asked("list") and not place.store.asked("head")


@pytest.mark.parametrize("is_remembered", [True, False])
def test_only_the_container_itself_is_listed_by_folders_if_it_holds_many_blobs(
    place: Place, is_remembered: bool
) -> None:
    store = MemoryStore("remembered") if is_remembered else place.store
    for folder in "fg":
        for number in range(LONG // 2):
            name = f"v/{folder}/{number:05}"
            store.blobs[name] = StoredBlob(b"", BlobInfo(name, 0, "0x1", None, 1.0))
    changes = {"remembered": store} if is_remembered else {}
    found = survey(place.request(Route.DOWNLOAD, **changes), place.emit)
    assert sum(1 for _ in found.pairs) == LONG
    listings = len(place.store.asked("list"))
    assert listings == 0 if is_remembered else listings > 1


def test_a_stop_ends_the_survey_within_a_thousand_files(place: Place) -> None:
    for number in range(2500):
        place.store.add(f"v/{number:04}", b"")
    stop = StopRequest()
    found = survey(place.request(Route.DOWNLOAD, stop=stop), place.emit)
    next(found.pairs)
    stop.make()
    with pytest.raises(KeyboardInterrupt):
        list(found.pairs)
    assert sum(place.steps) < 2500


def test_a_missing_source_says_whether_the_destination_has_something_there(place: Place) -> None:
    place.folder.rmdir()

    def elsewhere() -> bool:
        with pytest.raises(NothingMatchedError) as error:
            place.look(Route.UPLOAD)
        return error.value.elsewhere

    assert not elsewhere()
    place.store.add("v", b"1")
    assert elsewhere()
    place.store.blobs.clear()
    place.store.add("v/a", b"1")
    assert elsewhere()


def test_a_request_is_for_all_files_unless_it_says_which(place: Place) -> None:
    request = place.request(Route.UPLOAD)
    assert not request.selective and not request.chooses
    for name in ("wanted", "ignored", "apart"):
        assert place.request(Route.UPLOAD, **{name: lambda path: True}).chooses


def test_ignored_files_of_the_source_are_counted(place: Place) -> None:
    for name in ("a", "b", "c"):
        place.write(name)
    place.store.add("v/b", b"1")
    assert place.look(Route.UPLOAD)[0].ignored == 0
    assert place.look(Route.UPLOAD, ignored=lambda path: path in "bc")[0].ignored == 2


def counts(found: Survey) -> tuple[int, int]:
    return found.source_files, found.destination_files


# -- which names are paired, and how they are counted --------------------------------------------------------------


@pytest.mark.parametrize("route", [Route.UPLOAD, Route.DOWNLOAD])
def test_each_pair_has_the_states_of_its_two_ends(place: Place, route: Route) -> None:
    for name in ("a", "b/c", "here1", "here2"):
        place.write(name)
    for name in ("v/a", "v/b/c", "v/there", "w/a", "vv"):
        place.store.add(name, b"there!")
    found, pairs = place.look(route)
    up = route is Route.UPLOAD
    alone = (True, False) if up else (False, True)
    assert ends(pairs) == {
        "a": (True, True),
        "b/c": (True, True),
        "here1": alone,
        "here2": alone,
        "there": (not alone[0], not alone[1]),
    }
    assert counts(found) == ((4, 3) if up else (3, 4)) and found.shape is Shape.FOLDER
    near, far = (pairs["b/c"].source, pairs["b/c"].destination)[:: 1 if up else -1]
    assert isinstance(near, LocalState) and near.size == 4
    assert far == RemoteState(6, place.store.blobs["v/b/c"].info.etag, md5(b"there!"))


def test_a_copy_pairs_the_blobs_of_two_containers(place: Place) -> None:
    for store, names in ((place.store, ("v/a", "v/b")), (place.other, ("w/b", "w/c", "v/a"))):
        for name in names:
            store.add(name, b"x")
    found, pairs = place.look(Route.CROSS_ACCOUNT)
    assert ends(pairs) == {"a": (True, False), "b": (True, True), "c": (False, True)}
    assert counts(found) == (2, 2)


def test_a_whole_container_is_listed_without_a_head_request(place: Place) -> None:
    place.store.add("a/b", b"x")
    found, pairs = place.look(Route.DOWNLOAD, source=OpenBlob(place.store, ""))
    assert list(pairs) == ["a/b"] and counts(found) == (1, 0)
    assert place.store.asked("head") == [] and place.store.asked("list")[0].name == ""


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("route", [Route.UPLOAD, Route.DOWNLOAD])
def test_a_single_file_is_paired_with_the_other_end(place: Place, route: Route, *, there: bool) -> None:
    file = place.folder / "one.txt"
    place.local, place.remote = LocalLocation(file), OpenBlob(place.store, "v/one.txt")
    if route is Route.UPLOAD or there:
        file.write_bytes(b"one")
    if route is Route.DOWNLOAD or there:
        place.store.add("v/one.txt", b"one")
    found, pairs = place.look(route)
    assert ends(pairs) == {"": (True, there)}
    assert (found.shape, *counts(found)) == (Shape.FILE, 1, int(there))
    if there:
        assert {pairs[""].source.md5, pairs[""].destination.md5} == {md5(b"one")}  # type: ignore[union-attr]


@pytest.mark.parametrize(("count", "told"), [(1999, [1999]), (2001, [2000, 1])])
def test_each_entry_is_reported_once(place: Place, count: int, told: list[int]) -> None:
    for number in range(count):
        place.store.add(f"v/{number}", b"")
    place.look(Route.DOWNLOAD)
    assert place.steps == told


def test_no_entry_is_lost_at_the_end_of_a_batch(place: Place) -> None:
    for number in range(4001):
        place.store.add(f"v/{number}", b"")
    found, pairs = place.look(Route.DOWNLOAD)
    assert len(pairs) == found.source_files == 4001


def test_counts_and_hidden_blobs_are_known_after_the_last_pair(place: Place) -> None:
    place.write("a")
    place.store.add("v/b", b"x")
    place.store.add(f"v/{UNFINISHED}", b"x")
    found = survey(place.request(Route.DOWNLOAD), place.emit)
    assert (counts(found), found.has_hidden) == ((0, 0), False)
    assert len(list(found.pairs)) == 2
    assert (counts(found), found.has_hidden) == ((1, 1), True)


@pytest.mark.parametrize("route", [Route.UPLOAD, Route.DOWNLOAD])
def test_what_a_container_keeps_for_blobsync_is_no_data_of_an_entry_at_its_root(place: Place, route: Route) -> None:
    place.store.add(".blobsync/checkpoints/out/job/checkpoint-1.json", b"{}")
    place.store.add(".blobsyncs", b"x")
    place.store.add("sub/.blobsync/x", b"x")
    root = OpenBlob(place.store, "")
    ends = {"destination": root} if route is Route.UPLOAD else {"source": root}
    found, pairs = place.look(route, **ends)
    assert set(pairs) == {".blobsyncs", "sub/.blobsync/x"}
    assert found.has_hidden == (route is Route.DOWNLOAD), "azcopy gets no folder with such blobs"


# -- patterns --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", [Route.UPLOAD, Route.DOWNLOAD, Route.CROSS_ACCOUNT])
def test_excluded_files_are_ignored_at_both_ends(place: Place, route: Route) -> None:
    for name in ("yes", "no", "no-here", "yes-here"):
        place.write(name)
    for name in ("yes", "no", "no-there", "yes-there"):
        place.store.add(f"v/{name}", b"x")
        place.other.add(f"w/{name}", b"x")
    found, pairs = place.look(route, wanted=lambda path: path.startswith("yes"))
    both = {"yes", "yes-there"} if route is Route.CROSS_ACCOUNT else {"yes", "yes-here", "yes-there"}
    assert set(pairs) == both and counts(found) == (2, 2)


@pytest.mark.parametrize("hidden", ["d", "d/e/f", "other"])
def test_an_excluded_name_at_the_destination_is_listed(place: Place, hidden: str) -> None:
    place.write("d/e")
    place.store.add(f"v/{hidden}", b"x")
    found, pairs = place.look(Route.UPLOAD, wanted=lambda path: path != hidden)
    assert list(found.not_chosen) == [hidden] and ends(pairs) == {"d/e": (True, False)}


def test_each_excluded_name_is_listed(place: Place) -> None:
    place.write("d/e")
    for name in ("d", "d/e/f", "d/e/g", "x"):
        place.store.add(f"v/{name}", b"x")
    found, _ = place.look(Route.UPLOAD, wanted=lambda path: path == "d/e")
    assert list(found.not_chosen) == ["d", "d/e/f", "d/e/g", "x"]
    assert list(place.look(Route.UPLOAD)[0].not_chosen) == []


def test_a_download_lists_no_excluded_names(place: Place) -> None:
    place.write("d/e")
    place.store.add("v/d", b"x")
    place.store.add("v/z", b"x")
    found, pairs = place.look(Route.DOWNLOAD, wanted=lambda path: path != "d")
    assert list(found.not_chosen) == [] and set(pairs) == {"z", "d/e"}


# -- file or folder, or nothing ------------------------------------------------------------------------------------


def refusal(place: Place, route: Route, kind: type[Exception], **changes: Any) -> Any:
    with pytest.raises(kind) as caught:
        survey(place.request(route, **changes), place.emit)
    assert caught.value.path == "data/v"  # type: ignore[attr-defined]
    return caught.value


def test_a_missing_local_source_is_an_error_with_a_hint(place: Place) -> None:
    place.folder.rmdir()
    error = refusal(place, Route.UPLOAD, NothingMatchedError)
    assert error.message == f"data/v: no such file or folder at the source, {place.folder}"
    assert error.hint.startswith("'ls ")


@pytest.mark.parametrize(("folder_only", "what"), [(False, "file or folder"), (True, "folder")])
def test_a_missing_blob_is_an_error_with_its_url(place: Place, what: str, *, folder_only: bool) -> None:
    error = refusal(place, Route.DOWNLOAD, NothingMatchedError, folder_only=folder_only)
    assert error.message == f"data/v: no such {what} at the source, {place.store.container.child('v')}"
    assert "blobsync ls" in error.hint


def test_a_trailing_slash_means_the_folder_alone(place: Place) -> None:
    place.store.add("v", b"the blob")
    refusal(place, Route.DOWNLOAD, NothingMatchedError, folder_only=True)
    # No request asks for a blob of that name.
    assert place.store.asked("head") == []
    place.store.add("v/a", b"x")
    assert list(place.look(Route.DOWNLOAD, folder_only=True)[1]) == ["a"]
    refusal(place, Route.DOWNLOAD, ShapeConflictError)
    place.write("file")
    refusal(place, Route.UPLOAD, NothingMatchedError, folder_only=True, source=LocalLocation(place.folder / "file"))


def test_a_blob_that_is_a_folder_too_is_refused_at_the_source(place: Place) -> None:
    place.store.add("v", b"x")
    place.store.add("v/a", b"x")
    where = place.store.container.child("v")
    error = refusal(place, Route.DOWNLOAD, ShapeConflictError)
    assert error.message == f"data/v is both a blob and a folder at the source: {where} and {where}/..."
    assert "blobsync rm --blob data/v" in error.hint


def test_a_folder_does_not_replace_a_file_nor_a_file_a_folder(place: Place) -> None:
    place.write("a")
    place.store.add("v", b"x")
    error = refusal(place, Route.UPLOAD, ShapeConflictError)
    assert error.message == (
        f"data/v is a folder at the source, but a file at the destination, {place.store.container.child('v')}"
    )
    assert "move one of the two out of the way" in error.hint and "blobsync rm --blob data/v" in error.hint
    error = refusal(place, Route.DOWNLOAD, ShapeConflictError)
    assert error.message == f"data/v is a file at the source, but a folder at the destination, {place.folder}"


def test_an_unreadable_path_is_not_a_missing_file(place: Place) -> None:
    loop = place.project / "loop"
    loop.symlink_to(loop)
    place.store.add("v/a", b"x")
    for route, changes in (
        (Route.UPLOAD, {"source": LocalLocation(loop)}),
        (Route.DOWNLOAD, {"destination": LocalLocation(loop)}),
    ):
        error = refusal(place, route, LocalFileError, **changes)
        assert error.message.startswith(f"data/v: cannot read {loop}: ") and "permissions" in error.hint


def test_a_path_below_a_file_is_missing(place: Place) -> None:
    place.write("file")
    place.store.add("v/a", b"x")
    _, pairs = place.look(Route.DOWNLOAD, destination=LocalLocation(place.folder / "file" / "below"))
    assert ends(pairs) == {"a": (True, False)}


def test_a_pipe_is_neither_a_file_nor_a_folder(place: Place) -> None:
    os.mkfifo(place.folder / "pipe")
    error = refusal(place, Route.UPLOAD, LocalFileError, source=LocalLocation(place.folder / "pipe"))
    assert error.message == f"data/v: {place.folder / 'pipe'} is neither a file nor a folder"


# -- blobs that are not data ---------------------------------------------------------------------------------------


def stub(store: MemoryStore, name: str) -> None:
    store.add(name, b"")
    store.blobs[name].info = store.blobs[name].info._replace(is_folder_stub=True)


def test_folder_stubs_are_neither_files_nor_noted(place: Place) -> None:
    stub(place.store, "v")
    stub(place.store, "v/d")
    place.store.add("v/d/a", b"x")
    found, pairs = place.look(Route.DOWNLOAD)
    assert list(pairs) == ["d/a"] and counts(found) == (1, 0) and found.has_hidden is False


@pytest.mark.parametrize("name", ["v/d/", f"v/{UNFINISHED}", f"v/d/{UNFINISHED}"])
def test_blobs_that_are_not_data_are_ignored_and_noted(place: Place, name: str) -> None:
    place.store.add("v/a", b"x")
    place.store.add(name, b"")
    found, pairs = place.look(Route.DOWNLOAD)
    assert list(pairs) == ["a"] and found.source_files == 1 and found.has_hidden is True


def test_what_is_not_data_below_the_name_of_a_single_blob_is_noted(place: Place) -> None:
    for name in ("v", f"v/{UNFINISHED}"):
        place.store.add(name, b"x")
    found, pairs = place.look(Route.DOWNLOAD, destination=LocalLocation(place.folder / "file"))
    assert list(pairs) == [""] and found.has_hidden is True


@pytest.mark.parametrize("route", [Route.DOWNLOAD, Route.CROSS_ACCOUNT])
def test_a_source_blob_with_a_backslash_is_left_out_as_a_failure(place: Place, route: Route) -> None:
    for name in ("v/a", "v/b\\c", "v/d\\e.tmp"):
        place.store.add(name, b"x")
    found, pairs = place.look(route, ignored=lambda path: path.endswith(".tmp"))
    assert list(pairs) == ["a"] and found.has_hidden and found.source_files == 1 and found.unreadable == []
    (failure,) = found.blocked
    assert (failure.path, failure.code) == ("data/v/b\\c", "names_unsafe")
    assert failure.message == "left out: its name contains a backslash, which the service takes for '/'"


def test_a_destination_blob_with_a_backslash_is_not_an_extra(place: Place) -> None:
    """A request to delete it would delete another blob."""
    place.write("a")
    place.store.add("v/b\\c", b"x")
    found, pairs = place.look(Route.UPLOAD)
    assert list(pairs) == ["a"] and found.destination_files == 0 and found.blocked == []
    assert found.warnings == [
        "data/v/b\\c at the destination: left alone, its name contains a backslash, which the service takes for '/'"
    ]


def test_a_folder_stub_with_an_invalid_name_is_noted(place: Place) -> None:
    place.store.add("v/a", b"x")
    stub(place.store, "v/d/../e")
    found, pairs = place.look(Route.DOWNLOAD)
    assert list(pairs) == ["a"] and found.has_hidden is True


@pytest.mark.parametrize("name", ["v/.hidden", "v/x.part", "v/empty", f"v/{UNFINISHED}/a", f"v/{UNFINISHED}.txt"])
def test_names_similar_to_unfinished_files_are_data(place: Place, name: str) -> None:
    place.store.add(name, b"")
    found, pairs = place.look(Route.DOWNLOAD)
    assert list(pairs) == [name[2:]] and found.has_hidden is False


def test_a_blob_with_a_trailing_slash_and_content_is_data(place: Place) -> None:
    place.store.add("v/d/", b"x")
    found, pairs = place.look(Route.DOWNLOAD)
    assert list(pairs) == ["d/"] and found.has_hidden is False


def test_blobs_at_the_destination_that_are_not_data_are_not_noted(place: Place) -> None:
    place.write("a")
    place.store.add(f"v/{UNFINISHED}", b"x")
    found, pairs = place.look(Route.UPLOAD)
    assert list(pairs) == ["a"] and counts(found) == (1, 0) and found.has_hidden is False


# -- local entries that are ignored ------------------------------------------------------------------------------


def skipping(place: Place) -> LinkPolicy:
    return LinkPolicy("skip", os.path.realpath(place.project), "data/v")


def test_followed_links_are_listed_with_their_targets(place: Place) -> None:
    place.write("real")
    (place.folder / "link").symlink_to("real")
    place.store.add("v/link", b"x")
    real = {"link": os.path.realpath(place.folder / "real")}
    for route in (Route.UPLOAD, Route.DOWNLOAD):
        found, pairs = place.look(route)
        assert found.followed == real and set(pairs) == {"real", "link"}


def test_an_upload_reports_files_that_it_cannot_read(place: Place) -> None:
    place.write("a")
    (place.folder / "gone").symlink_to("nowhere")
    place.store.add("v/gone", b"x")
    found, pairs = place.look(Route.UPLOAD)
    (failure,) = found.unreadable
    assert (failure.path, failure.code) == ("data/v/gone", "unreadable") and found.warnings == []
    # The blob does not count as missing at the source: a mirror would delete it.
    assert (pairs["gone"].left_out, pairs["gone"].source) == (Reason.UNREADABLE, None)
    assert "nowhere" in pairs["gone"].detail and pairs["gone"].destination is not None
    assert counts(found) == (1, 1)


def test_a_folder_deleted_before_its_files_are_listed_is_a_failure(place: Place) -> None:
    place.store.add("v/a", b"x")
    found = survey(place.request(Route.UPLOAD), place.emit)
    place.folder.rmdir()
    assert [pair.path for pair in found.pairs] == ["a"]
    assert [(failure.path, failure.code) for failure in found.unreadable] == [("data/v", "unreadable")]


def test_an_upload_warns_of_skipped_links_and_names_them(place: Place) -> None:
    place.write("a")
    (place.folder / "link").symlink_to("a")
    place.store.add("v/link/below", b"x")
    found, pairs = place.look(Route.UPLOAD, links=skipping(place))
    assert found.unreadable == [] and len(found.warnings) == 1 and found.warnings[0].startswith("data/v/link: left out")
    assert ends(pairs) == {"a": (True, False), "link": (False, False), "link/below": (False, True)}
    assert {pairs[name].left_out for name in ("link", "link/below")} == {Reason.SYMLINK_SKIPPED}
    assert pairs["link"].detail == pairs["link/below"].detail == f"to {os.path.realpath(place.folder / 'a')}"


def test_a_download_neither_replaces_nor_follows_a_skipped_link(place: Place) -> None:
    (place.folder / "link").symlink_to("elsewhere")
    for name in ("a", "link/below", "z"):
        place.store.add(f"v/{name}", b"x")
    found, pairs = place.look(Route.DOWNLOAD, links=skipping(place))
    assert ends(pairs) == dict.fromkeys(("a", "link/below", "z"), (True, False))
    assert pairs["link/below"].left_out is Reason.SYMLINK_SKIPPED and pairs["a"].left_out is None
    assert pairs["link/below"].detail.startswith("to ")
    assert found.blocked == [] and len(found.warnings) == 1 and "1 file left out" in found.warnings[0]
    found, _ = place.look(Route.DOWNLOAD, links=skipping(place)._replace(mode="error"))
    assert [failure.code for failure in found.blocked] == ["link_refused"] and found.warnings == []


@pytest.mark.parametrize("spill", [Spill(), Spill(most=1)], ids=["in memory", "on the disk"])
@pytest.mark.parametrize("blobs", [("x",), ("x/below",), ("x", "x/below")])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_an_entry_left_out_of_an_upload_is_listed_once(
    place: Place, kind: str, blobs: tuple[str, ...], spill: Spill
) -> None:
    for name in ("a", "b", "z"):
        place.write(name)
    (place.folder / "x").symlink_to("a") if kind == "link" else os.mkfifo(place.folder / "x")
    for name in blobs:
        place.store.add(f"v/{name}", b"x")
    # `look` checks that no path comes twice.
    _, pairs = place.look(Route.UPLOAD, links=skipping(place), spill=spill)
    assert set(pairs) == {"a", "b", "z", "x", *blobs}
    left_out = Reason.SYMLINK_SKIPPED if kind == "link" else Reason.NOT_A_FILE
    assert {name: pairs[name].left_out for name in ("x", *blobs)} == dict.fromkeys(("x", *blobs), left_out)
    assert ends({name: pairs[name] for name in blobs}) == dict.fromkeys(blobs, (False, True))


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_a_download_says_that_something_is_in_the_way(place: Place, kind: str) -> None:
    place.write("a")
    if kind == "pipe":
        os.mkfifo(place.folder / "x")
    else:
        os.mknod(place.folder / "x", stat.S_IFSOCK | 0o600)
    place.store.add("v/x", b"x")
    place.store.add("v/z", b"z")
    found, pairs = place.look(Route.DOWNLOAD)
    assert pairs["x"].left_out is Reason.NOT_A_FILE and pairs["z"].left_out is None
    (failure,) = found.blocked
    assert (failure.path, failure.code) == ("data/v/x", "local_file")
    assert failure.message == "data/v/x: 1 file left out, neither a file nor a folder is in the way"
    assert failure.hint is not None and "move it away" in failure.hint


def test_a_download_warns_of_what_it_cannot_read_here_and_fetches_the_file(place: Place) -> None:
    (place.folder / "gone").symlink_to("nowhere")
    os.mkfifo(place.folder / "pipe")
    place.store.add("v/gone", b"x")
    found, pairs = place.look(Route.DOWNLOAD)
    assert len(found.warnings) == 1 and found.unreadable == [] and counts(found) == (1, 0)
    assert found.warnings[0].startswith("data/v/gone at the destination: cannot be read (")
    assert pairs["gone"].left_out is None


# -- records and MD5s ----------------------------------------------------------------------------------------------


def verified(place: Place, name: str, body: bytes, *, with_md5: bool = True) -> LocalState:
    near = place.write(name, body)
    info = place.store.add(f"v/{name}", body, with_md5=with_md5)
    known = md5(body) if with_md5 else None
    place.records.put({f"v/{name}": Record(replace(near, md5=known), RemoteState(info.size, info.etag, known))})
    return near


@pytest.mark.parametrize("route", [Route.UPLOAD, Route.DOWNLOAD])
def test_each_pair_has_its_own_record_and_needs_no_reading(place: Place, route: Route) -> None:
    for name in ("a", "b"):
        verified(place, name, name.encode())
    place.write("new", b"n")
    place.store.add("v/new", b"n")
    _, pairs = place.look(route)
    for name in ("a", "b"):
        pair = pairs[name]
        assert pair.record is not None and pair.record.md5 == md5(name.encode())
        local = pair.source if route is Route.UPLOAD else pair.destination
        assert isinstance(local, LocalState) and local.md5 is None
    assert pairs["new"].record is None
    assert pairs["new"].source is not None and pairs["new"].source.md5 == md5(b"n")
    assert pairs["new"].destination is not None and pairs["new"].destination.md5 == md5(b"n")


def test_index_keys_start_with_the_path_of_the_part(place: Place) -> None:
    verified(place, "a", b"x")
    assert place.look(Route.UPLOAD)[1]["a"].record is not None
    assert place.look(Route.UPLOAD, record_path="")[1]["a"].record is None
    place.records.put({"a": Record(place.write("a"), RemoteState(1, "e", None))})
    assert place.look(Route.UPLOAD, record_path="")[1]["a"].record is not None
    ends_of_file = {"source": LocalLocation(place.folder / "a"), "destination": OpenBlob(place.store, "v/a")}
    assert place.look(Route.UPLOAD, record_path="v/a", **ends_of_file)[1][""].record is not None


@pytest.mark.parametrize(
    ("record_path", "path", "expected"), [("x", "a", "x/a"), ("x", "", "x"), ("", "a", "a"), ("", "", "")]
)
def test_the_index_key_of_a_file(record_path: str, path: str, expected: str) -> None:
    assert index_key("", "", record_path).at(path) == expected


def test_only_files_at_both_ends_get_their_record(place: Place) -> None:
    verified(place, "a", b"x")
    verified(place, "b", b"x")
    (place.folder / "b").unlink()
    _, pairs = place.look(Route.UPLOAD)
    assert pairs["a"].record is not None and pairs["b"].record is None


@pytest.mark.parametrize("route", [Route.UPLOAD, Route.DOWNLOAD])
def test_files_of_equal_size_are_read_and_each_keeps_its_own_md5(place: Place, route: Route) -> None:
    for name in ("a", "b", "longer"):
        place.write(name, name.encode())
        place.store.add(f"v/{name}", b"?")
    _, pairs = place.look(route)
    here = {path: pair.source if route is Route.UPLOAD else pair.destination for path, pair in pairs.items()}
    assert {path: state and state.md5 for path, state in here.items()} == {
        "a": md5(b"a"),
        "b": md5(b"b"),
        "longer": None,
    }
    assert place.read() == []


@pytest.mark.parametrize("fate", ["edited", "gone"])
def test_a_file_that_changed_since_its_stat_gets_no_md5(place: Place, fate: str) -> None:
    file = place.folder / "a"
    seen = place.write("a", b"old")
    place.store.add("v/a", b"new")

    def change(_: object) -> bool:
        file.unlink(missing_ok=True)
        if fate == "edited":
            file.write_bytes(b"new")
            os.utime(file, ns=(1, 1))
        return True

    # `wanted` is called after the stat of the file and before it is read.
    _, pairs = place.look(Route.UPLOAD, wanted=change)
    assert pairs["a"].source == seen


def test_hashing_is_reported_before_and_after(place: Place) -> None:
    heard: list[Event] = []
    for name, here, there in (("a", b"aaa", b"aaa"), ("b", b"bb", b"xx"), ("longer", b"c", b"dd")):
        place.write(name, here)
        place.store.add(f"v/{name}", there)
    list(survey(place.request(Route.UPLOAD), heard.append).pairs)
    assert [event for event in heard if isinstance(event, Hashing)] == [Hashing(2, 5), Hashing(-2, -5)]


def test_without_hashing_nothing_is_reported(place: Place) -> None:
    heard: list[Event] = []
    place.write("a")
    place.write("longer")
    place.store.add("v/longer", b"?")
    assert len(list(survey(place.request(Route.UPLOAD), heard.append).pairs)) == 2
    assert not [event for event in heard if isinstance(event, Hashing)]


def test_a_file_whose_md5_is_known_is_not_read_again(place: Place) -> None:
    here = replace(place.write("a", b"body"), md5=b"as it is known..")
    place.store.add("v/a", b"body", with_md5=False)
    there = remote_state(place.store, "v/a")
    request = place.request(Route.UPLOAD)
    (pair,) = complete(iter([Pair("a", here, there)]), request.part, place.records, compare_content=True)
    assert pair.source == here and pair.destination is not None and pair.destination.md5 == md5(b"body")


def digests_of(body: bytes) -> bytes:
    blocks = (body[: 2 << 20], body[2 << 20 :])
    return b"".join([md5(body), *(hashlib.sha256(block).digest() for block in blocks)])


@pytest.mark.parametrize(
    ("size", "etag", "age", "in_blocks"),
    [
        (3 << 20, "", 1, True),
        (2 << 20, "", 1, False),
        (3 << 20, "0xA", 1, False),
        (3 << 20, "", 0, False),
        (3 << 20, None, 1, False),
    ],
    ids=["large", "one request", "another version there", "just changed", "without a journal"],
)
@pytest.mark.parametrize("route", [Route.UPLOAD, Route.DOWNLOAD])
def test_blocks_are_hashed_where_those_of_the_blob_are_known(
    place: Place, tmp_path: Path, route: Route, size: int, etag: str | None, age: int, *, in_blocks: bool
) -> None:
    body, before = b"a" * size, b"b" * size
    here, there = place.write("a", body), place.store.add("v/a", before)
    journal = BlockJournal(tmp_path / "unfinished.sqlite")
    journal.finish(str(place.store.container.child("v/a")), etag or there.etag, digests_of(before))
    changed = max(here.mtime_ns, here.ctime_ns)
    blob = RemoteState(size, there.etag, there.md5)
    pairs = iter([Pair("a", here, blob) if route is Route.UPLOAD else Pair("a", blob, here)])
    request, now, given = place.request(route), changed + 2_000_000_000 + age, None if etag is None else journal
    (pair,) = complete(pairs, request.part, place.records, compare_content=False, now_ns=lambda: now, journal=given)
    found = pair.source if route is Route.UPLOAD else pair.destination
    assert isinstance(found, LocalState) and found == replace(here, md5=md5(body))
    assert found.blocks == (digests_of(body)[16:] if in_blocks and route is Route.UPLOAD else b"")


def test_the_md5_of_a_file_whose_blocks_are_those_of_the_blob_is_the_one_on_record(
    place: Place, tmp_path: Path
) -> None:
    body = b"a" * (3 << 20)
    here, there = place.write("a", body), place.store.add("v/a", body)
    journal = BlockJournal(tmp_path / "unfinished.sqlite")
    journal.finish(str(place.store.container.child("v/a")), there.etag, bytes(16) + digests_of(body)[16:])
    later = max(here.mtime_ns, here.ctime_ns) + 10_000_000_000
    pairs = iter([Pair("a", here, RemoteState(there.size, there.etag, there.md5))])
    request = place.request(Route.UPLOAD)
    (pair,) = complete(pairs, request.part, place.records, compare_content=False, now_ns=lambda: later, journal=journal)
    assert pair.source is not None and pair.source.md5 == bytes(16)


class DigestsThatTouch(bytes):
    """The first look at them, while the file is read, changes its time."""

    file: Path

    def __getitem__(self, at: Any) -> Any:
        os.utime(self.file, ns=(1, 1))
        return super().__getitem__(at)


class JournalThatTouches(BlockJournal):
    file: Path

    def digests(self, blob: str, etag: str) -> bytes:
        found = DigestsThatTouch(super().digests(blob, etag))
        found.file = self.file
        return found


@pytest.mark.parametrize("fate", ["edited", "gone", "edited while it is read"])
def test_a_large_file_that_changed_since_its_stat_gets_neither_md5_nor_blocks(
    place: Place, tmp_path: Path, fate: str
) -> None:
    body = b"a" * (3 << 20)
    here, there = place.write("a", body), place.store.add("v/a", body)
    kind = JournalThatTouches if fate == "edited while it is read" else BlockJournal
    journal = kind(tmp_path / "unfinished.sqlite")
    journal.finish(str(place.store.container.child("v/a")), there.etag, digests_of(body))
    if isinstance(journal, JournalThatTouches):
        journal.file = place.folder / "a"
    else:
        (place.folder / "a").unlink()
    if fate == "edited":
        place.write("a", body)
        os.utime(place.folder / "a", ns=(1, 1))
    later = max(here.mtime_ns, here.ctime_ns) + 10_000_000_000
    request = place.request(Route.UPLOAD)
    pairs = iter([Pair("a", here, RemoteState(len(body), there.etag, there.md5))])
    (pair,) = complete(pairs, request.part, place.records, compare_content=False, now_ns=lambda: later, journal=journal)
    assert isinstance(pair.source, LocalState)
    assert (pair.source, pair.source.blocks) == (here, b"")


def compare(place: Place, route: Route = Route.DOWNLOAD) -> Pair:
    return place.look(route, compare_content=True)[1]["a"]


def test_content_is_read_only_if_requested_and_sizes_are_equal(place: Place) -> None:
    place.write("a", b"body")
    place.store.add("v/a", b"body", with_md5=False)
    pair = place.look(Route.DOWNLOAD)[1]["a"]
    assert place.read() == [] and pair.source is not None and pair.source.md5 is None
    pair = compare(place)
    assert place.read() == ["v/a"] and pair.source is not None and pair.destination is not None
    assert pair.source.md5 == pair.destination.md5 == md5(b"body")
    pair = compare(place, Route.UPLOAD)
    assert pair.source is not None and pair.source.md5 == md5(b"body")


@pytest.mark.parametrize("route", [Route.UPLOAD, Route.DOWNLOAD])
def test_blobs_of_other_size_with_an_md5_or_without_a_pair_are_not_read(place: Place, route: Route) -> None:
    place.write("a", b"longer")
    place.store.add("v/a", b"body", with_md5=False)
    compare(place, route)
    place.store.add("v/a", b"bodies")
    compare(place, route)
    place.write("here")
    place.store.add("v/there", b"body", with_md5=False)
    compare(place, route)
    assert place.read() == []


@pytest.mark.parametrize("route", [Route.UPLOAD, Route.DOWNLOAD])
def test_a_blob_in_the_index_is_not_read_again_until_it_changes(place: Place, route: Route) -> None:
    verified(place, "a", b"body", with_md5=False)
    compare(place, route)
    assert place.read() == []
    place.store.add("v/a", b"BODY", with_md5=False)
    pair = compare(place, route)
    assert place.read() == ["v/a"]
    assert {state and state.md5 for state in (pair.source, pair.destination)} == {md5(b"body"), md5(b"BODY")}


def test_a_blob_that_cannot_be_read_stays_without_an_md5(place: Place) -> None:
    place.write("a", b"body")
    place.store.add("v/a", b"body", with_md5=False)
    found = survey(place.request(Route.DOWNLOAD, compare_content=True), place.emit)
    version = place.store.blobs["v/a"].info.etag
    # The blob is replaced before it is read.
    place.store.add("v/a", b"BODY", with_md5=False)
    (pair,) = found.pairs
    assert pair.source == RemoteState(4, version, None)


def test_a_copy_reads_the_blobs_of_both_ends(place: Place) -> None:
    place.store.add("v/a", b"body", with_md5=False)
    place.other.add("w/a", b"BODY", with_md5=False)
    pair = compare(place, Route.CROSS_ACCOUNT)
    assert pair.source is not None and pair.destination is not None
    assert (pair.source.md5, pair.destination.md5) == (md5(b"body"), md5(b"BODY"))


# -- what is stored of a listing -----------------------------------------------------------------------------------


def stored(place: Place, folder: str = "v") -> dict[str, RemoteState]:
    return dict(place.records.as_last_listed(folder))


def remembered(place: Place, route: Route, **changes: Any) -> tuple[Survey, Request]:
    request = place.request(route, **changes)
    found = survey(request, place.emit)
    remember(request, found, lambda: 5.0)
    return found, request


@pytest.mark.parametrize("route", [Route.UPLOAD, Route.DOWNLOAD])
def test_a_listing_is_stored_after_its_last_pair(place: Place, route: Route) -> None:
    for name in ("both", "here"):
        place.write(name)
    for name in ("v/both", "v/there"):
        place.store.add(name, b"x")
    found, _ = remembered(place, route)
    paths = [pair.path for pair in itertools.islice(found.pairs, 3)]
    assert place.records.listed_at("v") is None
    assert list(found.pairs) == []
    assert sorted(paths) == ["both", "here", "there"]
    assert stored(place) == {name: remote_state(place.store, name) for name in ("v/both", "v/there")}
    assert place.records.listed_at("v") == 5.0


@pytest.mark.parametrize(
    ("route", "selective"), [(Route.UPLOAD, True), (Route.DOWNLOAD, True), (Route.CROSS_ACCOUNT, False)]
)
def test_neither_a_selection_nor_a_copy_is_stored(place: Place, route: Route, *, selective: bool) -> None:
    place.write("a")
    place.store.add("v/a", b"x")
    found, _ = remembered(place, route, selective=selective)
    assert len(list(found.pairs)) == 1
    assert (stored(place), place.records.listed_at("v")) == ({}, None)


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("route", [Route.UPLOAD, Route.DOWNLOAD])
def test_of_a_single_file_the_blob_is_stored(place: Place, route: Route, *, there: bool) -> None:
    file = place.folder / "one"
    place.local, place.remote = LocalLocation(file), OpenBlob(place.store, "v/one")
    if route is Route.UPLOAD or there:
        file.write_bytes(b"one")
    if route is Route.DOWNLOAD or there:
        place.store.add("v/one", b"one")
    place.records.remember_blob("v/one", RemoteState(1, "an older one", None), 1.0)
    found, _ = remembered(place, route, record_path="v/one")
    assert len(list(found.pairs)) == 1
    assert place.records.blob_listed_at("v/one") == 5.0
    assert place.records.blob_as_last_listed("v/one") == remote_state(place.store, "v/one")


def nothing_there(place: Place, route: Route, **changes: Any) -> None:
    request = place.request(route, **changes)
    with pytest.raises(NothingMatchedError) as nothing:
        survey(request, place.emit)
    remember_nothing(request, nothing.value, lambda: 5.0)


def listed_once(place: Place) -> None:
    """``v`` was a blob and a folder with one blob, some time ago."""
    found = place.records.differences("v")
    found.seen("v/old", RemoteState(1, "0x1", None))
    place.records.remember_listing("v", found, 1.0)
    place.records.remember_blob("v", RemoteState(1, "0x2", None), 1.0)


@pytest.mark.parametrize("folder_only", [True, False])
def test_a_container_that_has_nothing_there_is_stored_as_such(place: Place, *, folder_only: bool) -> None:
    listed_once(place)
    nothing_there(place, Route.DOWNLOAD, folder_only=folder_only)
    assert (stored(place), place.records.listed_at("v")) == ({}, 5.0)
    # Without a folder in mind, a blob of that name was looked for, too.
    assert (place.records.blob_as_last_listed("v") is None) is not folder_only


def test_an_upload_without_a_file_here_tells_of_the_container_only_if_that_was_empty_too(place: Place) -> None:
    listed_once(place)
    place.folder.rmdir()
    place.store.add("v/there", b"x")
    nothing_there(place, Route.UPLOAD)
    assert place.records.listed_at("v") == 1.0
    place.store.blobs.clear()
    nothing_there(place, Route.UPLOAD, selective=True)
    assert place.records.listed_at("v") == 1.0
    nothing_there(place, Route.UPLOAD)
    assert (stored(place), place.records.listed_at("v")) == ({}, 5.0)


def test_a_download_tells_of_the_container_whatever_is_here(place: Place) -> None:
    listed_once(place)
    place.write("here")
    nothing_there(place, Route.DOWNLOAD)
    assert (stored(place), place.records.listed_at("v")) == ({}, 5.0)


@pytest.mark.parametrize("folder", ["v", ""])
def test_a_listing_that_is_compared_with_nothing_is_stored_at_its_end(place: Place, folder: str) -> None:
    at = f"{folder}/" if folder else ""
    states = {f"{at}{name}": RemoteState(1, name, None) for name in ("a", "sub/b")}
    listing = Listing(place.records, folder, Spill(), recursive=True, now=lambda: 5.0)
    for path, state in states.items():
        listing.blob(path.removeprefix(at), state)
    assert place.records.listed_at(folder) is None
    listing.ended()
    assert (stored(place, folder), place.records.listed_at(folder)) == (states, 5.0)


@pytest.mark.parametrize("has_folders", [True, False])
def test_a_level_counts_as_the_whole_folder_only_if_it_has_no_other(place: Place, *, has_folders: bool) -> None:
    listed_once(place)
    found = place.records.differences("v/sub")
    found.seen("v/sub/b", RemoteState(1, "0x3", None))
    place.records.remember_listing("v/sub", found, 2.0)
    place.records.put({"v/sub/c": Record(LocalState(1, 1, 1, 1), RemoteState(1, "0x5", None))})
    listing = Listing(place.records, "v", Spill(), recursive=False, now=lambda: 5.0)
    listing.blob("a", RemoteState(1, "0x4", None))
    if has_folders:
        listing.inner()
    listing.ended()
    assert stored(place).keys() == ({"v/a", "v/sub/b", "v/sub/c"} if has_folders else {"v/a"})
    assert place.records.blob_listed_at("v/other") == 5.0
    assert place.records.listed_at("v") == (1.0 if has_folders else 5.0)


@pytest.mark.parametrize("state", [None, RemoteState(1, "0x4", None)])
def test_a_path_that_is_a_blob_or_nothing_is_stored_as_that(place: Place, state: RemoteState | None) -> None:
    listed_once(place)
    Listing(place.records, "v", Spill(), recursive=False, now=lambda: 5.0).only_blob(state)
    assert (place.records.blob_as_last_listed("v"), place.records.blob_listed_at("v")) == (state, 5.0)
