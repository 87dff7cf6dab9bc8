"""Cutting a part into shards, and validation of the lines of shards and records."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blobsync.base.errors import FailureCode, FileFailure
from blobsync.base.events import (
    NO_ANSWER,
    NO_CONNECTION,
    SERVICE_BUSY,
    Connected,
    Disconnected,
    Note,
    UnderWay,
)
from blobsync.base.file_states import FileState, LocalState, RemoteState
from blobsync.base.locations import LocalLocation, UrlList
from blobsync.base.plan_reasons import Reason
from blobsync.config.sources import ListedFile
from blobsync.plan.project_context import LivePart
from blobsync.plan.spreading import shard_count
from blobsync.plan.transfer_plan import Action, FileAction, Route
from blobsync.spread.file_json import LONGEST_LINE, FormatError, state_json
from blobsync.spread.record import (
    Answer,
    Ask,
    FileRecord,
    KeptFile,
    MovedBytes,
    Ready,
    Refused,
    ShardDone,
    answer_line,
    read_answer,
)
from blobsync.spread.shard import Shard, can_be_in_shard, cut, listed_at, read_shards, shard_lines, weight
from blobsync.spread.verified_records import TRIES, ShardAccount, WorkersBusy
from blobsync.store.open_locations import OpenBlob
from blobsync.store.url_list import UrlListStore
from blobsync.transfer.engines import Moved
from tests.fakes.store import MemoryStore
from tests.fakes.tasks import RecordingListener, live_part

_MIB = 1 << 20
_MD5 = bytes(range(16))
_BLOB = RemoteState(5, "0x8DC", _MD5)
_FILE = LocalState(5, 1_700_000_000_123_456_789, 1_700_000_000_000_000_000, 42, _MD5)

# On a loaded machine single examples may be slow.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

sizes = st.one_of(st.integers(0, 100_000), st.integers(0, 1 << 40))
md5s = st.none() | st.binary(min_size=16, max_size=16)
etags = st.text(st.characters(min_codepoint=0x23, max_codepoint=0x7E), min_size=1, max_size=40)
blobs = st.builds(RemoteState, sizes, etags, md5s, st.sampled_from([None, "", "Cool"]))
stamps = st.integers(-(1 << 62), 1 << 62)
files = st.builds(LocalState, sizes, stamps, stamps, st.integers(0, (1 << 64) - 1), md5s)
parts_of_names = st.text(
    st.characters(min_codepoint=0x20, exclude_categories=("Cs", "Cc", "Cn"), exclude_characters="/\\")
)
names = st.lists(
    parts_of_names.filter(lambda part: part not in ("", ".", "..") and len(part) < 50), min_size=1, max_size=4
).map("/".join)


def _part() -> LivePart:
    here, there = LocalLocation(Path("/p/data")), OpenBlob(MemoryStore("box"), "sets/data")
    return live_part(Route.UPLOAD, here, there)


def _action(path: str, size: int = 5, source: FileState | None = None) -> FileAction:
    return FileAction(path, Action.TRANSFER, Reason.NEW, size, source or dataclasses.replace(_FILE, size=size))


def _actions(given: list[int]) -> list[FileAction]:
    return [_action(f"f{number:05}", size) for number, size in enumerate(given)]


# -- cutting ----------------------------------------------------------------------------------------------


@patient
@given(st.lists(sizes, max_size=100), st.integers(1, 16))
def test_every_action_is_in_exactly_one_shard_in_its_order(given: list[int], workers: int) -> None:
    actions = _actions(given)
    shards = cut(_part(), actions, workers)
    assert [action for shard in shards for action in shard.actions] == actions
    assert [shard.number for shard in shards] == list(range(len(shards)))
    assert all(shard.actions for shard in shards)
    assert shards == cut(_part(), actions, workers)


@patient
@given(st.lists(sizes, min_size=1, max_size=100), st.integers(1, 16))
def test_no_shard_weighs_more_than_an_equal_share_and_a_file_more(given: list[int], workers: int) -> None:
    actions = _actions(given)
    shards = cut(_part(), actions, workers)
    assert len(shards) >= min(workers, len(actions))
    total, largest = sum(map(weight, actions)), max(map(weight, actions))
    assert max(shard.weight for shard in shards) <= total / len(shards) + largest


def test_a_worker_that_is_slow_leaves_shards_to_the_others() -> None:
    files = _actions([16 << 10] * 20_000)
    assert shard_count(2, sum(map(weight, files))) == 16 == len(cut(_part(), files, 16))


def test_small_work_is_not_cut_into_crumbs() -> None:
    assert shard_count(2, sum(map(weight, _actions([10] * 300)))) == 2


def test_many_empty_files_do_not_fill_one_shard() -> None:
    shards = cut(_part(), _actions([100 << 30] * 2 + [0] * 30_000), 2)
    assert max(len(shard.actions) for shard in shards) <= 5_000
    assert len(cut(_part(), _actions([0] * 30_000), 2, 30_000)) == 2


_REQUEST = 256 << 10


@pytest.mark.parametrize(
    ("weights", "workers", "counts"),
    [
        ([1, 1, 1, 1], 2, [2, 2]),
        ([2, 1, 1], 2, [1, 2]),
        ([4, 2, 1, 1], 3, [1, 1, 2]),
        # A large file at the end gets a share of its own; after one at the beginning the shares are equal.
        ([1, 1, 1, 4], 2, [3, 1]),
        ([4, 1, 1, 1, 1], 3, [1, 2, 2]),
    ],
)
def test_each_shard_has_an_equal_share_of_what_those_before_it_left(
    weights: list[int], workers: int, counts: list[int]
) -> None:
    shards = cut(_part(), _actions([(each - 1) * _REQUEST for each in weights]), workers)
    assert [len(shard.actions) for shard in shards] == counts


def test_a_shard_that_lacks_one_byte_of_its_share_gets_another_file() -> None:
    for count, before in ((2, [2]), (3, [4, 2])):
        weights = [*(each * _REQUEST for each in before), _REQUEST, _REQUEST + 1]
        shards = cut(_part(), _actions([each - _REQUEST for each in weights]), count)
        assert [len(shard.actions) for shard in shards] == [*[1] * (count - 2), 2, 1]


def test_the_work_of_a_file_is_its_bytes_and_its_requests() -> None:
    assert weight(_action("a", 0)) == _REQUEST
    assert weight(_action("a", 8 * _MIB - 1)) == 8 * _MIB - 1 + _REQUEST
    assert weight(_action("a", 8 * _MIB)) == 8 * _MIB + 2 * _REQUEST
    assert weight(_action("a", 40 * _MIB)) == 40 * _MIB + 6 * _REQUEST


# -- the file of a shard ----------------------------------------------------------------------------------


def _read(lines: Iterator[str] | list[str]) -> Shard | None:
    return next(read_shards(lines), None)


@st.composite
def shards(draw: st.DrawFn) -> Shard:
    route = draw(st.sampled_from(Route))
    states: dict[bool, st.SearchStrategy[FileState]] = {True: files, False: blobs}
    source, destination = states[route is Route.UPLOAD], states[route is Route.DOWNLOAD]
    actions = [
        FileAction(
            path,
            Action.TRANSFER,
            draw(st.sampled_from(Reason)),
            draw(sizes),
            draw(source),
            draw(st.none() | destination),
            target=draw(st.none() | names),
            on_record=draw(sizes),
            delta=draw(st.booleans()),
        )
        for path in draw(st.lists(names, unique=True, max_size=5))
    ]
    return Shard(draw(st.integers(0, 9999)), route, "data/x", "/p/data", "https://a/b", tuple(actions))


@patient
@given(shards())
def test_a_shard_is_the_same_after_its_file(shard: Shard) -> None:
    read = _read(shard_lines(shard))
    assert read == shard and hash(read) == hash(shard) and not hasattr(read, "__dict__")
    # Comparing two states ignores the tier.
    assert [str(action.source) for action in read.actions] == [str(action.source) for action in shard.actions]


def test_the_file_has_every_field_that_an_engine_reads() -> None:
    # For a new field, decide here whether workers need it.
    kept = {"path", "reason", "size", "source", "destination", "target", "on_record", "delta"}
    known = kept | {"action", "aside"}
    assert set(FileAction._fields) == known
    stat = {"size", "mtime_ns", "ctime_ns", "inode"}
    # A CRC64 is known only while files are compared, and blocks only in the process that hashed them.
    assert {field.name for field in dataclasses.fields(LocalState)} == {*stat, "md5", "crc64", "blocks"}
    # Only an undo copies earlier versions, in one process.
    blob = {"size", "etag", "md5", "tier", "crc64"}
    assert {field.name for field in dataclasses.fields(RemoteState)} == {*blob, "version"}


def test_a_file_of_a_list_of_urls_has_what_the_list_says_of_it() -> None:
    files = {
        "sets/data/a": ListedFile("https://host.example/a", 5, ("sha256", bytes(range(32)))),
        "sets/data/b": ListedFile("https://host.example/x/b"),
    }
    source = OpenBlob(UrlListStore(UrlList("", "list.tsv", ""), files, {}), "sets/data")
    part = live_part(Route.CROSS_ACCOUNT, source, OpenBlob(MemoryStore("box"), "data"))
    (shard,) = cut(part, [_action("a", source=_BLOB), _action("b", source=_BLOB)], 1)
    assert shard.listed == tuple(files.values())
    read = _read(shard_lines(shard))
    assert read == shard and listed_at(source, read) == files
    assert cut(_part(), [_action("a")], 1)[0].listed == ()


@pytest.mark.parametrize(
    "words",
    [
        *([], ["https://h/a"], ["https://h/a", "", "", ""], "https://h/a", None, [1, "", ""]),
        *(["http://h/a", "", ""], ["https://u@h/a", "", ""], ["https://h/a", "-1", ""], ["https://h/a", "", "md5:0"]),
    ],
)
def test_what_no_list_says_is_refused(words: object) -> None:
    shard = Shard(0, Route.CROSS_ACCOUNT, "data", "list:x", "https://a/b", (_action("a", source=_BLOB),))
    head, file, end = shard_lines(shard)
    with pytest.raises(FormatError):
        _read([head, json.dumps({**json.loads(file), "listed": words}), end])
    good = json.dumps({**json.loads(file), "listed": ["https://h/a", "5", ""]})
    with pytest.raises(FormatError, match="not every file is in the list"):
        _read([head, json.dumps({**json.loads(file), "path": "b"}), good, end])


def test_two_shards_follow_each_other() -> None:
    one, two = cut(_part(), _actions([1, 2, 3, 4]), 2)
    assert list(read_shards([*shard_lines(one), *shard_lines(two)])) == [one, two]


_THERE = {"size": 1, "etag": "a", "md5": None, "tier": None}
_HEAD = '{"blobsync_shard":1,"number":0,"route":"download","path":"d","source":"https://a/b","destination":"/p/data"}'


@pytest.mark.parametrize(
    "name",
    [
        "",
        "..",
        "../x",
        "a/../../x",
        "/etc/passwd",
        "a//b",
        "a/./b",
        "a\x00b",
        "x" * 256,
        "\ud800",
        ".blobsync-0badcafe.part",
    ],
)
@pytest.mark.parametrize("key", ["path", "target"])
def test_a_name_that_leads_out_of_the_folder_is_refused(name: str, key: str) -> None:
    line = json.dumps({"path": "a", "reason": "NEW", "size": 1, "source": _THERE, "destination": None, key: name})
    with pytest.raises(FormatError, match=r"the name|is not a text"):
        _read([_HEAD, line, '{"end":1}'])


@pytest.mark.parametrize(
    "change",
    [
        {"size": -1},
        {"size": True},
        {"size": 1.0},
        {"size": 1 << 70},
        {"reason": "because"},
        {"source": []},
        {"source": None},
        {"source": {"size": 1, "etag": "a\r\nx-ms-evil: 1", "md5": None}},
        {"source": {"size": 1, "etag": "a", "md5": "00"}},
        {"source": {"size": 1, "etag": "a", "md5": None, "tier": "Hot\r\nx-ms-evil: 1"}},
        {"destination": {"size": 1, "etag": "a", "md5": None}},
        {"destination": {"size": 1, "mtime_ns": "1", "ctime_ns": 1, "inode": 1, "md5": None}},
    ],
)
def test_a_state_that_no_side_can_have_is_refused(change: dict[str, object]) -> None:
    fine = {"path": "a", "reason": "NEW", "size": 1, "source": _THERE, "destination": None}
    assert _read([_HEAD, json.dumps(fine), '{"end":1}']) is not None
    with pytest.raises(FormatError):
        _read([_HEAD, json.dumps({**fine, **change}), '{"end":1}'])


@pytest.mark.parametrize(
    "lines",
    [
        ["[]"],
        ["{"],
        ['{"blobsync_shard": 2}'],
        [_HEAD.replace("download", "sideways")],
        [_HEAD, '{"end":1}'],
        [
            _HEAD,
            *[json.dumps({"path": "a", "reason": "NEW", "size": 1, "source": _THERE, "destination": None})] * 2,
            '{"end":2}',
        ],
        [_HEAD.replace('"d"', '"' + "d" * LONGEST_LINE + '"')],
        ["[" * 5000],
    ],
)
def test_an_incomplete_shard_is_refused(lines: list[str]) -> None:
    with pytest.raises(FormatError):
        _read(lines)


@pytest.mark.parametrize("key", ["number", "route", "path", "source", "destination"])
@pytest.mark.parametrize("value", [None, -1, ["d"]])
def test_a_shard_whose_first_line_lacks_something_is_refused(key: str, value: object) -> None:
    head = {**json.loads(_HEAD), key: value}
    with pytest.raises(FormatError):
        _read([json.dumps(head), '{"end":0}'])


def test_a_shard_has_as_many_files_as_a_worker_can_hold_and_no_more() -> None:
    line = {"reason": "NEW", "size": 1, "source": _THERE, "destination": None}
    lines = [json.dumps({"path": f"f{number}", **line}) for number in range(50_001)]
    whole = _read([_HEAD, *lines[:50_000], '{"end":50000}'])
    assert whole is not None and len(whole.actions) == 50_000
    with pytest.raises(FormatError, match="more than 50,000 files"):
        _read([_HEAD, *lines, '{"end":50001}'])


def test_the_line_of_a_file_has_what_it_needs_and_no_more() -> None:
    plain, full = _action("a"), _action("b")._replace(target="c", on_record=3, delta=True)
    _, one, two, _ = shard_lines(Shard(0, Route.UPLOAD, "d", "/p", "https://a/b", (plain, full)))
    assert json.loads(one).keys() == {"path", "reason", "size", "source", "destination"}
    assert json.loads(two).keys() - json.loads(one).keys() == {"target", "on_record", "delta"}


def test_a_name_that_this_disk_cannot_have_is_refused_at_the_source_of_an_upload_too() -> None:
    head = _HEAD.replace("download", "upload")
    line = {"path": "a//b", "reason": "NEW", "size": 5, "source": state_json(_FILE), "destination": None}
    assert _read([head, json.dumps({**line, "path": "a/b"}), '{"end":1}']) is not None
    for change in ({}, {"path": "a", "target": "a//b"}):
        with pytest.raises(FormatError, match="the name"):
            _read([head, json.dumps({**line, **change}), '{"end":1}'])


def test_a_part_that_is_one_file_and_odd_names_stay_in_this_process() -> None:
    assert can_be_in_shard(_action("a/b"), Route.UPLOAD)
    # A blob may be the part itself; of a file here only the command knows that it is the right one.
    assert [can_be_in_shard(_action(""), route) for route in Route] == [True, False, True, True]
    assert not can_be_in_shard(_action("a/../b"), Route.CROSS_ACCOUNT)
    assert can_be_in_shard(_action("a//b"), Route.CROSS_ACCOUNT)
    assert not can_be_in_shard(_action("a//b"), Route.DOWNLOAD)
    for target, fits in (("b", True), ("../b", False), ("a//b", False)):
        assert can_be_in_shard(_action("a")._replace(target=target), Route.DOWNLOAD) is fits
    assert not can_be_in_shard(_action("a")._replace(source=None), Route.UPLOAD)


# -- records ----------------------------------------------------------------------------------------------

ANSWERS: tuple[Answer, ...] = (
    FileRecord("a/b", _FILE, _BLOB, reused=3),
    FileRecord("a/b", _FILE, _BLOB, compared_by="crc64nvme"),
    FileRecord("a", _FILE, None),
    FileRecord("a", failure=FileFailure("a", FailureCode.ACCESS_DENIED, "no access", "ask")),
    FileRecord("a", failure=FileFailure("a", FailureCode.LOCAL_FILE, "disk full")),
    KeptFile("a", 8 * _MIB),
    MovedBytes(-5, 7),
    UnderWay(3, "data/a/b"),
    Refused("n1: the disk is another one"),
    Note("a sentence"),
    Ask("token", "source"),
    Ready(),
    ShardDone(3),
    Disconnected("acct.blob.core.windows.net", NO_CONNECTION, 0.0),
    Connected("acct.blob.core.windows.net"),
)


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: type(answer).__name__)
def test_an_answer_is_the_same_after_its_line(answer: Answer) -> None:
    assert read_answer(answer_line(answer), Route.UPLOAD) == answer


def test_answers_are_values_that_nobody_changes_and_that_take_no_more_memory_than_their_fields() -> None:
    read = [read_answer(answer_line(each), Route.UPLOAD) for each in ANSWERS]
    assert set(read) == set(ANSWERS) and len(set(ANSWERS)) == len(ANSWERS)
    assert not [each for each in read if hasattr(each, "__dict__")]


def test_a_file_that_is_not_said_to_have_been_there_has_moved_as_a_whole() -> None:
    for answer in (FileRecord("a", _FILE, _BLOB), MovedBytes(5)):
        assert json.loads(answer_line(answer))["reused"] == answer.reused == 0


def test_what_a_worker_of_another_version_left_is_read_or_refused_by_its_number() -> None:
    assert answer_line(Ready()) == '{"blobsync_records":1}'
    assert next(shard_lines(cut(_part(), _actions([1]), 1)[0])).startswith('{"blobsync_shard":1,')
    with pytest.raises(FormatError, match="not a shard of version 1"):
        _read([_HEAD.replace('"blobsync_shard":1', '"blobsync_shard":2')])


_MOST = (1 << 62) - 1


@pytest.mark.parametrize("count", [_MOST, -_MOST])
def test_bytes_are_whole_numbers_of_64_bits_that_can_be_added_up(count: int) -> None:
    assert read_answer(answer_line(MovedBytes(count, -count)), Route.UPLOAD) == MovedBytes(count, -count)
    over = count + (1 if count > 0 else -1)
    for bytes_, reused in ((over, 0), (0, over)):
        with pytest.raises(FormatError, match="is not a number"):
            read_answer(json.dumps({"bytes": bytes_, "reused": reused}), Route.UPLOAD)


@pytest.mark.parametrize("change", [{"seconds": 999_999.5}, {"why": NO_ANSWER}, {"why": SERVICE_BUSY}])
def test_an_outage_that_can_be_is_told(change: dict[str, object]) -> None:
    values = {"lost": "host", "why": NO_CONNECTION, "seconds": 0.5, **change}
    assert read_answer(json.dumps(values), Route.UPLOAD) == Disconnected(*values.values())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"seconds": 1e6},
        {"seconds": -0.5},
        {"seconds": 5},
        {"seconds": None},
        {"why": "because"},
        {"why": None},
        {"lost": 1},
    ],
)
def test_an_outage_that_cannot_be_is_refused(change: dict[str, object]) -> None:
    values = {"lost": "host", "why": NO_CONNECTION, "seconds": 0.5, **change}
    with pytest.raises(FormatError):
        read_answer(json.dumps(values), Route.UPLOAD)


@patient
@given(names, blobs, files)
def test_a_record_is_the_same_after_its_line(name: str, blob: RemoteState, file: LocalState) -> None:
    record = FileRecord(name, blob, file)
    assert read_answer(answer_line(record), Route.DOWNLOAD) == record


@pytest.mark.parametrize(
    "line",
    [
        "",
        "null",
        "{}",
        '{"blobsync_records": 2}',
        '{"bytes": "1", "reused": 0}',
        '{"bytes": 1}',
        '{"done": -1}',
        '{"refused": 5}',
        '{"ask": "account_key", "end": "source"}',
        '{"ask": "token", "end": "elsewhere"}',
        '{"path": "a", "code": "fine", "message": "m"}',
        '{"path": "a", "source": null, "destination": null, "reused": 0, "compared_by": "by eye"}',
        '{"path": "a", "source": null, "destination": null, "reused": 0, "compared_by": 1}',
        '{"path": "a", "code": "usage"}',
        '{"path": "a", "source": {"size": 1}, "destination": null, "reused": 0}',
        '{"path": 1}',
    ],
)
def test_an_invalid_line_of_a_worker_is_refused(line: str) -> None:
    with pytest.raises(FormatError):
        read_answer(line, Route.UPLOAD)


def test_a_message_from_a_worker_is_shown_without_secrets_and_escapes() -> None:
    record = FileRecord("a", failure=FileFailure("a", FailureCode.ERROR, f"\x1b[2J sig={'A' * 43}%3D", "h\nh"))
    read = read_answer(answer_line(record), Route.UPLOAD)
    assert isinstance(read, FileRecord) and read.failure is not None and read.failure.hint is not None
    assert "A" * 43 not in read.failure.message
    assert read.failure.message.isprintable() and read.failure.hint.isprintable()


# -- the account ------------------------------------------------------------------------------------------


def _account(count: int = 4) -> ShardAccount:
    (shard,) = cut(_part(), _actions([5] * count), 1)
    return ShardAccount(shard)


def test_a_record_of_a_file_that_the_shard_does_not_have_is_an_error() -> None:
    account, failure = _account(), FileFailure("", FailureCode.ERROR, "m")
    with pytest.raises(FormatError):
        account.failed(FileRecord("../f00000", failure=failure))
    account.failed(FileRecord("f00000", failure=failure))
    with pytest.raises(FormatError):
        account.failed(FileRecord("f00000", failure=failure))
    with pytest.raises(FormatError):
        account.planned("f9")


def test_what_a_lost_worker_had_not_reported_goes_to_others_in_halves_and_in_the_end_to_none() -> None:
    account = _account(4)
    account.moved(FileRecord("f00001", _FILE, _BLOB))
    one, two = account.again()
    assert [list(each.left) for each in (one, two)] == [["f00000", "f00002"], ["f00003"]]
    assert (one.attempt, two.attempt) == (2, 2)
    assert [list(each.left) for each in one.again()] == [["f00000"], ["f00002"]]
    (last,) = two.again()
    assert last.attempt == TRIES
    assert last.again() == []


def test_what_all_workers_have_under_way_is_one_number() -> None:
    listener = RecordingListener()
    busy = WorkersBusy(listener, "data")
    busy.hear(1, UnderWay(3, "data/a"))
    busy.hear(2, UnderWay(2, "data/b"))
    busy.ends(1)
    busy.hear(2, UnderWay(1, "data/c"))
    assert listener.begun == [(3, "data/a"), (5, "data/b"), (1, "data/c")]
    with pytest.raises(FormatError, match="is not of this transfer"):
        busy.hear(2, UnderWay(1, "database/c"))


def test_a_part_that_is_one_file_and_one_that_is_all_of_the_project_have_files_under_way() -> None:
    listener = RecordingListener()
    WorkersBusy(listener, "data/a").hear(1, UnderWay(1, "data/a"))
    WorkersBusy(listener, "").hear(1, UnderWay(2, "data/b"))
    assert listener.begun == [(1, "data/a"), (2, "data/b")]


def test_bytes_that_a_lost_worker_had_under_way_are_taken_back() -> None:
    account, listener = _account(), RecordingListener()
    account.tell(12, 0, listener)
    account.moved(FileRecord("f00000", _FILE, _BLOB))
    account.take_back(listener)
    assert listener.bytes == 5


def test_bytes_of_a_file_that_was_there_already_are_reported_at_the_end() -> None:
    account, listener = _account(2), RecordingListener()
    account.tell(5, 0, listener)
    account.moved(FileRecord("f00000", _FILE, _BLOB))
    failure = FileFailure("f00001", FailureCode.CHANGED_MEANWHILE, "m")
    account.found(account.failed(FileRecord("f00001", failure=failure)))
    account.close(listener)
    assert listener.bytes == 10


_OTHER = dataclasses.replace(_FILE, inode=43)


@pytest.mark.parametrize(
    ("route", "planned", "record"),
    [
        (Route.UPLOAD, _FILE, FileRecord("a", None, _BLOB)),
        (Route.UPLOAD, _FILE, FileRecord("a", _OTHER, _BLOB)),
        (Route.UPLOAD, _FILE, FileRecord("a", _FILE, None)),
        (Route.UPLOAD, _FILE, FileRecord("a", dataclasses.replace(_FILE, md5=None), _BLOB)),
        (Route.UPLOAD, _FILE, FileRecord("a", _FILE, _BLOB, reused=6)),
        (Route.DOWNLOAD, None, FileRecord("a", None, _FILE)),
        (Route.DOWNLOAD, _BLOB, FileRecord("a", _FILE, _FILE)),
        (Route.UPLOAD, _FILE, FileRecord("a", _BLOB, _BLOB)),
        (Route.DOWNLOAD, _BLOB, FileRecord("a", RemoteState(5, "other", _MD5), _FILE)),
        (Route.DOWNLOAD, _BLOB, FileRecord("a", RemoteState(6, "0x8DC", _MD5), _FILE)),
    ],
)
def test_a_record_of_another_version_than_the_plans_is_not_believed(
    route: Route, planned: FileState | None, record: FileRecord
) -> None:
    account = ShardAccount(Shard(0, route, "d", "s", "t", (_action("a")._replace(source=planned),)))
    with pytest.raises(FormatError):
        account.moved(record)
    # It still has to move or fail.
    assert list(account.left) == ["a"]


def test_a_record_of_the_planned_version_is_believed() -> None:
    action = _action("a", source=dataclasses.replace(_FILE, md5=None))
    account = ShardAccount(Shard(0, Route.UPLOAD, "d", "s", "t", (action,)))
    assert account.planned("a") is action
    assert account.moved(FileRecord("a", _FILE, _BLOB, 2, "md5")) == Moved(action, _FILE, _BLOB, 2, "md5")
    # Also after its record.
    assert not account.left and account.planned("a") is action
    # All of it may have been there already.
    whole = ShardAccount(Shard(0, Route.UPLOAD, "d", "s", "t", (action,)))
    assert whole.moved(FileRecord("a", _FILE, _BLOB, 5)).reused == 5


def test_a_record_of_a_copy_needs_no_look_at_the_destination_nor_an_md5() -> None:
    blob = dataclasses.replace(_BLOB, md5=None)
    account = ShardAccount(Shard(0, Route.SAME_ACCOUNT, "d", "s", "t", (_action("a", source=blob),)))
    assert account.moved(FileRecord("a", blob, None)).destination is None


def test_bytes_are_reported_once_whatever_becomes_of_the_worker() -> None:
    listener = RecordingListener()
    account = ShardAccount(Shard(0, Route.UPLOAD, "d", "s", "t", (_action("a", source=_FILE), _action("b", 7))))
    account.tell(4, 2, listener)
    account.take_back(listener)
    assert (listener.bytes, listener.reused) == (0, 0)
    account = ShardAccount(account.shard)
    account.tell(3, 2, listener)
    account.moved(FileRecord("a", _FILE, _BLOB, 2))
    assert (account.moving, account.reused) == (0, 0)
    # Nothing is under way any more, so nothing is uncounted.
    account.take_back(listener)
    account.close(listener)
    assert (listener.bytes, listener.reused) == (3, 2)
    # A lost worker has moved it without reporting its bytes.
    account.found(account.planned("b"))
    account.close(listener)
    account.close(listener)
    assert (listener.bytes, account.moving) == (10, 0)


def test_where_nothing_moves_nobody_hears_of_bytes() -> None:
    account, listener = _account(1), RecordingListener()
    account.tell(0, 0, listener)
    account.take_back(listener)
    account.close(listener)
    assert not listener.of_bytes and not listener.workers
    account.tell(3, 0, listener)
    account.tell(0, 2, listener)
    assert listener.of_bytes == [("BytesMoved", 3), ("BytesReused", 2)]
    account.take_back(listener)
    assert listener.of_bytes[2:] == [("BytesMoved", -3), ("BytesReused", -2)]


def test_files_and_bytes_are_those_of_the_worker_that_has_the_shard() -> None:
    account, listener = _account(3), RecordingListener()
    account.worker = "n1"
    account.tell(5, 0, listener)
    account.moved(FileRecord("f00000", _FILE, _BLOB))
    account.arrived(listener)
    account.tell(4, 0, listener)
    account.take_back(listener)
    account = ShardAccount(account.shard, worker="n2")
    account.tell(5, 0, listener)
    account.moved(FileRecord("f00001", _FILE, _BLOB))
    account.arrived(listener)
    assert listener.workers == {"n1": [1, 5], "n2": [1, 5]}


def test_bytes_of_a_file_that_failed_half_way_stay_told_at_the_end() -> None:
    account, listener = _account(1), RecordingListener()
    account.tell(3, 0, listener)
    account.failed(FileRecord("f00000", failure=FileFailure("f00000", FailureCode.ERROR, "m")))
    account.close(listener)
    assert (listener.bytes, account.moving) == (3, 3)


def test_the_end_of_a_shard_tells_of_the_last_missing_byte() -> None:
    listener = RecordingListener()
    account = ShardAccount(
        Shard(0, Route.UPLOAD, "d", "s", "t", (_action("a", 1, dataclasses.replace(_FILE, size=1)),))
    )
    account.found(account.planned("a"))
    account.close(listener)
    assert (listener.bytes, account.moving) == (1, 0)


def test_a_long_name_with_control_characters_is_shown_in_part() -> None:
    with pytest.raises(FormatError) as error:
        _account().planned("\x1b" + "n" * 300)
    assert str(error.value) == "'\\x1b" + "n" * 199 + "' is not in this shard"
