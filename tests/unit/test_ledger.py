"""The ledger of a transfer: verification, and records."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from blobsync.base.errors import FailureCode, FileFailure
from blobsync.base.file_states import FileState, LocalState, RemoteState
from blobsync.base.locations import LocalLocation
from blobsync.base.plan_reasons import Reason
from blobsync.local.index import Index, PairIndex, Record
from blobsync.plan.transfer_plan import Action, FileAction, Route
from blobsync.store.open_locations import OpenBlob, OpenLocation
from blobsync.transfer.engines import Moved
from blobsync.transfer.ledger import Ledger, record_unreported, retry_with
from tests.fakes.store import MemoryStore
from tests.fakes.tasks import action, copy, index_key, live_part, local_state, upload

ONE, TWO = b"1" * 16, b"2" * 16
SECOND = 1_000_000_000
NOW = 1_000 * SECOND + 500
OLD = LocalState(10, 5 * SECOND + 1, 5 * SECOND + 2, 7, ONE)
BLOB = RemoteState(10, "e1", ONE)
NO_MD5 = RemoteState(10, "e1", None)


class Records(PairIndex):
    """Records every write; ``records`` are the present ones."""

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self.puts: list[int] = []
        self.slow: Callable[[], None] = lambda: None

    def put(self, records: Mapping[str, Record]) -> None:
        self.puts.append(len(records))
        self.slow()
        self.records.update(records)


@dataclass
class Clock:
    at: float = 100.0

    def __call__(self) -> float:
        return self.at


@dataclass
class Books:
    """A ledger of ``actions``, and its writes."""

    actions: tuple[FileAction, ...]
    route: Route = Route.UPLOAD
    root: Path = Path("/nowhere")
    records: Records = field(default_factory=Records)
    clock: Clock = field(default_factory=Clock)
    now_ns: int = NOW
    lost: dict[str, OSError] = field(default_factory=dict)
    waited: list[tuple[list[str], int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        local, remote = LocalLocation(self.root), OpenBlob(MemoryStore(), "x")
        ends: dict[Route, tuple[OpenLocation, OpenLocation]] = {
            Route.UPLOAD: (local, remote),
            Route.DOWNLOAD: (remote, local),
            Route.SAME_ACCOUNT: (remote, remote),
        }
        source, destination = ends[self.route]
        part = live_part(self.route, source, destination, self.actions)
        self.ledger = Ledger(part, self.records, now_ns=lambda: self.now_ns, steady=self.clock, wait=self.wait)

    def wait(self, files: Collection[str]) -> Mapping[str, OSError]:
        """Notes the files, and how many writes of records came before."""
        self.waited.append((sorted(files), len(self.records.puts)))
        return self.lost

    def tick(self, seconds: float) -> None:
        self.clock.at += seconds


def books(source: FileState | None = OLD, route: Route = Route.UPLOAD) -> tuple[Books, FileAction]:
    one = action("a", source, None)
    return Books((one,), route), one


FAILED = FileFailure("data/x/a", FailureCode.STORAGE_ERROR, "no")


@pytest.mark.parametrize(
    ("route", "planned", "read", "shown", "believed"),
    [
        pytest.param(Route.UPLOAD, OLD, None, None, False, id="u: it saw nothing"),
        pytest.param(Route.UPLOAD, OLD, None, BLOB, True, id="u: the service computed the MD5"),
        pytest.param(Route.UPLOAD, OLD, None, NO_MD5, False, id="u: the service computed none"),
        pytest.param(Route.UPLOAD, replace(OLD, md5=None), None, NO_MD5, False, id="u: nobody computed one"),
        pytest.param(Route.UPLOAD, None, None, NO_MD5, False, id="u: nothing is known"),
        pytest.param(Route.SAME_ACCOUNT, BLOB, None, NO_MD5, False, id="copy: there is an MD5 to compare with"),
        pytest.param(Route.SAME_ACCOUNT, NO_MD5, BLOB, NO_MD5, False, id="copy: the engine saw an MD5"),
        pytest.param(Route.SAME_ACCOUNT, NO_MD5, None, NO_MD5, True, id="copy: no MD5 anywhere"),
        pytest.param(Route.SAME_ACCOUNT, BLOB, NO_MD5, NO_MD5, True, id="copy: the version that was read has none"),
        pytest.param(Route.SAME_ACCOUNT, None, None, NO_MD5, True, id="copy: nothing is known"),
        pytest.param(Route.DOWNLOAD, BLOB, None, OLD, True, id="d: it read what it wrote"),
        pytest.param(Route.DOWNLOAD, NO_MD5, None, replace(OLD, md5=None), True, id="d: no MD5 to compare with"),
    ],
)
def test_an_engine_is_believed_only_what_the_service_told_it(
    route: Route, planned: FileState | None, read: FileState | None, shown: FileState | None, believed: bool
) -> None:
    ours, one = books(planned, route)
    if planned is None:
        one = one._replace(size=10)
        ours = Books((one,), route)
    assert ours.ledger.moved([Moved(one, source=read, destination=shown)])
    assert (set(ours.ledger.verified), set(ours.ledger.pending)) == (({"a"}, set()) if believed else (set(), {"a"}))
    assert ours.ledger.failures == {}


def test_each_of_a_list_has_its_own_outcome() -> None:
    every = tuple(action(name, replace(OLD, md5=ONE), None) for name in "abcd")
    ours = Books(every)
    shown = (NO_MD5, replace(BLOB, md5=TWO), BLOB, BLOB)
    moved = [Moved(each, destination=there) for each, there in zip(every, shown, strict=True)]
    assert ours.ledger.moved(moved) == moved
    assert (set(ours.ledger.pending), set(ours.ledger.failures)) == ({"a"}, {"b"})
    assert set(ours.ledger.verified) == {"c", "d"}
    assert ours.ledger.moved(moved) == []
    ours.ledger.save()
    assert ours.records.puts == [2]


def test_what_an_engine_saw_itself_is_compared_too() -> None:
    ours, one = books(BLOB, Route.DOWNLOAD)
    assert ours.ledger.moved([Moved(one, destination=replace(OLD, md5=None))])
    assert (ours.ledger.failures["a"].code, ours.ledger.pending, ours.ledger.verified) == ("md5_missing", {}, {})


def test_a_fresh_look_settles_what_was_pending() -> None:
    ours, one = books()
    ours.ledger.moved([Moved(one)])
    ours.ledger.seen([(Moved(one), BLOB)])
    assert ours.ledger.verified == {"a": Moved(one, source=OLD, destination=BLOB)}
    assert (ours.ledger.pending, ours.ledger.failures) == ({}, {})


def test_a_fresh_look_that_finds_nothing_is_a_failure() -> None:
    ours, one = books()
    ours.ledger.moved([Moved(one)])
    ours.ledger.seen([(Moved(one), None)])
    assert ours.ledger.failures["a"].path == "data/x/a"
    assert (ours.ledger.pending, ours.ledger.verified) == ({}, {})
    ours.ledger.save()
    assert ours.records.records == {}


def test_only_the_first_word_about_a_file_is_news() -> None:
    ours, one = books()
    assert ours.ledger.moved([Moved(one, destination=BLOB)])
    assert not ours.ledger.moved([Moved(one)])
    assert (set(ours.ledger.verified), ours.ledger.pending) == ({"a"}, {})


def test_what_an_engine_sees_later_counts_though_it_is_no_news() -> None:
    ours, one = books()
    assert ours.ledger.moved([Moved(one)])
    assert not ours.ledger.moved([Moved(one)])
    assert set(ours.ledger.pending) == {"a"}
    assert not ours.ledger.moved([Moved(one, destination=BLOB)])
    assert (set(ours.ledger.verified), ours.ledger.pending) == ({"a"}, {})


def test_a_failure_stays_until_the_file_is_given_out_again() -> None:
    ours, one = books()
    assert ours.ledger.failed_by([one], {FailureCode.STORAGE_ERROR}) == []
    ours.ledger.failed(one, FAILED)
    assert ours.ledger.failed_by([one], {FailureCode.STORAGE_ERROR}) == [one]
    assert ours.ledger.failed_by([one], {FailureCode.CHECKSUM_MISMATCH}) == []
    assert not ours.ledger.moved([Moved(one, destination=BLOB)])
    assert (ours.ledger.failures, ours.ledger.verified) == ({"a": FAILED}, {})
    del ours.ledger.failures["a"]
    assert ours.ledger.moved([Moved(one, destination=BLOB)])
    assert set(ours.ledger.verified) == {"a"}


@pytest.mark.parametrize("shown", [BLOB, None])
def test_a_failure_outweighs_what_was_said_before(shown: FileState | None) -> None:
    ours, one = books()
    ours.ledger.moved([Moved(one, destination=shown)])
    ours.ledger.failed(one, FAILED)
    assert (ours.ledger.failures, ours.ledger.verified, ours.ledger.pending) == ({"a": FAILED}, {}, {})


def test_files_of_which_nobody_spoke() -> None:
    every = [action(name, OLD, None) for name in "abcd"]
    ours = Books(tuple(every))
    ours.ledger.moved([Moved(every[0], destination=BLOB)])
    ours.ledger.moved([Moved(every[1])])
    ours.ledger.failed(every[2], FAILED)
    assert ours.ledger.unreported(every) == [every[3]]


def test_what_the_next_run_goes_on_from_is_of_the_files_that_are_not_there() -> None:
    every = [action(name, OLD, None) for name in "abcd"]
    ours = Books(tuple(every))
    for size, one in enumerate(every, 1):
        ours.ledger.kept[one.path] = 10**size
    ours.ledger.moved([Moved(every[0], destination=BLOB)])
    ours.ledger.moved([Moved(every[1])])
    ours.ledger.failed(every[2], FAILED)
    assert ours.ledger.kept_bytes == 1_000 + 10_000


def test_files_that_nobody_planned_take_no_part() -> None:
    known, unchanged = action("a", OLD, None), action("b", OLD, BLOB)._replace(action=Action.UNCHANGED)
    ours = Books((known, unchanged))
    assert not ours.ledger.moved([Moved(action("c", OLD, None), destination=BLOB)])
    ours.ledger.failed(unchanged, FAILED)
    assert {path: failure.code for path, failure in ours.ledger.unplanned.items()} == dict.fromkeys("bc", "not_planned")
    assert ours.ledger.unplanned["c"].path == "data/x/c"
    assert (ours.ledger.verified, ours.ledger.pending, ours.ledger.failures) == ({}, {}, {})
    ours.ledger.moved([Moved(known, destination=BLOB)])
    assert set(ours.ledger.unplanned) == {"b", "c"}


def on_disk(tmp_path: Path, body: bytes = b"0123456789") -> LocalState:
    (tmp_path / "a").write_bytes(body)
    state = local_state(tmp_path / "a")
    assert state is not None
    return state


def test_an_upload_is_compared_with_what_the_file_holds(tmp_path: Path) -> None:
    state = on_disk(tmp_path)
    md5 = hashlib.md5(b"0123456789").digest()
    for shown, code in ((RemoteState(10, "e", md5), None), (RemoteState(10, "e", ONE), "md5_mismatch")):
        one = action("a", state, None)
        ours = Books((one,), root=tmp_path)
        ours.ledger.seen([(Moved(one), shown)])
        assert [failure.code for failure in ours.ledger.failures.values()] == ([code] if code else [])
        assert [each.source for each in ours.ledger.verified.values()] == ([] if code else [replace(state, md5=md5)])


@pytest.mark.parametrize("fate", ["edited", "gone"])
def test_an_upload_whose_file_is_not_the_planned_one_any_more_is_not_verified(tmp_path: Path, fate: str) -> None:
    state = on_disk(tmp_path)
    if fate == "gone":
        (tmp_path / "a").unlink()
    else:
        (tmp_path / "a").write_bytes(b"9876543210")
        os.utime(tmp_path / "a", ns=(1, 1))
    one = action("a", state, None)
    ours = Books((one,), root=tmp_path)
    ours.ledger.seen([(Moved(one), None)])
    assert ours.ledger.failures["a"].code == "missing_after_transfer"
    ours.ledger.seen([(Moved(one), RemoteState(10, "e", ONE))])
    assert ours.ledger.failures["a"].code == "changed_while_read"
    assert ours.ledger.failures["a"].path == "data/x/a"
    assert ours.ledger.verified == {}


def test_an_upload_that_was_hashed_on_the_way_is_not_read_again(tmp_path: Path) -> None:
    state = replace(on_disk(tmp_path), md5=TWO)
    one = action("a", state, None)
    ours = Books((one,), root=tmp_path)
    ours.ledger.seen([(Moved(one, source=state), RemoteState(10, "e", TWO))])
    assert set(ours.ledger.verified) == {"a"}


def recorded(ours: Books) -> Record:
    ours.ledger.save()
    assert list(ours.records.records) == ["x/a"]
    return ours.records.records["x/a"]


def test_a_verified_file_is_on_record_as_both_sides_are_now() -> None:
    ours, one = books()
    ours.ledger.seen([(Moved(one, source=replace(OLD, inode=8)), BLOB)])
    assert recorded(ours) == Record(replace(OLD, inode=8), BLOB)


def test_a_download_is_on_record_with_the_local_side_near() -> None:
    ours, one = books(BLOB, Route.DOWNLOAD)
    fresh = replace(OLD, mtime_ns=NOW, ctime_ns=NOW)
    ours.ledger.seen([(Moved(one), fresh)])
    # We wrote it ourselves: no other program can have in the same tick.
    assert recorded(ours) == Record(fresh, BLOB)


def test_a_copy_is_on_record_with_the_source_near() -> None:
    ours, one = books(BLOB, Route.SAME_ACCOUNT)
    there = RemoteState(10, "e2", ONE)
    ours.ledger.seen([(Moved(one), there)])
    assert recorded(ours) == Record(BLOB, there)


@pytest.mark.parametrize("route", [Route.UPLOAD, Route.DOWNLOAD, Route.SAME_ACCOUNT])
def test_unchanged_pairs_are_on_record_at_once_where_both_sides_are_known(route: Route) -> None:
    near, far = (BLOB, OLD) if route is Route.DOWNLOAD else (OLD, BLOB)
    whole = FileAction("a", Action.UNCHANGED, Reason.SAME_MD5, 10, near, far)
    others = [
        whole._replace(path="b", source=None),
        whole._replace(path="c", destination=None),
        whole._replace(path="d", action=Action.CONFLICT),
    ]
    ours = Books((*others, whole), route)
    ours.ledger.record_unchanged()
    assert list(ours.records.records) == ["x/a"]


@pytest.mark.parametrize(
    ("route", "source", "expected"),
    [
        (Route.UPLOAD, OLD, Record(OLD, RemoteState(10, "", ONE))),
        (Route.SAME_ACCOUNT, BLOB, Record(BLOB, RemoteState(10, "", ONE))),
        (Route.DOWNLOAD, BLOB, Record(LocalState(10, -1, -1, 0, ONE), BLOB)),
    ],
)
def test_a_version_that_was_settled_against_is_on_record_with_no_present_destination(
    route: Route, source: FileState, expected: Record
) -> None:
    settled = FileAction("a", Action.SKIP, Reason.KEEP_DESTINATION, 10, source, source)
    others = [settled._replace(path="b", reason=Reason.BOTH_CHANGED), settled._replace(path="c", source=None)]
    ours = Books((*others, settled), route)
    ours.ledger.record_settled((*others, settled))
    assert ours.records.records == {"x/a": expected}


@pytest.mark.parametrize("edited", [False, True])
def test_a_version_that_was_settled_against_is_read_while_it_is_there(tmp_path: Path, *, edited: bool) -> None:
    state = on_disk(tmp_path)
    settled = FileAction("a", Action.SKIP, Reason.KEEP_DESTINATION, 10, state, BLOB)
    if edited:
        os.utime(tmp_path / "a", ns=(1, 1))
    ours = Books((settled,), root=tmp_path, now_ns=state.ctime_ns + SECOND)
    ours.ledger.record_settled((settled,))
    md5 = None if edited else hashlib.md5(b"0123456789").digest()
    assert recorded(ours) == Record(replace(state, md5=md5), RemoteState(10, "", md5))


def test_records_are_written_once() -> None:
    ours, one = books()
    ours.ledger.seen([(Moved(one), BLOB)])
    ours.ledger.save()
    ours.ledger.save()
    assert ours.records.puts == [1, 0]


def test_what_was_written_here_is_on_the_disk_before_its_record() -> None:
    moved, named = action("a", BLOB, None), action("b", BLOB, None)._replace(target="c")
    equal = FileAction("d", Action.UNCHANGED, Reason.SAME_MD5, 10, BLOB, OLD)
    ours = Books((moved, named, equal), Route.DOWNLOAD)
    ours.ledger.seen([(Moved(moved), OLD)])
    ours.ledger.seen([(Moved(named), OLD)])
    ours.ledger.record_unchanged()
    assert ours.waited == [(["/nowhere/a", "/nowhere/c", "/nowhere/d"], 0)] and ours.records.puts == [3]
    ours.ledger.save()
    assert len(ours.waited) == 1


@pytest.mark.parametrize("route", [Route.UPLOAD, Route.SAME_ACCOUNT])
def test_nothing_waits_for_what_was_not_written_here(route: Route) -> None:
    ours, one = books(BLOB if route is Route.SAME_ACCOUNT else OLD, route)
    ours.ledger.seen([(Moved(one), BLOB)])
    ours.ledger.save()
    assert ours.waited == [] and ours.records.puts == [1]


@pytest.mark.parametrize(
    ("number", "code"), [(errno.EIO, "local_file"), (errno.ENOSPC, "disk_full"), (errno.EACCES, None)]
)
def test_what_may_not_be_on_the_disk_gets_no_record(number: int, code: str | None) -> None:
    one, other = action("a", BLOB, None), action("b", BLOB, None)
    ours = Books((one, other), Route.DOWNLOAD)
    ours.lost = {"/nowhere/a": OSError(number, os.strerror(number))}
    for each in (other, one):
        ours.ledger.seen([(Moved(each), OLD)])
    ours.ledger.save()
    assert list(ours.records.records) == ["x/b"]
    # What the disk has lost did not arrive.
    assert [(failure.path, failure.code) for failure in ours.ledger.failures.values()] == (
        [("data/x/a", code)] if code else []
    )
    assert set(ours.ledger.verified) == ({"b"} if code else {"a", "b"})


def test_a_file_that_was_only_compared_does_not_fail_with_the_disk() -> None:
    equal = FileAction("a", Action.UNCHANGED, Reason.SAME_MD5, 10, BLOB, OLD)
    ours = Books((equal,), Route.DOWNLOAD)
    ours.lost = {"/nowhere/a": OSError(errno.EIO, "no")}
    ours.ledger.record_unchanged()
    assert (ours.records.records, ours.ledger.failures, ours.ledger.unplanned) == ({}, {}, {})


def test_records_are_written_after_two_seconds() -> None:
    ours = Books(tuple(action(str(n), OLD, None) for n in range(4)))
    ours.clock.at = 101.9
    ours.ledger.seen([(Moved(ours.actions[0]), BLOB)])
    assert ours.records.puts == []
    ours.clock.at = 102.0
    ours.ledger.seen([(Moved(ours.actions[1]), BLOB)])
    assert ours.records.puts == [2]
    # From the last time on.
    ours.clock.at = 103.9
    ours.ledger.seen([(Moved(ours.actions[2]), BLOB)])
    assert ours.records.puts == [2]


def test_a_slow_disk_takes_a_twentieth_of_the_time() -> None:
    ours = Books(tuple(action(str(n), OLD, None) for n in range(4)))
    ours.records.slow = lambda: ours.tick(0.5)
    ours.clock.at = 102.0
    ours.ledger.seen([(Moved(ours.actions[0]), BLOB)])
    assert (ours.records.puts, ours.clock.at) == ([1], 102.5)
    ours.clock.at = 111.9
    ours.ledger.seen([(Moved(ours.actions[1]), BLOB)])
    assert ours.records.puts == [1]
    ours.clock.at = 112.0
    ours.ledger.seen([(Moved(ours.actions[2]), BLOB)])
    assert ours.records.puts == [1, 2]


def test_while_one_thread_writes_records_no_other_one_does() -> None:
    ours = Books(tuple(action(str(n), OLD, None) for n in range(4)))

    def meanwhile() -> None:
        ours.records.slow = lambda: None
        ours.tick(60.0)
        ours.ledger.seen([(Moved(ours.actions[1]), BLOB)])

    ours.records.slow = meanwhile
    ours.clock.at = 102.0
    ours.ledger.seen([(Moved(ours.actions[0]), BLOB)])
    assert ours.records.puts == [1]
    ours.ledger.save()
    assert ours.records.puts == [1, 1]


FINE, COARSE = NOW - 20_000_000, 998 * SECOND


@pytest.mark.parametrize(
    ("mtime_ns", "ctime_ns", "now_ns", "trusted"),
    [
        pytest.param(FINE, FINE, NOW, True, id="a tick ago"),
        pytest.param(FINE + 1, FINE, NOW, False, id="written within the tick"),
        pytest.param(FINE, FINE + 1, NOW, False, id="changed within the tick"),
        pytest.param(NOW + SECOND, FINE, NOW, False, id="written in the future"),
        pytest.param(COARSE, COARSE, 1_000 * SECOND, True, id="whole seconds: two seconds ago"),
        pytest.param(COARSE, COARSE, 1_000 * SECOND - 1, False, id="whole seconds: within two seconds"),
        pytest.param(COARSE + 1, COARSE, 1_000 * SECOND - 1, True, id="a fraction in one time: a fine clock"),
        pytest.param(COARSE, COARSE + 1, 1_000 * SECOND - 1, True, id="a fraction in the other: a fine clock"),
    ],
)
def test_a_file_that_changed_within_the_clock_tick_is_read_again_next_time(
    mtime_ns: int, ctime_ns: int, now_ns: int, trusted: bool
) -> None:
    state = replace(OLD, mtime_ns=mtime_ns, ctime_ns=ctime_ns)
    one = action("a", state, None)
    ours = Books((one,), now_ns=now_ns)
    ours.ledger.seen([(Moved(one), BLOB)])
    # No file was last written at second 0, so that the record fits none.
    assert recorded(ours).near == (state if trusted else replace(state, mtime_ns=0))


def test_a_file_that_was_fresh_when_it_was_read_does_not_age_while_it_is_sent() -> None:
    state = replace(OLD, mtime_ns=COARSE, ctime_ns=COARSE)
    one = action("a", state, None)
    ours = Books((one,), now_ns=COARSE + 1)
    ours.now_ns = COARSE + 60 * SECOND
    ours.ledger.seen([(Moved(one), BLOB)])
    assert recorded(ours).near == replace(state, mtime_ns=0)


def test_a_second_try_takes_the_sources_as_they_are_now() -> None:
    first, second = action("a", OLD, BLOB), action("b", OLD, None)
    now = replace(OLD, size=11)
    assert retry_with([first, second], {"a": now, "b": None}, {}) == [first._replace(source=now, size=11)]


def test_a_second_try_replaces_what_the_first_wrote() -> None:
    first, second = action("a", OLD, None), action("b", OLD, BLOB)
    again = retry_with([first, second], {"a": OLD, "b": OLD}, {"a": BLOB})
    assert again == [first._replace(destination=BLOB), second]


def test_a_copy_that_arrived_without_a_report_is_recorded() -> None:
    one, two = MemoryStore("one"), MemoryStore("two")
    for name in "ab":
        one.add(f"p/{name}", b"content")
    task = copy(one, "p", two, "q", ["a", "b"])
    written = two.add("q/b", b"content")
    records = Records()
    there = RemoteState(written.size, written.etag, written.md5)
    assert record_unreported(task.part, task.actions, records) == {"b": there}
    assert {path: record.remote for path, record in records.records.items()} == {"x/b": there}


def test_an_upload_that_arrived_without_a_report_is_not_recorded(tmp_path: Path) -> None:
    on_disk(tmp_path)
    store = MemoryStore()
    task = upload(tmp_path, store, "p")
    store.add("p/a", b"0123456789")
    records = Records()
    assert record_unreported(task.part, task.actions, records) == {}
    assert records.puts == []


def test_a_ledger_reads_the_real_clocks_by_itself(tmp_path: Path) -> None:
    state = on_disk(tmp_path)
    one = action("a", state, None)
    index = Index(tmp_path / "index")
    part = live_part(Route.UPLOAD, LocalLocation(tmp_path), OpenBlob(MemoryStore(), "x"), (one,))
    records = index.pair("x", "y")
    ledger = Ledger(replace(part, key=index_key("x", "y", "")), records)
    shown = RemoteState(10, "e", hashlib.md5(b"0123456789").digest())
    ledger.seen([(Moved(one), shown)])
    ledger.save()
    assert records.get(["a"])["a"].remote == shown
    index.close()
